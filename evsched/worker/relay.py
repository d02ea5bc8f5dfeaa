"""What a handler on a process tells on its way: from that process to its worker, while the handler runs.

The worker listens on a socket of its own for each such run, and what crosses is datagrams. So nothing is polled, a
process that tells much is not slowed down, and one that dies leaves nothing behind. The newest is told, ten times a
second at the most; the very last comes with the handler's result.
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

_APART: Final = 0.1
"""Seconds between two datagrams of a process: the worker writes to Redis four times a second."""

_LONGEST: Final = 4096
"""Bytes of a datagram: a note is 200 characters, of which JSON may make six bytes each."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Progress).decode


class Line(Struct, frozen=True):
    """How a process reaches its worker; it is pickled. What does not begin with the key is not the process's."""

    address: str
    key: bytes


@contextlib.contextmanager
def receive(heard: Callable[[Progress], object]) -> Generator[Line]:
    """Listen for what one run tells, in the event loop."""
    with _bound() as (ear, address):
        line = Line(address, secrets.token_bytes(16))
        loop = asyncio.get_running_loop()
        loop.add_reader(ear, _receive_one, ear, line.key, heard)
        try:
            yield line
        finally:
            loop.remove_reader(ear)


@contextlib.contextmanager
def _bound() -> Generator[tuple[socket.socket, str]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.setblocking(False)
        if sys.platform == "linux":
            ear.bind("")  # the kernel gives it a name that is no file, so kill -9 leaves none
            yield ear, ear.getsockname().decode("latin-1")
            return
        folder = tempfile.mkdtemp(prefix="evsched-")
        try:
            ear.bind(str(Path(folder) / "progress"))
            yield ear, ear.getsockname()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _receive_one(ear: socket.socket, key: bytes, heard: Callable[[Progress], object]) -> None:
    with contextlib.suppress(BlockingIOError, msgspec.MsgspecError):
        told = ear.recv(_LONGEST)
        if secrets.compare_digest(told[: len(key)], key):
            heard(_decode(told[len(key) :]))


class Teller:
    """The process's end: `tell` as often as you like, `end` to have the last."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._last: Progress | None = None
        self._news = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def tell(self, progress: Progress) -> None:
        """Have the worker hear of it soon, if no newer comes before."""
        self._last = progress
        self._news.set()
        if self._thread is None:
            # Of its own: a handler that tells something and then is silent for an hour has told it.
            self._thread = threading.Thread(target=self._send_all, name="evsched-progress", daemon=True)
            self._thread.start()

    def end(self) -> Progress | None:
        """Tell no more; return what was told last."""
        self._ended.set()
        self._news.set()
        return self._last

    def _send_all(self) -> None:
        address = self._line.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mouth, contextlib.suppress(OSError):
            # A worker that is gone, or too busy to listen, hears the last with the result.
            mouth.connect(address.encode("latin-1") if address.startswith("\0") else address)
            while not self._ended.is_set():
                self._news.wait()
                self._news.clear()
                if not self._ended.is_set():
                    mouth.send(self._line.key + _encode(self._last))
                    self._ended.wait(_APART)
