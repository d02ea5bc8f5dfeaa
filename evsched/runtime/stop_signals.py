"""SIGTERM and SIGINT, received in a thread: a handler that blocks the event loop does not delay them.

A parent of worker processes also receives SIGHUP, which asks it to reload. If its terminal has hung up, SIGHUP asks it
to end, as it does any program.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterable
from typing import Any, Final

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Writes the number of each signal to a socket. Call `install` and `restore` in the main thread.

    `reloads`: receive SIGHUP too.
    """

    def __init__(self, *, reloads: bool = False) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._write_end.setblocking(False)
        self._received = (*_STOPS, signal.SIGHUP) if reloads else _STOPS
        self._terminals = [number for number in (0, 1, 2) if os.isatty(number)]
        """The standard descriptors that are terminals."""
        self._before: list[Any] = []
        """The signal handlers that `install` replaced."""

    def install(self) -> None:
        """Receive the signals from now on."""
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)
        self._before = [signal.signal(number, self._forward) for number in self._received]

    def restore(self) -> None:
        """Receive no more signals. `wait` and `read` raise EOFError from now on."""
        for number, before in zip(self._received, self._before, strict=True):
            signal.signal(number, before)
        signal.set_wakeup_fd(-1)
        self._write_end.close()

    def close(self) -> None:
        """Close the socket that the thread has read."""
        self._read_end.close()

    def descriptors(self) -> Iterable[int]:
        """Return the descriptors of the sockets."""
        return self._read_end.fileno(), self._write_end.fileno()

    def wait(self, parent: socket.socket | None) -> bool:
        """Wait until a signal asks for something, or until the other end of `parent` is closed.

        Return whether the process is to end; False = it is to reload.

        Raises:
            EOFError: `restore` was called.
        """
        poll = select.poll()
        for one in filter(None, (self._read_end, parent)):
            poll.register(one, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._read_end.fileno() not in ready:
                return True
            numbers = self._read_end.recv(64)
            if not numbers:
                raise EOFError
            if any(self._is_stop(number) for number in numbers):
                return True
            if signal.SIGHUP in numbers and signal.SIGHUP in self._received:
                return False

    def read(self, seconds: float) -> int | None:
        """Return the number of the next signal that asks to end; None if none comes within so many seconds.

        Raises:
            EOFError: `restore` was called.
        """
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._read_end.settimeout(left)
            try:
                numbers = self._read_end.recv(64)
            except TimeoutError:
                break
            if not numbers:
                raise EOFError
            for number in filter(self._is_stop, numbers):
                return number
        return None

    def _is_stop(self, number: int) -> bool:
        """Return whether a signal asks to end. An app may handle others itself: Python writes their numbers too."""
        hung_up = any(not os.isatty(descriptor) for descriptor in self._terminals)
        return number in _STOPS or (number == signal.SIGHUP and number in self._received and hung_up)

    def _forward(self, number: int, frame: object) -> None:
        # Python writes the number to the wake-up descriptor, unless a job's own event loop has replaced the descriptor.
        ours = self._write_end.fileno()
        descriptor = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
        if descriptor != ours:
            signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
            self._write_end.send(bytes([number]))
