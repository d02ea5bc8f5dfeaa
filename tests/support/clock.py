"""Wall clocks that a test sets: a shim of a few lines of C replaces the clock functions of the C library."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from evsched.transport.embedded import EmbeddedRedis, Kind, find_server
from tests.support.patience import PATIENCE

SOURCE = Path(__file__).with_name("clock.c")

_starting = threading.Lock()
"""Held while this process's environment is that of a server which starts."""


@cache
def _shim() -> Path:
    """Build the shim; skip the test if there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the shim for clocks")
    folder = tempfile.mkdtemp(prefix="evsched-clock-")
    atexit.register(shutil.rmtree, folder)
    shim = Path(folder) / "clock.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", shim, SOURCE, "-ldl"], check=True, timeout=PATIENCE)
    return shim


class SetClock:
    """The wall clock of processes that are started with `environment`, and of their children.

    Their monotonic clocks run on, as they do when an operator sets the time.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.environment = {"LD_PRELOAD": str(_shim()), "CLOCK_OFFSET": str(file)}
        self.set(0)

    def set(self, offset: int) -> None:
        """Set the difference to this host's clock, in seconds."""
        beside = self._file.with_suffix(".new")
        beside.write_text(str(offset))
        beside.replace(self._file)  # the processes may read it at any moment, and must not read half of it


@contextmanager
def server_with_clock(folder: Path, port: int | None = None) -> Generator[tuple[EmbeddedRedis, SetClock]]:
    """Run a server whose clock can be set; `port`: as `EmbeddedRedis` takes it."""
    kind: Kind | None = os.environ.get("EVSCHED_TEST_SERVER")  # pyright: ignore[reportAssignmentType]
    clock, server = SetClock(folder / "offset"), EmbeddedRedis(find_server(kind), port=port)
    try:
        with _starting, pytest.MonkeyPatch.context() as patch:
            for name, value in clock.environment.items():
                patch.setenv(name, value)
            server.start()
        yield server, clock
    finally:
        server.close()
