"""What a worker does, apart from its runs: it starts and stops, fetches, and keeps its lease."""

from __future__ import annotations

from evsched.events.event import Event


class WorkerStarted(Event, frozen=True, kw_only=True):
    worker: str
    queues: list[str]
    slots: int
    tasks: list[str]


class WorkerDraining(Event, frozen=True, kw_only=True):
    """A worker fetches no more jobs, and waits for those that run."""

    worker: str
    running: int
    shutdown_grace: float


class WorkerStopped(Event, frozen=True, kw_only=True):
    worker: str
    handed_back: int = 0
    """How many jobs went back to ready."""


class WorkerStuck(Event, frozen=True, kw_only=True):
    """A job ignored its timeout and the kill grace, or kept others from being stopped at theirs: the process ends."""

    worker: str
    queue: str
    id: str
    task: str
    attempt: int
    handed_back: int = 0
    """How many jobs went back to ready."""


class WorkerBlocked(Event, frozen=True, kw_only=True):
    """A worker was asked to end, but one of its jobs blocks the event loop: the process ends."""

    worker: str
    queue: str = ""
    id: str = ""
    """The job that blocks; empty = none of the runs does, but something that one of them started may."""
    task: str = ""
    attempt: int = 0
    running: list[str]
    handed_back: int = 0
    """How many jobs went back to ready."""
    traceback: str = ""
    """Where the event loop is."""


class LeaseLost(Event, frozen=True, kw_only=True):
    """A worker sent no heartbeat for longer than its lease: it cancels its runs."""

    queue: str
    worker: str
    held: int
    """How many jobs it held; an idle worker held none, so nothing is lost."""


class ControlOpened(Event, frozen=True, kw_only=True):
    """A worker has subscribed to its control channels, at its start or after it lost the connection."""


class RecurrenceDeclared(Event, frozen=True, kw_only=True):
    """A worker brought a recurrence in Redis in step with the app's code."""

    queue: str
    name: str
    done: str
    """What was done: made, changed or retired."""


class LimitDeclared(Event, frozen=True, kw_only=True):
    """A worker has set or removed a limit, because its declaration in the app's code has changed."""

    queue: str
    limit: str
    """concurrency, rate, burst or weight; of a group with `:<group>` behind it."""
    value: str
    """The number, or "none" if it was removed."""


class RevisionOutdated(Event, frozen=True, kw_only=True):
    """A worker's app declares an older revision of its recurrences than the one in force, so it changed nothing."""

    queue: str
    app: str
    revision: str
    newest: str
    """The revision in force: the number that the app gave, or when its declarations were first seen."""


class ReadyLeft(Event, frozen=True, kw_only=True):
    """A worker fetched all that it has room for, and more jobs are ready. Its first fetch is reported in any case."""

    queue: str


class ReadyDrained(Event, frozen=True, kw_only=True):
    """A worker fetched all jobs that were ready. Its first fetch is reported in any case."""

    queue: str
