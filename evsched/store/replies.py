"""What the calls of the store take and return, as values. Times in seconds, by Redis's clock."""

from __future__ import annotations

from msgspec import Struct

from evsched.jobs.job import FetchedJob, JobStatus
from evsched.store.limits import Limits


class New(Struct, frozen=True):
    """A job to enqueue. `due` in Unix seconds, or `delay` in seconds from Redis's now."""

    id: str
    payload: bytes
    priority: int | None = None
    group: str | None = None
    due: float | None = None
    delay: float = 0.0


class Step(Struct, frozen=True):
    """What one dispatch did."""

    now: float
    sleep: float
    """Seconds until the next job is due or a rate opens the gate: 0 if more is due now, inf if there is neither."""
    moved: list[float]
    """The dues of the jobs that left the schedule."""
    buried: list[tuple[str, str]]
    """(id, reason) of the jobs that went to dead."""
    missed: list[str]
    """The names of recurrences that missed occurrences, once for each occurrence."""
    opens: float
    """Seconds until a rate opens the gate; inf if it is open, or closed for another reason. `sleep` is no longer."""


class Fetched(Struct, frozen=True):
    """What one `start` handed to a worker."""

    now: float
    more: bool
    """Ready holds more jobs: ask again when slots are free, without blocking."""
    leased: bool
    """False: the worker's lease was gone, and what it held before belongs to others."""
    jobs: list[FetchedJob]
    buried: list[tuple[str, str]]


class Lease(Struct, frozen=True):
    """A worker's lease."""

    worker: str
    end: bytes
    """The score as Redis returned it: `requeue` compares the text."""
    left: float
    """Seconds until its end; negative if it has ended."""
    held: int
    """Jobs in the worker's list."""


class Agenda(Struct, frozen=True):
    """The recurrences that fall due now."""

    now: float
    beyond: float | None
    """The next planned time after those, in Unix seconds."""
    rows: list[tuple[str, bytes, dict[str, bytes]]]
    """(name, score as it is stored, record)."""


class QueueKeys(Struct, frozen=True):
    """What a slice of the keys tells of queues."""

    next: int
    """The cursor of the next slice; 0 = this was the last."""
    queues: set[str]
    held: set[tuple[str, str]]
    """(queue, worker) of each processing list."""


class QueueStats(Struct, frozen=True):
    """How many jobs a queue has, by place. Times in Unix seconds."""

    now: float
    places: dict[str, int]
    due: int
    """How many jobs on the schedule are due, but not dispatched yet."""
    workers: int
    next_due: float | None
    paused: float | None
    oldest: float
    """Seconds for which the first job in ready, else in the backlog, has been due; 0 if both are empty."""


class Violation(Struct, frozen=True):
    """Something that the audit found wrong in a queue."""

    id: bytes
    """Of the job, group or worker; empty for the queue."""
    code: str
    """What is wrong, see diagnostics/audit.py."""
    where: str
    """The place, or a detail."""
    met: bytes = b""
    """The list where the id was found, if the record may not name it: `processing:<worker>` or `backlog:<group>`."""


class Facts(Struct, frozen=True):
    """What Redis knows of a job at one moment, for `evsched explain`. Times in Unix seconds."""

    now: float
    status: JobStatus | None
    limits: Limits
    parked: str | None
    """The group whose own limits hold the job back."""
    counts: dict[str, float]
    """The figures that lua/explain.lua returns."""
    holder: str | None
