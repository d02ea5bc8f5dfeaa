"""What can happen, as values, and the one seam through which it is told.

A loop that has just made a fact true emits it once; logs, metrics and tests listen. A verb that moves a batch is one
event. Lateness and other lengths are in seconds, by Redis's clock where a due is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct


class Event(Struct, frozen=True):
    """A fact just made true."""


class DispatcherStarted(Event, frozen=True):
    server: str
    queues: list[str]


class RedisUnsafe(Event, frozen=True):
    """This Redis may lose jobs by how it is set: said once, at the start."""

    what: str
    mend: str


class QueueFound(Event, frozen=True):
    queue: str


class Subscribed(Event, frozen=True):
    """Redis confirmed the subscription; the first one, or one after a loss."""

    again: bool


class ControlOpened(Event, frozen=True):
    """A worker hears its control channels; at its start, and after each loss of the link."""


class SubscriptionLost(Event, frozen=True):
    reason: str


class NotificationsMissing(Event, frozen=True):
    """Redis tells no keyspace events: the dispatcher works by its safety cap alone."""

    mend: str


class NotificationsProven(Event, frozen=True):
    """A canary's keyspace event arrived."""


Reason = Literal["event", "timer", "safety", "reconnect"]


class Woken(Event, frozen=True):
    """A dispatcher looked at a queue's schedule, why, and what it found."""

    queue: str
    reason: Reason
    found: int


class Dispatched(Event, frozen=True):
    """Jobs left the schedule."""

    queue: str
    lateness: list[float]


class Started(Event, frozen=True):
    """A worker was handed jobs, and has made the first step with each. All lists go with `ids`."""

    queue: str
    worker: str
    ids: list[str]
    tasks: list[str]
    """What the payloads name, registered or not; "?" where one cannot be read."""
    lateness: list[float]
    """From the due to the handler."""
    attempts: list[int] = []


class Completed(Event, frozen=True):
    """Runs returned, and that is written. All lists go with `ids`; `seconds` is how long each ran."""

    queue: str
    worker: str
    ids: list[str]
    tasks: list[str]
    seconds: list[float]
    attempts: list[int] = []


class Retrying(Event, frozen=True):
    """A run failed after `seconds`; its job runs again after `delay` seconds."""

    queue: str
    id: str
    task: str
    attempt: int
    delay: float
    reason: str
    seconds: float | None
    traceback: str = ""


class JobBuried(Event, frozen=True):
    """A job was given up, or not started by the time that it names: `outcome` tells them apart."""

    queue: str
    id: str
    task: str
    attempt: int
    """0 = it never came to a worker."""
    reason: str
    outcome: Literal["dead", "expired"]
    seconds: float | None = None
    """How long its last run took; None = no handler ran."""
    traceback: str = ""


class JobAborted(Event, frozen=True):
    """A run ended since its job was cancelled."""

    queue: str
    id: str
    task: str
    attempt: int
    seconds: float | None


class JobDeferred(Event, frozen=True):
    """A job's window is closed: it comes back when that opens, Unix seconds."""

    queue: str
    id: str
    task: str
    due: float


class RecurrenceDeclared(Event, frozen=True):
    """A worker brought a recurrence of its app in step with the code: "made", "changed" or "removed"."""

    queue: str
    name: str
    done: str


class Recurred(Event, frozen=True):
    """Occurrences of recurrences went on the schedule, ahead of their time."""

    queue: str
    ids: list[str]


class Missed(Event, frozen=True):
    """Planned times of a recurrence passed without an occurrence."""

    queue: str
    name: str
    count: int


class ClockJumped(Event, frozen=True):
    """Redis's clock was set while this process looked on; `seconds` ahead, or back where they are negative."""

    seconds: float


class Rewound(Event, frozen=True):
    """Recurrences had been moved on by a clock that was set back since, and recur from now on."""

    queue: str
    names: list[str]


class RecurrenceBroken(Event, frozen=True):
    """A recurrence's record cannot be read: it recurs no more until it is declared anew."""

    queue: str
    name: str
    reason: str


Cause = Literal["died", "stopped", "busy"]


class Requeued(Event, frozen=True):
    """What a worker held went back to ready: it died, it stops, or it had no slot for a job that it took."""

    queue: str
    worker: str
    ids: list[str]
    cause: Cause
    reason: str


class RunLost(Event, frozen=True):
    """A run ended after its job had become another's: its outcome was not written."""

    queue: str
    worker: str
    id: str
    task: str
    attempt: int


class LeaseLost(Event, frozen=True):
    """A worker stayed silent for longer than its lease: what it ran is cancelled."""

    queue: str
    worker: str


class WorkerStarted(Event, frozen=True):
    worker: str
    queues: list[str]
    slots: int
    tasks: list[str]


class WorkerDraining(Event, frozen=True):
    worker: str
    running: int
    shutdown_grace: float


class WorkerStopped(Event, frozen=True):
    worker: str
    handed_back: int


class WorkerStuck(Event, frozen=True):
    """A job outlived its timeout and grace and does not yield: the process ends."""

    worker: str
    queue: str
    id: str
    task: str
    attempt: int


class WorkerBlocked(Event, frozen=True):
    """A worker was asked to end, and its jobs, `running`, block its event loop: the process ends."""

    worker: str
    running: list[str]
    handed_back: int


class EndedByForce(Event, frozen=True):
    """The process was asked to end, and did not within its bound: it is ended."""

    seconds: float


class EndedAtOnce(Event, frozen=True):
    """The process was asked to end a second time: it is ended, and what it held waits for the end of its lease."""


class ReadyLeft(Event, frozen=True):
    """A worker has taken what it can for now, and more is ready."""

    queue: str


class ReadyDrained(Event, frozen=True):
    """A worker has taken all that was ready."""

    queue: str


class ChildStarted(Event, frozen=True):
    """A parent started a worker process."""

    number: int
    pid: int


class ChildEnded(Event, frozen=True):
    number: int
    pid: int
    code: int


class ChildCannotStart(Event, frozen=True):
    """The first worker process says that it cannot start: the others could not either, so their parent ends."""

    number: int
    code: int


class ChildKilled(Event, frozen=True):
    """A worker process did not end within its bound: its parent killed it."""

    number: int
    pid: int


class RedisFailed(Event, frozen=True):
    """A loop's command failed, whose repetition may fail again; `kind` is that of a StoreError."""

    kind: str


class RedisDown(Event, frozen=True):
    """Redis is away, or cannot serve: said once by each loop, at the first failure."""

    who: str
    reason: str
    kind: str = "connection"
    """That of the StoreError: what tells an absent Redis from one that answers and cannot serve."""


class RedisUp(Event, frozen=True):
    """Said once, with how long it was down."""

    who: str
    seconds: float


class CallRefused(Event, frozen=True):
    """Redis serves, and refuses what a loop asks: a bug, bad data or a missing right. Said once."""

    who: str
    queue: str
    """Empty: it is of no one queue."""
    reason: str


class CallAccepted(Event, frozen=True):
    """What was refused passes again. Said once, with how long it did not."""

    who: str
    queue: str
    seconds: float


class Listening(Event, frozen=True):
    """Metrics, liveness and readiness are served."""

    url: str


Subscriber = Callable[[Event], None]
Emit = Callable[[Event], None]


class Events:
    """Hands each event to all listeners, at once and in order. A listener must be quick and must not raise."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Hand events to `subscriber` too, from now on."""
        self._subscribers.append(subscriber)

    def emit(self, event: Event) -> None:
        """Tell a fact just made true."""
        for subscriber in self._subscribers:
            subscriber(event)
