"""The link from a worker process to its parent, the supervisor: it reports that it is ready, behind, or idle.

Each report is one byte. The parent decides how many processes there are. When the parent ends, its end of the link
closes, and `runtime/shutdown.py` stops the process.
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
BEHIND: Final = b"F"
IDLE: Final = b"I"

LINK: Final = "_EVSCHED_LINK_FD"
METRICS: Final = "_EVSCHED_METRICS_FD"
"""Environment variables with the descriptors of the sockets that a child inherits: its end of the link, and the socket
of its metrics port, which already listens."""

_BEHIND_AFTER: Final = 1.0
"""Seconds for which jobs must stay in ready before the worker reports that it is behind: a burst passes sooner."""


def inherited(name: str) -> socket.socket | None:
    """Return a socket that the parent passed to this process; None = it passed none. It is not passed on further."""
    number = os.environ.pop(name, None)
    if number is None:
        return None
    passed = socket.socket(fileno=int(number))
    passed.set_inheritable(False)
    return passed


class ChildLink:
    """Reports on a worker, to whose events it subscribes. It is idle when no job starts for `idle_after` seconds."""

    def __init__(self, link: socket.socket, idle_after: float, worker: Worker) -> None:
        self._link = link
        self._idle_after = idle_after
        self._worker = worker
        self._behind = set[str]()
        """Queues in which the last fetch left ready jobs."""
        self._checking: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._behind_timer: asyncio.TimerHandle | None = None
        self._idle_timer = self._loop.call_later(self._idle_after, self._report_idle)
        link.setblocking(False)

    def on_event(self, event: Event) -> None:
        """Report to the parent, or set a timer to report later."""
        if isinstance(event, WorkerStarted):
            self._report(READY)
        elif isinstance(event, ReadyLeft):
            self._behind.add(event.queue)
            if self._behind_timer is None:
                self._behind_timer = self._loop.call_later(_BEHIND_AFTER, self._check_backlog)
        elif isinstance(event, ReadyDrained):
            self._behind.discard(event.queue)
            if self._behind_timer is not None and not self._behind:
                self._behind_timer.cancel()
                self._behind_timer = None
        elif isinstance(event, Started):
            self._idle_timer.cancel()
            self._idle_timer = self._loop.call_later(self._idle_after, self._report_idle)

    def close(self) -> None:
        """Stop reporting."""
        self._idle_timer.cancel()
        if self._behind_timer is not None:
            self._behind_timer.cancel()
        if self._checking is not None:
            self._checking.cancel()

    def _check_backlog(self) -> None:
        self._behind_timer = self._loop.call_later(_BEHIND_AFTER, self._check_backlog)
        self._checking = self._loop.create_task(self._report_behind())

    async def _report_behind(self) -> None:
        # A worker without free slots last fetched some time ago. Other workers may have fetched the jobs meanwhile.
        with contextlib.suppress(StoreError):
            if await self._worker.jobs_wait():
                self._report(BEHIND)

    def _report_idle(self) -> None:
        if not self._worker.busy():
            self._report(IDLE)
        self._idle_timer = self._loop.call_later(self._idle_after, self._report_idle)

    def _report(self, report: bytes) -> None:
        with contextlib.suppress(OSError):  # the parent has ended
            self._link.send(report)
