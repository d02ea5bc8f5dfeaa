"""What the store is given and what it answers, as values. Seconds, on Redis's clock."""

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
    """What one dispatch did. Seconds, on Redis's clock."""

    now: float
    sleep: float
    """Until the next due: 0 = more is due now, inf = nothing is scheduled."""
    moved: list[float]
    """The dues of the jobs that left the schedule."""
    buried: list[tuple[str, str]]
    """(id, reason) of those that went to dead."""
    missed: list[str]
    """The recurrences of which an occurrence was missed, once for each."""
    opens: float
    """Until the gate opens by its rate, inf = not by itself. `sleep` takes it in."""


class Fetched(Struct, frozen=True):
    """What one start handed out."""

    now: float
    more: bool
    """Ready holds more: ask again when slots are free, without blocking."""
    leased: bool
    """False: the worker had no lease any more, what it held before is others'."""
    jobs: list[FetchedJob]
    buried: list[tuple[str, str]]


class Lease(Struct, frozen=True):
    """A worker's lease as it stands."""

    worker: str
    end: bytes
    """The score as Redis wrote it: requeue compares it to the letter."""
    left: float
    """Seconds until then, on Redis's clock; negative = it has ended."""
    held: int
    """Jobs in the worker's list."""


class Agenda(Struct, frozen=True):
    """The recurrences that are to be moved on."""

    now: float
    beyond: float | None
    """The next planned time after those, Unix seconds."""
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
    """Of those on the schedule: what no dispatcher has moved on yet."""
    workers: int
    next_due: float | None
    paused: float | None
    oldest: float
    """Seconds for which the front of ready has been due, or of the backlog when ready is empty; 0 = neither has any."""


class Violation(Struct, frozen=True):
    """One thing that the audit found wrong in a queue."""

    id: bytes
    """Of the job; or the group, or the worker; empty = the queue."""
    code: str
    """What is wrong, see diagnostics/audit.py."""
    where: str
    """The place, or a detail."""
    met: bytes = b""
    """Where it was met, when the record need not name that: `processing:<worker>` or `backlog:<group>`."""


class Facts(Struct, frozen=True):
    """What Redis says of a job in one moment. Times in Unix seconds, on its clock."""

    now: float
    status: JobStatus | None
    limits: Limits
    parked: str | None
    """The group whose own limits hold the job back."""
    counts: dict[str, float]
    """What lua/explain.lua names as facts."""
    holder: str | None
