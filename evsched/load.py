"""What a worker process tells the one that started it: that it is ready, full, or idle. One byte each.

The parent decides how many processes there are. When it is gone, its end of the link closes, and the worker drains.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Final

from evsched.events import Event, RoomLeft, SlotsFull, Started, WorkerStarted

READY: Final = b"R"
FULL: Final = b"F"
IDLE: Final = b"I"

LINK: Final = "_EVSCHED_LINK_FD"
METRICS: Final = "_EVSCHED_METRICS_FD"
"""How a child learns of the sockets that it inherits: its end of the link, and one that listens already."""

_FULL_FOR: Final = 1.0
"""Seconds without a free slot, with more jobs ready, before another process is asked for: a burst passes sooner."""


def inherited(name: str) -> socket.socket | None:
    """Return a socket that the parent handed on, if there is a parent that did."""
    number = os.environ.get(name)
    return None if number is None else socket.socket(fileno=int(number))


class Load:
    """`listen` to a worker's events; `stop()` is called when the parent is gone. It is idle after `rest` seconds."""

    def __init__(self, link: socket.socket, rest: float, busy: Callable[[], bool], stop: Callable[[], None]) -> None:
        self._link = link
        self._rest_for = rest
        self._busy = busy
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._full: asyncio.TimerHandle | None = None
        self._idle = self._loop.call_later(self._rest_for, self._rest)
        link.setblocking(False)
        self._loop.add_reader(link, self._read)

    def listen(self, event: Event) -> None:
        """Tell the parent what it needs to know of this event."""
        if isinstance(event, WorkerStarted):
            self._tell(READY)
        elif isinstance(event, SlotsFull) and self._full is None:
            self._full = self._loop.call_later(_FULL_FOR, self._more)
        elif isinstance(event, RoomLeft) and self._full is not None:
            self._full.cancel()
            self._full = None
        elif isinstance(event, Started):
            self._idle.cancel()
            self._idle = self._loop.call_later(self._rest_for, self._rest)

    def close(self) -> None:
        """Tell no more."""
        self._loop.remove_reader(self._link)
        self._idle.cancel()
        if self._full is not None:
            self._full.cancel()
        self._link.close()

    def _more(self) -> None:
        self._tell(FULL)
        self._full = self._loop.call_later(_FULL_FOR, self._more)

    def _rest(self) -> None:
        if not self._busy():
            self._tell(IDLE)
        self._idle = self._loop.call_later(self._rest_for, self._rest)

    def _tell(self, word: bytes) -> None:
        with contextlib.suppress(OSError):  # the parent is gone: then `_read` sees it
            self._link.send(word)

    def _read(self) -> None:
        try:
            gone = not self._link.recv(64)
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            self._loop.remove_reader(self._link)
            self._stop()
