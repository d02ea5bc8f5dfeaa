"""The job as its handler sees it; it can report its progress there."""

from __future__ import annotations

import contextvars
import logging
import math
from collections.abc import Callable, Generator
from typing import Any, Final, Literal

from msgspec import Struct

from evsched.jobs.kept import Keeper


class Progress(Struct, frozen=True, omit_defaults=True):
    """How far a run is, as its handler reports it."""

    done: int | float  # an int stays an int, also on its way from a process
    total: int | float | None = None
    note: str = ""


class _Awaitable:
    """Can be awaited, but does not have to be."""

    def __await__(self) -> Generator[None]:
        return
        yield


_DONE: Final = _Awaitable()


class CurrentJob(Struct, eq=False):
    """The job that a handler runs. Durations in seconds, moments in Unix seconds."""

    id: str
    queue: str
    task: str
    attempt: int
    due: float
    planned: float
    """The due of the first attempt; for an occurrence, its planned time."""
    lateness: float
    """Seconds from the due to the handler's start, by Redis's clock."""
    meta: dict[str, Any]
    """The payload's `meta`."""
    state: Any = None
    """The value that the app's lifespan yields; None without a lifespan, and in a task that runs in a process."""
    report: Callable[[Progress], None] | None = None
    """Receives each report of `progress`; for evsched's own use."""
    stopped: Literal["timeout", "cancelled", "lost"] | None = None
    """Why the run must stop. "lost": the worker shuts down, or its lease of the job is gone."""
    tags: tuple[str, ...] = ()
    """The payload's `tags`."""
    redact: tuple[str, ...] = ()
    """The payload's `redact`: the arguments whose values messages must not have."""
    draining: bool = False
    """The worker stops: it runs this job for the shutdown grace at most. `raise Snooze(0)` lets another one go on."""
    keeper: Keeper | None = None
    """Keeps data for later runs of the job; for `evsched.steps`."""
    memory: Any = None
    """The knowledge that `evsched.steps` has of the run."""
    worker: str = ""
    """The worker that runs it, as `evsched workers` names it; empty in a process of its own."""

    @property
    def cancelled(self) -> bool:
        """Whether the run must stop: its timeout has passed, the job was cancelled, or the worker stops or lost it.

        A plain function must check this, since a thread cannot be stopped from outside.
        """
        return self.stopped is not None

    def progress(self, done: float, total: float | None = None, note: str = "") -> _Awaitable:
        """Report how far the run is; it is stored in the job's record, and `evsched show --follow` displays it.

        Call it as often as you like: the newest report is written a few times a second, and the last one when the run
        ends. It can be awaited, but does not have to be, so plain functions can call it too.

        Raises:
            TypeError, ValueError: `done` or `total` is not a finite number.
        """
        text = str(note)[:200].encode(errors="backslashreplace").decode()
        progress = Progress(_figure(done), None if total is None else _figure(total), text)
        if self.report is not None:
            self.report(progress)
        return _DONE

    @property
    def idempotency_key(self) -> str:
        """A key for calls that must take effect once: the same in all attempts of a job, different for the next job."""
        return f"{self.id}:{self.planned:.6f}"


def _figure(value: Any) -> int | float:
    """Return a number as JSON has it; an int stays an int."""
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    if isinstance(value, str | bytes) or not math.isfinite(number := float(value)):
        raise ValueError(f"progress: {value!r} is not a finite number")
    return number


_current: Final[contextvars.ContextVar[CurrentJob]] = contextvars.ContextVar("evsched_current_job")


def set_current_job(job: CurrentJob) -> None:
    """Set the job that `current_job` returns in this context."""
    _current.set(job)


def current_job() -> CurrentJob:
    """Return the job that the calling handler runs.

    Raises:
        LookupError: the caller is not inside a run.
    """
    try:
        return _current.get()
    except LookupError:
        raise LookupError("no job runs here: call this from the handler of a job") from None


class JobLogFilter(logging.Filter):
    """Adds `job_id`, `job_queue`, `job_task` and `job_attempt` to each line that is logged within a run.

    Attach it to a handler of your logging, and use the names in its format; outside a run they are "-" and 0. It works
    in threads too. For a task that runs in a process, set up logging in that process.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        job = _current.get(None)
        record.job_id = "-" if job is None else job.id
        record.job_queue = "-" if job is None else job.queue
        record.job_task = "-" if job is None else job.task
        record.job_attempt = 0 if job is None else job.attempt
        return True
