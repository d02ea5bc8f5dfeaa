"""The oracle: a table in shared memory in which each job notes when it ran. It is the same for all schedulers.

A job is told its number and writes the time into the cell of that number, which takes a fraction of a microsecond. The
benchmark reads the cells; it asks no scheduler what has become of a job. Only the standard library is imported here,
since this module is used in the environments of all schedulers.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

VARIABLE = "BENCH_ORACLE"
"""The environment variable with the path of the table."""


@cache
def _cells(path: str) -> memoryview[float]:
    with open(path, "r+b") as file:  # noqa: PTH123 - a handler's first call should cost little
        return memoryview(mmap.mmap(file.fileno(), 0)).cast("d")


def stamp(number: int) -> None:
    """Note that the job of this number runs now."""
    _cells(os.environ[VARIABLE])[number] = time.time()


class Oracle:
    """The table, as the benchmark reads it: for each job the Unix seconds at which it last ran, or 0."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._view = _cells(str(path))

    def times(self, first: int, count: int) -> list[float]:
        """Return when these jobs ran, without those that have not."""
        return [at for at in self._view[first : first + count].tolist() if at]

    def wait_for_one(self, first: int, count: int, limit: float) -> int:
        """Wait at most `limit` seconds until one of these jobs has run, and return how many have."""
        end = time.monotonic() + limit
        while not (ran := len(self.times(first, count))) and time.monotonic() < end:
            time.sleep(0.01)
        return ran

    def wait(self, first: int, count: int, limit: float) -> list[float]:
        """Wait at most `limit` seconds until all these jobs have run, and return when they ran."""
        end, at = time.monotonic() + limit, first
        while time.monotonic() < end:
            while at < first + count and self._view[at]:
                at += 1
            if at == first + count:
                break
            time.sleep(0.02)
        return self.times(first, count)


@contextmanager
def oracle(cells: int) -> Generator[Oracle]:
    """Make a table of so many cells, and remove it at the end."""
    with tempfile.NamedTemporaryFile(prefix="bench-oracle-") as file:
        file.truncate(8 * cells)
        yield Oracle(Path(file.name))
