"""A server whose wall clock a test sets: a shim of a few lines of C stands before the C library's clocks."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.server_binary import Kind, find_server

SOURCE = Path(__file__).with_name("clock.c")


class SetClock:
    """The clock of one server. Its monotonic clocks run on, as they do when an operator sets the time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, offset: int) -> None:
        """Have it differ from this host's by so many seconds."""
        beside = self._file.with_suffix(".new")
        beside.write_text(str(offset))
        beside.replace(self._file)  # the server reads it at any moment, and must not read half


@contextmanager
def server_with_clock(folder: Path) -> Generator[tuple[EmbeddedRedis, SetClock]]:
    """Run a server whose clock can be set; skip the test where no compiler is."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc: it builds the shim before the server's clock")
    shim, offset = folder / "clock.so", folder / "offset"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", shim, SOURCE, "-ldl"], check=True, timeout=60)
    kind: Kind | None = os.environ.get("EVSCHED_TEST_SERVER")  # pyright: ignore[reportAssignmentType]
    clock, server = SetClock(offset), EmbeddedRedis(find_server(kind))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LD_PRELOAD", str(shim))
            patch.setenv("CLOCK_OFFSET", str(offset))
            server.start()
        yield server, clock
    finally:
        server.close()
