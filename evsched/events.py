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


class QueueFound(Event, frozen=True):
    queue: str


class Subscribed(Event, frozen=True):
    """Redis confirmed the subscription; the first one, or one after a loss."""

    again: bool


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
    """A worker was handed jobs."""

    queue: str
    worker: str
    ids: list[str]
    lateness: list[float]


class Completed(Event, frozen=True):
    queue: str
    worker: str
    ids: list[str]


class Retrying(Event, frozen=True):
    """A run failed; its job runs again after `delay` seconds."""

    queue: str
    id: str
    task: str
    attempt: int
    delay: float
    reason: str


class Buried(Event, frozen=True):
    """A job was given up, or not started by the time that it names: `outcome` tells them apart."""

    queue: str
    id: str
    task: str
    reason: str
    outcome: Literal["dead", "expired"]


class Aborted(Event, frozen=True):
    """A run ended since its job was cancelled."""

    queue: str
    id: str
    task: str


class Deferred(Event, frozen=True):
    """A job's window is closed: it comes back when that opens, Unix seconds."""

    queue: str
    id: str
    task: str
    due: float


class Declared(Event, frozen=True):
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


class RecurrenceBroken(Event, frozen=True):
    """A recurrence's record cannot be read: it recurs no more until it is declared anew."""

    queue: str
    name: str
    reason: str


class Requeued(Event, frozen=True):
    """What a worker held went back to ready."""

    queue: str
    worker: str
    ids: list[str]
    reason: str


class RunLost(Event, frozen=True):
    """A run ended after its job had become another's: its outcome was not written."""

    queue: str
    worker: str
    id: str


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
    grace: float


class WorkerStopped(Event, frozen=True):
    worker: str
    handed_back: int


class WorkerStuck(Event, frozen=True):
    """A job outlived its timeout and grace and does not yield: the process ends."""

    worker: str
    id: str
    task: str


class RedisDown(Event, frozen=True):
    """Said once, at the first failure."""

    who: str
    reason: str


class RedisUp(Event, frozen=True):
    """Said once, with how long it was down."""

    who: str
    seconds: float


Listener = Callable[[Event], None]
Emit = Callable[[Event], None]


class Events:
    """Hands each event to all listeners, at once and in order. A listener must be quick and must not raise."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = list(listeners)

    def listen(self, listener: Listener) -> None:
        """Hand events to `listener` too, from now on."""
        self._listeners.append(listener)

    def emit(self, event: Event) -> None:
        """Tell a fact just made true."""
        for listener in self._listeners:
            listener(event)
