"""What a handler may know of the job that it runs, and what it may say of it."""

from __future__ import annotations

import contextvars
import logging
import math
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, Final, Literal

from msgspec import Struct

from evsched.errors import EvschedError


class RetryLater(EvschedError):
    """Raised by a handler: run this job again, after `delay` (a timedelta, or seconds) or as its retry policy says.

    It counts as an attempt: the last allowed one goes to dead all the same.

    Raises:
        TypeError, ValueError: the delay is no length of time; that attempt has then failed by it.
    """

    def __init__(
        self, delay: timedelta | float | None = None, reason: str = "the handler asked for another attempt"
    ) -> None:
        super().__init__(reason)
        self.delay = None if delay is None else _length(delay)
        """Seconds."""


class GiveUp(EvschedError):
    """Raised by a handler: never run this job again, it goes to dead with this reason."""


def _length(delay: timedelta | float) -> float:
    given: Any = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not isinstance(given, int | float):
        raise TypeError(f"RetryLater: the delay is a timedelta or a number of seconds, not {given!r}")
    if given == math.inf:
        raise ValueError("RetryLater: the delay is infinite: raise GiveUp for a job that is never to run again")
    return float(given)


class Progress(Struct, frozen=True, omit_defaults=True):
    """How far a run is, as its handler says."""

    done: int | float  # as it was given: 3 stays 3 on its way from a process
    total: int | float | None = None
    note: str = ""


class _Noted:
    """May be awaited, and need not be."""

    def __await__(self) -> Generator[None]:
        return
        yield


_NOTED: Final = _Noted()


class CurrentJob:
    """What a handler may know of the job that it runs. Times in seconds, the due in Unix seconds."""

    __slots__ = (
        "_report",
        "attempt",
        "due",
        "id",
        "lateness",
        "meta",
        "planned",
        "queue",
        "state",
        "stopped",
        "task",
    )

    def __init__(
        self,
        id: str,  # noqa: A002 - the contract's name
        queue: str,
        task: str,
        attempt: int,
        due: float,
        planned: float,
        lateness: float,
        meta: dict[str, Any],
        state: Any = None,
        report: Callable[[Progress], None] | None = None,
    ) -> None:
        self.id = id
        self.queue = queue
        self.task = task
        self.attempt = attempt
        self.due = due
        self.planned = planned
        """The due of the first attempt; of an occurrence its planned time."""
        self.lateness = lateness
        """From the due to the handler's start, by Redis's clock."""
        self.meta = meta
        """The payload's `meta`."""
        self.state = state
        """What the app's lifespan yields; None without one, and in a task on a process."""
        self.stopped: Literal["timeout", "cancelled", "lost"] | None = None
        """Why the run is to stop. "lost": the worker stops, or the job is not its own any more."""
        self._report = report

    @property
    def cancelled(self) -> bool:
        """Whether the timeout has passed, the job was cancelled, the worker stops or has lost the job.

        A plain function looks at this, since a thread cannot be ended from outside.
        """
        return self.stopped is not None

    def progress(self, done: float, total: float | None = None, note: str = "") -> _Noted:
        """Tell how far the run is; it is kept in the job's record, and `evsched show --follow` draws it.

        Call it as often as you like: a few times a second the newest is written, and the last when the run ends. May be
        awaited, and need not be: so plain functions call it too.

        Raises:
            TypeError, ValueError: a figure is no finite number.
        """
        text = str(note)[:200].encode(errors="backslashreplace").decode()
        self.tell(Progress(_figure(done), None if total is None else _figure(total), text))
        return _NOTED

    def tell(self, progress: Progress) -> None:
        """Tell how far the run is, as a value."""
        if self._report is not None:
            self._report(progress)

    @property
    def idempotency_key(self) -> str:
        """The same in every attempt of a job or occurrence, different for the next: for calls that must count once."""
        return f"{self.id}:{self.planned:.6f}"


def _figure(value: Any) -> int | float:
    """Return a number as JSON has it: a whole one stays whole."""
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    if isinstance(value, str | bytes) or not math.isfinite(number := float(value)):
        raise ValueError(f"progress: {value!r} is no finite number")
    return number


_current: Final[contextvars.ContextVar[CurrentJob]] = contextvars.ContextVar("evsched_current_job")


def set_current_job(job: CurrentJob) -> None:
    """Make `job` what `current_job` returns in this context."""
    _current.set(job)


def current_job() -> CurrentJob:
    """Return the job that the calling handler runs.

    Raises:
        LookupError: no handler is running here.
    """
    return _current.get()


class JobLogFilter(logging.Filter):
    """Gives each line that is logged within a run `job_id`, `job_queue`, `job_task` and `job_attempt`.

    Attach it to a handler of your own logging, and name these in its format; outside a run they are "-" and 0. In a
    thread it works too; a task on a process has the job as well, and its process the logging that you set up there.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        job = _current.get(None)
        record.job_id = "-" if job is None else job.id
        record.job_queue = "-" if job is None else job.queue
        record.job_task = "-" if job is None else job.task
        record.job_attempt = 0 if job is None else job.attempt
        return True
