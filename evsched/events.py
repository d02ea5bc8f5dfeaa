"""What can happen, as values, and how it is passed on.

A loop emits an event once a fact has become true; the log, the metrics and the tests subscribe. A script that moves a
batch is one event. Fields are keyword-only; one that is not always known has a default. Lengths are in seconds;
lateness compares two times of Redis's clock. Lists of one event about runs are parallel to its `ids`.

The events come in the order: Redis, dispatchers, workers, runs, processes, the ledger, the doctor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct, field


class Event(Struct, frozen=True, kw_only=True):
    """A fact that has just become true."""


Subscriber = Callable[[Event], None]
Emit = Callable[[Event], None]


class Events:
    """Passes each event to all subscribers, at once and in order. A subscriber must be quick and must not raise."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Pass events to `subscriber` too, from now on."""
        self._subscribers.append(subscriber)

    def emit(self, event: Event) -> None:
        """Pass an event to all subscribers."""
        for subscriber in self._subscribers:
            subscriber(event)


class RedisUnsafe(Event, frozen=True, kw_only=True):
    """Redis is configured so that it may lose jobs. Emitted once, at the start."""

    what: str
    mend: str
    """The command that sets this right."""


class LeaseDiffers(Event, frozen=True, kw_only=True):
    """The lease in the settings of a process is not the one in Redis, which it uses. Emitted at the start."""

    given: float
    lease: float


class LeaseChanged(Event, frozen=True, kw_only=True):
    """A process has read a new lease, or uses it alone from now on."""

    lease: float
    settles_in: float
    """Seconds during which other processes may still have the one before; 0 = none has it any more."""


class RedisFailed(Event, frozen=True, kw_only=True):
    """A command failed; `kind` is that of the StoreError."""

    kind: str


class RedisDown(Event, frozen=True, kw_only=True):
    """Redis cannot be reached, or cannot serve. Each loop emits it once, at the first failure."""

    who: str
    reason: str
    kind: str = "connection"
    """That of the StoreError: it tells a Redis that is absent from one that answers and cannot serve."""


class RedisUp(Event, frozen=True, kw_only=True):
    """Redis serves again. Each loop emits it once."""

    who: str
    seconds: float
    """How long it was down."""


class NodeReleased(Event, frozen=True, kw_only=True):
    """A loop that Redis did not serve has ended: another node of the cluster has its queues, or the process stops."""

    who: str
    seconds: float
    """How long Redis had not served it."""


class CallRefused(Event, frozen=True, kw_only=True):
    """Redis serves, but refuses what a loop asks: bad data, a missing right, a bug, or full memory. Emitted once."""

    who: str
    queue: str = ""
    """Empty = the call concerns no single queue."""
    reason: str
    kind: str = ""
    """That of the StoreError; "oom" = Redis's memory is full."""


class CallAccepted(Event, frozen=True, kw_only=True):
    """Redis accepts what it had refused. Emitted once."""

    who: str
    queue: str = ""
    seconds: float
    """How long it refused."""
    kind: str = ""
    """That of the last refusal."""


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


class Listening(Event, frozen=True, kw_only=True):
    """The process serves metrics, liveness and readiness."""

    url: str


class ApiStarted(Event, frozen=True, kw_only=True):
    """The process answers requests of the HTTP interface."""

    url: str


class EndedByForce(Event, frozen=True, kw_only=True):
    """The process did not end in time after it was asked to: it is ended now."""

    seconds: float
    """Since it was asked to."""


class EndedAtOnce(Event, frozen=True, kw_only=True):
    """A second signal ends the process now: its jobs start elsewhere when its lease ends."""


class HandlersLeft(Event, frozen=True, kw_only=True):
    """Processes that handlers had started with `multiprocessing`, and not ended, were ended with their worker."""

    processes: int


class ChildStarted(Event, frozen=True, kw_only=True):
    """A parent started a worker process."""

    number: int
    pid: int


class ChildNotStarted(Event, frozen=True, kw_only=True):
    """The system could not start a worker process; its parent tries again."""

    number: int
    reason: str


class ChildEnded(Event, frozen=True, kw_only=True):
    number: int
    pid: int
    code: int


class ChildCannotStart(Event, frozen=True, kw_only=True):
    """The first worker process cannot start. The others could not either, so the parent ends."""

    number: int
    code: int


class ChildKilled(Event, frozen=True, kw_only=True):
    """A worker process did not end in time: its parent killed it."""

    number: int
    pid: int = 0


class ParentWaits(Event, frozen=True, kw_only=True):
    """A parent without worker processes waits for jobs."""

    queues: list[str]


class ParentWoken(Event, frozen=True, kw_only=True):
    """A queue needs a worker process: a parent without any starts one."""

    queue: str
    need: str = "ready"
    """A job is `ready` that no worker fetches; what the app declares was lost: `undeclared`; or a task of the app is
    `sought`, because only workers that do not have it got its jobs."""


class Reloading(Event, frozen=True, kw_only=True):
    """A parent got SIGHUP: it replaces its worker processes, one by one."""

    processes: int


class Reloaded(Event, frozen=True, kw_only=True):
    """All worker processes were replaced."""

    processes: int
    seconds: float


class ReloadFailed(Event, frozen=True, kw_only=True):
    """A worker process with the new code did not become ready: those that are not replaced yet go on."""

    number: int
    reason: str
    replaced: int
    """How many were replaced before."""
    processes: int


class JobsPutBack(Event, frozen=True, kw_only=True):
    """The parent put back what the worker processes held that ran here before and died; it has no metrics itself."""

    queue: str
    count: int


class LedgerStarted(Event, frozen=True, kw_only=True):
    server: str
    database: str
    """Which server has the tables."""


class EpochFound(Event, frozen=True, kw_only=True):
    """Redis has other data than before, or the relay has just started."""

    epoch: str


class RelayWaits(Event, frozen=True, kw_only=True):
    """A relay schedules nothing, because another one of its database serves another Redis.

    It ends, as the other may go or change over, when the relay finds an epoch, or schedules rows.
    """

    reason: str


class RowsScheduled(Event, frozen=True, kw_only=True):
    """Rows were scheduled, and that is committed."""

    queue: str
    count: int
    again: bool
    """They had been scheduled in another epoch."""


class RowsRefused(Event, frozen=True, kw_only=True):
    """Rows cannot be scheduled: they are dead, and each has the reason. That is committed."""

    queue: str
    count: int
    first: str
    """The id and the reason of one of them."""


class RowsSetAside(Event, frozen=True, kw_only=True):
    """Redis does not take these rows though it takes others: they wait, and are tried again later."""

    queue: str
    count: int
    first: str
    """The id, or the name of a recurrence, and the reason of one of them."""


class RowsDeclared(Event, frozen=True, kw_only=True):
    """Rows of recurrences were declared, or removed; or they got the reason why they cannot be."""

    queue: str
    count: int


class EndsWritten(Event, frozen=True, kw_only=True):
    """Jobs have ended, and their rows say so."""

    queue: str
    count: int


class JobsWithdrawn(Event, frozen=True, kw_only=True):
    """Redis had jobs again that have ended, as their rows say: they were removed from a place, or asked to stop."""

    queue: str
    count: int


class LedgerDown(Event, frozen=True, kw_only=True):
    """The database does not serve. Each loop emits it at the first failure, and again for each other reason."""

    who: str
    reason: str


class LedgerUp(Event, frozen=True, kw_only=True):
    """The database serves again. Each loop emits it once."""

    who: str
    seconds: float
    """How long it did not."""


class DoctorStarted(Event, frozen=True, kw_only=True):
    """A doctor begins to watch. It rests for `interval` seconds after each examination."""

    interval: float


class Examined(Event, frozen=True, kw_only=True):
    """Redis and its queues were checked. The lists run parallel: one entry for each fault and warning."""

    checks: list[str]
    levels: list[str]
