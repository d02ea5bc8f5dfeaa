"""SIGTERM and SIGINT, received in a thread: a handler that blocks the event loop does not delay them."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterable
from typing import Any, Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Writes the number of each signal to a socket. Call `install` and `restore` in the main thread."""

    def __init__(self) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._write_end.setblocking(False)
        self._before: list[Any] = []
        """The signal handlers that `install` replaced."""

    def install(self) -> None:
        """Receive the signals from now on."""
        signal.set_wakeup_fd(self._write_end.fileno(), warn_on_full_buffer=False)
        self._before = [signal.signal(number, self._forward) for number in _SIGNALS]

    def restore(self) -> None:
        """Receive no more signals. `wait` and `read` raise EOFError from now on."""
        for number, before in zip(_SIGNALS, self._before, strict=True):
            signal.signal(number, before)
        signal.set_wakeup_fd(-1)
        self._write_end.close()

    def close(self) -> None:
        """Close the socket that the thread has read."""
        self._read_end.close()

    def descriptors(self) -> Iterable[int]:
        """Return the descriptors of the sockets."""
        return self._read_end.fileno(), self._write_end.fileno()

    def wait(self, parent: socket.socket | None) -> None:
        """Wait for a signal, or until the other end of `parent` is closed.

        Raises:
            EOFError: `restore` was called.
        """
        poll = select.poll()
        for one in filter(None, (self._read_end, parent)):
            poll.register(one, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll()}
        if self._read_end.fileno() in ready and not self._read_end.recv(64):
            raise EOFError

    def read(self, seconds: float) -> int | None:
        """Return the number of the next signal; None if none comes within so many seconds.

        Raises:
            EOFError: `restore` was called.
        """
        self._read_end.settimeout(seconds)
        try:
            numbers = self._read_end.recv(64)
        except TimeoutError:
            return None
        if not numbers:
            raise EOFError
        return numbers[0]

    def _forward(self, number: int, frame: object) -> None:
        # Python writes the number to the wake-up descriptor, unless a job's own event loop has replaced the descriptor.
        ours = self._write_end.fileno()
        descriptor = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
        if descriptor != ours:
            signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
            self._write_end.send(bytes([number]))
