"""What handlers write down outside Redis.

A line has what happened, the job, its attempt, its due time, the worker's process, and when. Due times and moments are
by one clock, since Redis runs on this host.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from evsched import current_job
from tests.crash_points.injection import FOLDER, append

WORKER: Final = "EVSCHED_TEST_WORKER"
"""The worker's process; a handler that runs elsewhere inherits it. Not set by worker processes of a parent."""


class Line(NamedTuple):
    """What one handler did."""

    what: str
    job: str
    attempt: int
    due: float
    worker: int
    """The process of the worker, also if the handler runs in a process of its own."""
    at: float


def _file() -> Path:
    return Path(os.environ[FOLDER]) / "testimony"


def note(what: str) -> None:
    """Write down what the handler of the current job does."""
    job = current_job()
    worker = os.environ.get(WORKER) or os.getpid()
    append(_file(), f"{what} {job.id} {job.attempt} {job.due:.6f} {worker} {time.time():.6f}")


def noted(what: str) -> bool:
    """Return whether a run of the current job has written this down."""
    return any((line.what, line.job) == (what, current_job().id) for line in testimony())


def testimony() -> list[Line]:
    """Return what all handlers have written down."""
    return read(_file())


def read(file: Path) -> list[Line]:
    """Return the lines that are whole."""
    whole = file.read_text().rpartition("\n")[0] if file.exists() else ""
    rows = [line.split() for line in whole.splitlines()]
    return [Line(what, job, int(n), float(due), int(worker), float(at)) for what, job, n, due, worker, at in rows]
