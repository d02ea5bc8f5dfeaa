"""The replies, as structs. The OpenAPI document is made from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

from evsched.client.recurrence_operations import RecurrenceStatus
from evsched.jobs.record import Place
from evsched.store.operator_calls import Match


class Reply(Struct, frozen=True):
    """An answer: its status, its body if it has one, and headers."""

    status: int
    body: Any = None
    headers: Mapping[str, str] = {}


class Scheduled(Struct, frozen=True):
    """A job that is on the schedule. `due` in Unix seconds."""

    id: str
    queue: str
    due: float | None


class ScheduledJobs(Struct, frozen=True):
    """The jobs of a request, in its order."""

    jobs: list[Scheduled]


class Stopping(Struct, frozen=True):
    """A job that a worker holds, and was asked to stop."""

    id: str
    place: Place


class Outcome(Struct, frozen=True):
    """How a job has ended: `outcome` is done, dead, expired or cancelled; null = it has not ended."""

    id: str
    outcome: str | None
    result: Any = None
    reason: str | None = None


class Explained(Struct, frozen=True):
    """Why a job has not run yet: a sentence, and the facts behind it, as texts for people."""

    id: str
    sentence: str
    facts: dict[str, str]


class Jobs(Struct, frozen=True):
    """The jobs that were found. `complete`: these are all there are, and all shards of the queue could be read."""

    jobs: list[Match]
    complete: bool


class QueueCounts(Struct, frozen=True, kw_only=True):
    """How many jobs a queue has in each place, and who serves it. Times in Unix seconds."""

    queue: str
    schedule: int
    backlog: int
    ready: int
    processing: int
    dead: int
    overdue: int
    """Jobs on the schedule that are due, but not dispatched yet."""
    oldest: float
    """Seconds for which the first job that waits for a worker has been due."""
    workers: int
    next_due: float | None
    paused: float | None
    """Since when the queue is paused."""
    paused_until: float | None
    """When the pause ends by itself."""
    paused_why: str | None


class Queues(Struct, frozen=True):
    """The queues, sorted by name. `complete`: these are all there are, and all could be read with their shards."""

    queues: list[QueueCounts]
    complete: bool


class Recurrences(Struct, frozen=True):
    """The recurrences, the next to recur first. `complete`: these are all there are."""

    recurrences: list[RecurrenceStatus]
    complete: bool


class Changed(Struct, frozen=True):
    """The result of putting a recurrence. A changed one that is paused stays so."""

    name: str
    change: Literal["made", "changed", "same"]
    paused: bool


class Resumed(Struct, frozen=True):
    """Whether a recurrence that was resumed recurs: it does not if the code no longer declares it."""

    name: str
    recurs: bool


class Triggered(Struct, frozen=True):
    """The job of a run that was requested. If it is not `begun`, it waits for the end of another."""

    id: str
    begun: bool


class QueuePaused(Struct, frozen=True):
    """Since when a queue is paused, in Unix seconds."""

    queue: str
    since: float


class QueueResumed(Struct, frozen=True):
    """Since when a queue that was resumed had been paused; null = it was not paused."""

    queue: str
    since: float | None


class QueueLimit(Struct, frozen=True):
    """A limit. `value` null: the code declares it, and it was removed by hand. `group` null: of the whole queue."""

    group: str | None
    limit: str
    value: float | None
    declared: float | None
    """The values in the code."""
    app: str | None


class QueueLimits(Struct, frozen=True):
    """The limits of a queue."""

    queue: str
    limits: list[QueueLimit]


class DeadChanged(Struct, frozen=True):
    """How many dead jobs were revived or dropped. If it is not `complete`, the same request does the rest."""

    changed: int
    complete: bool


class CalendarDays(Struct, frozen=True):
    """A calendar: its dates and ranges of dates."""

    name: str
    days: list[str]


class Calendars(Struct, frozen=True):
    """The calendars of a queue, sorted by name."""

    calendars: list[CalendarDays]


class CalendarSet(Struct, frozen=True):
    """A calendar that was set, and how many recurrences were planned again."""

    name: str
    planned: int


class NamedWindow(Struct, frozen=True):
    """A named window."""

    name: str
    window: str


class Windows(Struct, frozen=True):
    """The named windows of a queue, sorted by name."""

    windows: list[NamedWindow]


class WindowSet(Struct, frozen=True):
    """A window that was set, and how many jobs that waited for it are checked again."""

    name: str
    checked: int


class Health(Struct, frozen=True):
    """Whether the server is alive or ready; `reason` says why it is not."""

    ok: bool
    reason: str | None = None
