"""A server whose wall clock a test sets: a shim of a few lines of C replaces the clock functions of the C library."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from evsched.transport.embedded import EmbeddedRedis, Kind, find_server
from tests.support.patience import PATIENCE

SOURCE = Path(__file__).with_name("clock.c")


class SetClock:
    """The clock of one server. Its monotonic clocks run on, as they do when an operator sets the time."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, offset: int) -> None:
        """Set the difference to this host's clock, in seconds."""
        beside = self._file.with_suffix(".new")
        beside.write_text(str(offset))
        beside.replace(self._file)  # the server may read it at any moment, and must not read half of it


@contextmanager
def server_with_clock(folder: Path) -> Generator[tuple[EmbeddedRedis, SetClock]]:
    """Run a server whose clock can be set; skip the test if there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the shim for the server's clock")
    shim, offset = folder / "clock.so", folder / "offset"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", shim, SOURCE, "-ldl"], check=True, timeout=PATIENCE)
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
