"""What a worker process tells the one that started it: that it is ready, behind, or idle. One byte each.

The parent decides how many processes there are. When it is gone, its end of the link closes, and `runtime/shutdown.py`
hears that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import Final

from evsched.errors import StoreError
from evsched.events import Event, ReadyDrained, ReadyLeft, Started, WorkerStarted
from evsched.worker.worker import Worker

READY: Final = b"R"
FULL: Final = b"F"
IDLE: Final = b"I"

LINK: Final = "_EVSCHED_LINK_FD"
METRICS: Final = "_EVSCHED_METRICS_FD"
"""How a child learns of the sockets that it inherits: its end of the link, and one that listens already."""

_FULL_FOR: Final = 1.0
"""Seconds for which jobs are left ready before another process is asked for: a burst passes sooner."""


def inherited(name: str) -> socket.socket | None:
    """Return a socket that the parent handed on, if there is a parent that did. What this process starts has none."""
    number = os.environ.pop(name, None)
    if number is None:
        return None
    handed_on = socket.socket(fileno=int(number))
    handed_on.set_inheritable(False)
    return handed_on


class ChildLink:
    """`on_event` to the events of a worker, which is idle after `rest` seconds."""

    def __init__(self, link: socket.socket, rest: float, worker: Worker) -> None:
        self._link = link
        self._rest_for = rest
        self._worker = worker
        self._behind = set[str]()
        """Queues of which jobs were left ready at the last take."""
        self._asking: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._full: asyncio.TimerHandle | None = None
        self._idle = self._loop.call_later(self._rest_for, self._rest)
        link.setblocking(False)

    def on_event(self, event: Event) -> None:
        """Tell the parent what it needs to know of this event."""
        if isinstance(event, WorkerStarted):
            self._tell(READY)
        elif isinstance(event, ReadyLeft):
            self._behind.add(event.queue)
            if self._full is None:
                self._full = self._loop.call_later(_FULL_FOR, self._look)
        elif isinstance(event, ReadyDrained):
            self._behind.discard(event.queue)
            if self._full is not None and not self._behind:
                self._full.cancel()
                self._full = None
        elif isinstance(event, Started):
            self._idle.cancel()
            self._idle = self._loop.call_later(self._rest_for, self._rest)

    def close(self) -> None:
        """Tell no more."""
        self._idle.cancel()
        if self._full is not None:
            self._full.cancel()
        if self._asking is not None:
            self._asking.cancel()

    def _look(self) -> None:
        self._full = self._loop.call_later(_FULL_FOR, self._look)
        self._asking = self._loop.create_task(self._ask())

    async def _ask(self) -> None:
        # A worker whose slots are full has not taken for long, and others may have: so Redis says if some are left.
        with contextlib.suppress(StoreError):
            if await self._worker.jobs_wait():
                self._tell(FULL)

    def _rest(self) -> None:
        if not self._worker.busy():
            self._tell(IDLE)
        self._idle = self._loop.call_later(self._rest_for, self._rest)

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # the parent is gone
            self._link.send(word)
