"""A server on a disk that can be slow, full, or lose what has not been synced, as in a power cut.

A shim of C replaces the calls of the C library that write and sync files, so neither root nor a second disk is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE

SOURCE = Path(__file__).with_name("disk.c")


class Disk:
    """The disk of one server; `folder` is an empty one, for the shim and its switches.

    Raises:
        FileNotFoundError: there is no gcc.
    """

    def __init__(self, server: EmbeddedRedis, folder: Path) -> None:
        self._server = server
        self._folder = folder
        self._shim = folder / "disk.so"
        gcc = shutil.which("gcc")
        if gcc is None:
            raise FileNotFoundError("no gcc to build the shim for the server's disk (Debian: gcc libc6-dev)")
        subprocess.run([gcc, "-shared", "-fPIC", "-O2", "-o", self._shim, SOURCE, "-ldl"], check=True, timeout=PATIENCE)

    def start_server(self) -> None:
        """Start the server on this disk. A process that another thread starts in the same moment has it too."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_PRELOAD", str(self._shim))
            patch.setenv("DISK", str(self._folder))
            self._server.start()

    def delay(self, seconds: float) -> None:
        """Let each sync take so much longer."""
        beside = self._folder / "delay.new"
        beside.write_text(f"{1000 * seconds:.0f}")
        beside.replace(self._folder / "delay")  # the server may read it at any moment, and must not read half of it

    def fill(self) -> None:
        """Refuse all writes to files, with ENOSPC."""
        (self._folder / "full").touch()

    def empty(self) -> None:
        """Accept writes again."""
        (self._folder / "full").unlink()

    def cut_power(self) -> None:
        """Kill the server, and take from each file of its append-only log what had not reached the disk by then."""
        self._server.kill()
        sizes: dict[Path, int] = {}
        for line in (self._folder / "synced").read_text().splitlines():
            size, _, path = line.partition(" ")
            sizes[Path(path)] = int(size)
        for path in (self._server.folder / "appendonlydir").glob("*.aof"):
            if path.stat().st_size > (size := sizes.get(path, 0)):
                os.truncate(path, size)
