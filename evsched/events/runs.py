"""What happens to the jobs that workers run. Lists of one event run parallel to its `ids`."""

from __future__ import annotations

from typing import Literal

from msgspec import field

from evsched.events.event import Event


class Started(Event, frozen=True, kw_only=True):
    """A worker fetched jobs, and each handler has made its first step."""

    queue: str
    worker: str
    ids: list[str]
    tasks: list[str]
    """The task's name in each payload, registered or not; "?" where the payload cannot be read."""
    lateness: list[float]
    """Seconds from the due to the handler."""
    attempts: list[int] = field(default_factory=list[int])


class Completed(Event, frozen=True, kw_only=True):
    """Handlers returned, and Redis has recorded it."""

    queue: str
    worker: str
    ids: list[str]
    tasks: list[str]
    seconds: list[float]
    """How long each ran."""
    attempts: list[int] = field(default_factory=list[int])


class Retrying(Event, frozen=True, kw_only=True):
    """A run failed; its job runs again after `delay` seconds."""

    queue: str
    id: str
    task: str
    attempt: int
    delay: float
    reason: str
    seconds: float | None = None
    """How long the run took; None = unknown."""
    traceback: str = ""


class JobBuried(Event, frozen=True, kw_only=True):
    """A job was given up (`dead`), or not started before the time at which it expires (`expired`)."""

    queue: str
    id: str
    task: str = "?"
    attempt: int = 0
    """0 = no worker ever fetched it."""
    reason: str
    outcome: Literal["dead", "expired"] = "dead"
    seconds: float | None = None
    """How long its last run took; None = no handler ran."""
    traceback: str = ""


class JobAborted(Event, frozen=True, kw_only=True):
    """A run ended because its job was cancelled."""

    queue: str
    id: str
    task: str = "?"
    """"?" if the worker died or stopped before the run ended."""
    attempt: int = 0
    seconds: float | None = None
    """How long it ran; None = no handler ran."""


class JobDeferred(Event, frozen=True, kw_only=True):
    """A job cannot begin now: it is scheduled for when its window opens, or for soon when its code is not there."""

    queue: str
    id: str
    task: str
    due: float
    """When it is judged again, Unix seconds."""
    cause: Literal["window", "code", "task"] = "window"
    """Its window is closed; the code on disk has no handler for it; the worker's app does not have its task."""


class JobSnoozed(Event, frozen=True, kw_only=True):
    """A handler asked to run later, or there was no memory for its message; the attempt does not count."""

    queue: str
    id: str
    task: str
    attempt: int
    reason: str
    """For how long or until when, and what the handler says of it."""
    seconds: float | None = None
    """How long it ran; None = unknown."""


class HandlerNotFound(Event, frozen=True, kw_only=True):
    """A fresh process does not find the handler of a task: the code on disk is not what the worker runs."""

    queue: str
    task: str
    reason: str


class TaskUnknown(Event, frozen=True, kw_only=True):
    """A worker fetched a job whose task its app does not have. Told once for each task."""

    queue: str
    task: str
    reason: str
    grace: float
    """Seconds for which such jobs wait for another worker; 0 = they are given up at once."""


Cause = Literal["died", "stopped", "busy"]


class JobsRequeued(Event, frozen=True, kw_only=True):
    """A worker's jobs went back to ready: the worker died, stops, or had no free slot for a job it had fetched."""

    queue: str
    worker: str
    ids: list[str]
    cause: Cause
    reason: str


class RunLost(Event, frozen=True, kw_only=True):
    """A run ended, and Redis refused its end: the run did not belong to its worker any more."""

    queue: str
    worker: str
    id: str
    task: str
    attempt: int
    end: Literal["discarded", "unknown"] = "discarded"
    """What became of its outcome. "discarded": the worker's lease was lost before. "unknown": the worker had sent the
    outcome before, without a reply, and the record does not tell whether it was written then."""
