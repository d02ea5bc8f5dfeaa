"""What can happen, as values, and the one way in which it is passed on.

A loop emits an event once a fact has become true; the log, the metrics and the tests subscribe. A script that moves a
batch is one event. Fields are keyword-only; one that is not always known has a default. Lengths are in seconds;
lateness compares two times of Redis's clock.

Start with `event.py`; each other module holds the events of one part of the system.
"""

from evsched.events.dispatching import (
    ClockJumped,
    Dispatched,
    DispatcherStarted,
    Missed,
    NotificationsMissing,
    NotificationsProven,
    QueueFound,
    Reason,
    Recurred,
    RecurrenceBroken,
    Rewound,
    Subscribed,
    SubscriptionLost,
    Woken,
)
from evsched.events.event import Emit, Event, Events, Subscriber
from evsched.events.processes import (
    ChildCannotStart,
    ChildEnded,
    ChildKilled,
    ChildStarted,
    EndedAtOnce,
    EndedByForce,
    HandlersLeft,
    Listening,
)
from evsched.events.redis_state import CallAccepted, CallRefused, RedisDown, RedisFailed, RedisUnsafe, RedisUp
from evsched.events.runs import (
    Cause,
    Completed,
    JobAborted,
    JobBuried,
    JobDeferred,
    Requeued,
    Retrying,
    RunLost,
    Started,
)
from evsched.events.workers import (
    ControlOpened,
    LeaseLost,
    ReadyDrained,
    ReadyLeft,
    RecurrenceDeclared,
    WorkerBlocked,
    WorkerDraining,
    WorkerStarted,
    WorkerStopped,
    WorkerStuck,
)

__all__ = [
    "CallAccepted",
    "CallRefused",
    "Cause",
    "ChildCannotStart",
    "ChildEnded",
    "ChildKilled",
    "ChildStarted",
    "ClockJumped",
    "Completed",
    "ControlOpened",
    "Dispatched",
    "DispatcherStarted",
    "Emit",
    "EndedAtOnce",
    "EndedByForce",
    "Event",
    "Events",
    "HandlersLeft",
    "JobAborted",
    "JobBuried",
    "JobDeferred",
    "LeaseLost",
    "Listening",
    "Missed",
    "NotificationsMissing",
    "NotificationsProven",
    "QueueFound",
    "ReadyDrained",
    "ReadyLeft",
    "Reason",
    "Recurred",
    "RecurrenceBroken",
    "RecurrenceDeclared",
    "RedisDown",
    "RedisFailed",
    "RedisUnsafe",
    "RedisUp",
    "Requeued",
    "Retrying",
    "Rewound",
    "RunLost",
    "Started",
    "Subscribed",
    "Subscriber",
    "SubscriptionLost",
    "Woken",
    "WorkerBlocked",
    "WorkerDraining",
    "WorkerStarted",
    "WorkerStopped",
    "WorkerStuck",
]
