"""The progress of a handler on a process, sent to its worker while the handler runs.

The worker opens a socket for each such run, and the process sends datagrams. So nothing is polled, a process that
reports often is not slowed down, and one that dies leaves nothing behind. The newest report is sent, ten times a second
at the most; the last one comes with the handler's result.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from evsched.jobs.current_job import Progress

_INTERVAL: Final = 0.1
"""Seconds between two datagrams of a process: the worker writes to Redis four times a second."""

_LONGEST: Final = 4096
"""Bytes of a datagram: a note is 200 characters, of which JSON may make six bytes each."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Progress).decode


class SocketAddress(Struct, frozen=True):
    """How a process reaches its worker; it is pickled. Datagrams that do not begin with the key are ignored."""

    address: str
    key: bytes


@contextlib.contextmanager
def receive(on_progress: Callable[[Progress], object]) -> Generator[SocketAddress]:
    """Receive what one run reports, in the event loop."""
    with bound() as (receiver, name):
        address = SocketAddress(name, secrets.token_bytes(16))
        loop = asyncio.get_running_loop()
        loop.add_reader(receiver, _receive_one, receiver, address.key, on_progress)
        try:
            yield address
        finally:
            loop.remove_reader(receiver)


@contextlib.contextmanager
def bound() -> Generator[tuple[socket.socket, str]]:
    """Open a socket for datagrams that another process of this host can send to by its name, which is yielded too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.setblocking(False)
        if sys.platform == "linux":
            receiver.bind("")  # the kernel gives it a name that is no file, so kill -9 leaves none
            yield receiver, receiver.getsockname().decode("latin-1")
            return
        folder = tempfile.mkdtemp(prefix="evsched-")
        try:
            receiver.bind(str(Path(folder) / "progress"))
            yield receiver, receiver.getsockname()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def path_of(name: str) -> str | bytes:
    """Return the name of a socket as the system calls want it."""
    return name.encode("latin-1") if name.startswith("\0") else name


def _receive_one(receiver: socket.socket, key: bytes, on_progress: Callable[[Progress], object]) -> None:
    with contextlib.suppress(BlockingIOError, msgspec.MsgspecError):
        datagram = receiver.recv(_LONGEST)
        if secrets.compare_digest(datagram[: len(key)], key):
            on_progress(_decode(datagram[len(key) :]))


class ProgressSender:
    """The process's end: `report` as often as you like, `end` to have the last report."""

    def __init__(self, address: SocketAddress) -> None:
        self._address = address
        self._last: Progress | None = None
        self._unsent = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def report(self, progress: Progress) -> None:
        """Send a report to the worker soon, unless a newer one comes first."""
        self._last = progress
        self._unsent.set()
        if self._thread is None:
            # A thread, so that the last report before a handler computes for an hour is sent too.
            self._thread = threading.Thread(target=self._send_all, name="evsched-progress", daemon=True)
            self._thread.start()

    def end(self) -> Progress | None:
        """Send no more; return the last report."""
        self._ended.set()
        self._unsent.set()
        return self._last

    def _send_all(self) -> None:
        name = self._address.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
            # The worker has ended, or is too busy to receive. It gets the last report with the result.
            sender.connect(path_of(name))
            while not self._ended.is_set():
                self._unsent.wait()
                self._unsent.clear()
                if not self._ended.is_set():
                    sender.send(self._address.key + _encode(self._last))
                    self._ended.wait(_INTERVAL)
