"""What a dispatcher does: it hears of changes, moves due jobs, and puts the jobs of recurrences on the schedule."""

from __future__ import annotations

from typing import Literal

from evsched.events.event import Event


class DispatcherStarted(Event, frozen=True, kw_only=True):
    server: str
    queues: list[str]


class QueueFound(Event, frozen=True, kw_only=True):
    """A dispatcher serves a queue from now on."""

    queue: str


class ShardsFound(Event, frozen=True, kw_only=True):
    """A process has learned from Redis that a queue has more shards than it knew."""

    queue: str
    count: int


class ShardsUnknown(Event, frozen=True, kw_only=True):
    """A process that started cannot read how many shards queues have. It tries again."""

    reason: str


class Subscribed(Event, frozen=True, kw_only=True):
    """Redis confirmed the subscription to keyspace events."""

    again: bool = False
    """An earlier subscription was lost."""


class SubscriptionLost(Event, frozen=True, kw_only=True):
    reason: str


class NotificationsMissing(Event, frozen=True, kw_only=True):
    """Redis sends no keyspace events, so new jobs are found by the safety cap alone."""

    mend: str
    """The command that sets this right."""


class NotificationsProven(Event, frozen=True, kw_only=True):
    """A canary's keyspace event arrived."""


Reason = Literal["event", "timer", "safety", "reconnect"]


class Woken(Event, frozen=True, kw_only=True):
    """A dispatcher ran `dispatch` for a queue."""

    queue: str
    reason: Reason
    found: int = 0
    """How many jobs were due."""


class Dispatched(Event, frozen=True, kw_only=True):
    """Jobs left the schedule."""

    queue: str
    lateness: list[float]
    """Seconds from the due of each job to its dispatch."""


class Recurred(Event, frozen=True, kw_only=True):
    """Occurrences of recurrences were put on the schedule, ahead of their time."""

    queue: str
    ids: list[str]


class Missed(Event, frozen=True, kw_only=True):
    """Planned times of a recurrence passed without an occurrence."""

    queue: str
    name: str
    count: int


class MoveFinished(Event, frozen=True, kw_only=True):
    """Jobs moved from one shard to another: an interrupted command had begun that. `back`: these could not move."""

    queue: str
    to: str
    moved: int
    back: int


class ClockJumped(Event, frozen=True, kw_only=True):
    """Redis's clock was set, by so many seconds: forward, or backward if negative."""

    seconds: float


class Rewound(Event, frozen=True, kw_only=True):
    """Recurrences that a clock set too far ahead had moved into the future recur from now on again."""

    queue: str
    names: list[str]


class PauseOver(Event, frozen=True, kw_only=True):
    """The pause of a recurrence had an end, which has come: it recurs again."""

    queue: str
    name: str


class RecurrencePaused(Event, frozen=True, kw_only=True):
    """A recurrence was paused, since as many runs in a row have failed as its `pause_after` allows."""

    queue: str
    name: str
    why: str


class RecurrenceBroken(Event, frozen=True, kw_only=True):
    """A recurrence cannot be read, or names what does not exist: it does not recur until that is mended."""

    queue: str
    name: str
    reason: str
