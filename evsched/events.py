"""Events as values, and how they reach subscribers. The events here are about dispatchers, workers and runs.

A loop emits an event when a fact has become true; the log, the metrics and the tests subscribe. A script that moves a
batch is one event. An event's class also describes its log line and its counter. Lengths are in seconds; lateness
compares two times of Redis's clock. The lists of an event about runs are parallel to its `ids`.

`process_events.py` has the events about Redis, processes, the ledger and the doctor.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from typing import ClassVar, Final, Literal

from msgspec import Struct, field

LATENESS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""Upper bounds of buckets, in seconds: from the lateness of a good start to one that needs somebody's attention."""


class Metric(Struct, frozen=True):
    """A metric for Prometheus.

    A counter on the class of an event grows by the event's `count`, or by 1 if the event has none. The values of its
    labels are the event's attributes of the same names. A label `queue` comes first.
    """

    name: str
    """The name after `evsched_`, of a counter without `_total`."""
    what: str
    labels: tuple[str, ...] = ("queue",)
    bounds: tuple[float, ...] = ()
    """The upper bounds of a histogram's buckets, in seconds."""


class Event(Struct, frozen=True, kw_only=True):
    """A fact that has just become true."""

    level: ClassVar[int] = INFO
    """The level of the log line."""
    line: ClassVar[str] = ""
    """The log line, with names of fields in braces; empty = no line."""
    counter: ClassVar[Metric | None] = None
    """The counter that grows with each event, if `telemetry/metrics.py` has no function for this event."""

    def log_line(self) -> tuple[int, str]:
        """Return the level and the line. Events whose line depends on their fields override it."""
        return self.level, self.line


class QueueEvent(Event, frozen=True, kw_only=True):
    """A fact about a queue."""

    queue: str


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


class DispatcherStarted(Event, frozen=True, kw_only=True):
    line = "dispatcher started on {server}, queues: {queues}"

    server: str
    queues: list[str]


class QueueFound(QueueEvent, frozen=True, kw_only=True):
    """A dispatcher serves a queue from now on."""

    line = "queue {queue} found"


Reason = Literal["event", "timer", "safety", "reconnect"]


class Woken(QueueEvent, frozen=True, kw_only=True):
    """A dispatcher ran `dispatch` for a queue."""

    reason: Reason
    found: int = 0
    """How many jobs were due."""


class Dispatched(QueueEvent, frozen=True, kw_only=True):
    """Jobs left the schedule."""

    lateness: list[float]
    """Seconds from the due of each job to its dispatch."""


class Recurred(QueueEvent, frozen=True, kw_only=True):
    """Occurrences of recurrences were put on the schedule, ahead of their time."""

    ids: list[str]


class ChoresDone(QueueEvent, frozen=True, kw_only=True):
    """Chores of batches were done. Ends that are carried to another server are done twice."""

    steps: list[str]


class Missed(QueueEvent, frozen=True, kw_only=True):
    """Planned times of a recurrence passed without an occurrence."""

    level = WARNING
    line = "queue {queue}: recurrence {name} missed {count} occurrences"
    counter = Metric(
        "recurrences_missed",
        "Occurrences of recurrences that were skipped: they were late, or the one before had not ended.",
    )

    name: str
    count: int


class MoveFinished(QueueEvent, frozen=True, kw_only=True):
    """Jobs of an interrupted move between shards have moved to shard `to`, or are back where they were."""

    line = "queue {queue}: {moved} jobs have moved to {to}, and {back} are back, after an interrupted move"

    to: str
    moved: int
    back: int


class PauseOver(QueueEvent, frozen=True, kw_only=True):
    """The pause of a recurrence has reached its end: it recurs again."""

    line = "queue {queue}: recurrence {name} recurs again, its pause is over"

    name: str


class RecurrenceBroken(QueueEvent, frozen=True, kw_only=True):
    """A recurrence cannot be read, or names something that does not exist: it makes no jobs until it is corrected."""

    level = ERROR
    line = "queue {queue}: recurrence {name} makes no jobs: {reason}"
    counter = Metric(
        "recurrences_broken", "Recurrences that cannot recur: what they name does not exist, or is not valid."
    )

    name: str
    reason: str


class RecurrencePaused(QueueEvent, frozen=True, kw_only=True):
    """A recurrence was paused, because `pause_after` of its runs in a row have failed."""

    level = WARNING
    line = (
        "queue {queue}: recurrence {name} is paused: {why}. Find out why (evsched explain {name} --queue {queue}), "
        "then: evsched recurrences resume {name} --queue {queue}"
    )
    counter = Metric("recurrences_paused", "Recurrences that were paused, because too many runs in a row had failed.")

    name: str
    why: str


class ClockJumped(Event, frozen=True, kw_only=True):
    """Redis's clock was set forward by this many seconds; negative = backward."""

    level = ERROR
    line = "Redis's clock jumped by {seconds:+.1f} s: due times follow it"
    counter = Metric("redis_clock_jumps", "Times that Redis's clock was set by a second or more.", ("to",))

    seconds: float

    @property
    def to(self) -> str:
        return "ahead" if self.seconds > 0 else "back"


class Rewound(QueueEvent, frozen=True, kw_only=True):
    """Recurrences continue from now: Redis's clock was ahead, and had moved them into the future."""

    level = WARNING
    line = "queue {queue}: {names} continue from now; a clock that was ahead and is set back had advanced them"

    names: list[str]


class WorkerStarted(Event, frozen=True, kw_only=True):
    line = "worker {worker} started: {slots} slots, queues {queues}, tasks {tasks}"

    worker: str
    queues: list[str]
    slots: int
    tasks: list[str]


class WorkerDraining(Event, frozen=True, kw_only=True):
    """A worker fetches no more jobs, and waits for its running jobs to end."""

    line = "worker {worker} fetches no more, {running} jobs run for {shutdown_grace:g} s at most"

    worker: str
    running: int
    shutdown_grace: float


class WorkerQuiet(Event, frozen=True, kw_only=True):
    """A worker was asked to fetch no more jobs, and stays."""

    line = "worker {worker} was asked to fetch no more, and stays: {running} jobs run"

    worker: str
    running: int


class WorkerStopped(Event, frozen=True, kw_only=True):
    line = "worker {worker} stopped, {handed_back} jobs handed back"

    worker: str
    handed_back: int = 0
    """How many jobs went back to ready."""


class WorkerStuck(Event, frozen=True, kw_only=True):
    """A job did not end within its timeout and the kill grace, or kept others from it: the process ends."""

    level = CRITICAL
    line = (
        "job {id} of {queue}, task {task}, attempt {attempt}, does not stop: the worker ends; {handed_back} jobs "
        "returned to ready"
    )

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
    """The job that blocks; empty = no run does, but something that a run has started may."""
    task: str = ""
    attempt: int = 0
    running: list[str]
    handed_back: int = 0
    """How many jobs went back to ready."""
    traceback: str = ""
    """Where the event loop is."""

    def log_line(self) -> tuple[int, str]:
        if self.id:
            blocker = "job {id} of {queue}, task {task}, attempt {attempt},"
        else:
            blocker = "one of {running}" if self.running else "the app"
        line = " blocks its event loop; {handed_back} jobs returned to ready"
        return CRITICAL, "worker {worker} ends: " + blocker + line


class LeaseLost(QueueEvent, frozen=True, kw_only=True):
    """A worker sent no heartbeat for longer than its lease: it cancels its runs."""

    counter = Metric("leases_lost", "Leases that ended while their worker was alive.")

    worker: str
    held: int
    """How many jobs it held. An idle worker held none, so nothing is lost."""

    def log_line(self) -> tuple[int, str]:
        lost = "worker {worker} lost its lease on {queue}"
        if self.held:
            return ERROR, lost + ": its jobs are cancelled here and start elsewhere"
        return WARNING, lost + ", and held no jobs"


class ControlOpened(Event, frozen=True, kw_only=True):
    """A worker has subscribed to its control channels, at its start or after it lost the connection."""


class RecurrenceDeclared(QueueEvent, frozen=True, kw_only=True):
    """A worker brought a recurrence in Redis in step with the app's code."""

    line = "queue {queue}: recurrence {name} {done}, as the code declares"

    name: str
    done: str
    """made, changed or retired."""


class LimitDeclared(QueueEvent, frozen=True, kw_only=True):
    """A worker has set or removed a limit, because its declaration in the app's code has changed."""

    line = "queue {queue}: limit {limit} is {value} now, as the code declares"

    limit: str
    """concurrency, rate, burst or weight; followed by `:<group>` for the limit of a group."""
    value: str
    """The number, or "none" if it was removed."""


class RevisionOutdated(QueueEvent, frozen=True, kw_only=True):
    """A worker's app declares an older revision of its recurrences than the one in force, so it changed nothing."""

    level = WARNING
    line = (
        "queue {queue}: app {app} declares revision {revision} of its recurrences and limits, but the newer "
        "{newest} stays in force. If you rolled back on purpose: evsched recurrences rollback --queue {queue} --app "
        "{app}. If this is another app of the same name: give each App a name of its own"
    )

    app: str
    revision: str
    newest: str
    """The revision in force: the number that the app gave, or when its declarations were first seen."""


class ReadyLeft(QueueEvent, frozen=True, kw_only=True):
    """A worker filled its slots, and more jobs are ready. Emitted at each change, and at its first fetch."""


class ReadyDrained(QueueEvent, frozen=True, kw_only=True):
    """A worker fetched all ready jobs. Emitted at each change, and at its first fetch."""


class Started(QueueEvent, frozen=True, kw_only=True):
    """A worker fetched jobs, and each handler has made its first step."""

    worker: str
    ids: list[str]
    tasks: list[str]
    """The task's name in each payload, registered or not; "?" where the payload cannot be read."""
    lateness: list[float]
    """Seconds from the due to the handler."""
    attempts: list[int] = field(default_factory=list[int])


class Completed(QueueEvent, frozen=True, kw_only=True):
    """Handlers returned, and Redis has recorded it."""

    worker: str
    ids: list[str]
    tasks: list[str]
    seconds: list[float]
    """How long each ran."""
    attempts: list[int] = field(default_factory=list[int])


class Retrying(QueueEvent, frozen=True, kw_only=True):
    """A run failed; its job runs again after `delay` seconds."""

    level = WARNING
    line = "job {id} of {queue}, task {task}: {reason}; again in {delay:.3g} s"
    outcome = "retry"

    id: str
    task: str
    attempt: int
    delay: float
    reason: str
    seconds: float | None = None
    """How long the run took; None = unknown."""
    traceback: str = ""


class JobBuried(QueueEvent, frozen=True, kw_only=True):
    """A job was given up (`dead`), or had not started when it expired (`expired`)."""

    level = ERROR
    line = "job {id} of {queue}, task {task}, is {outcome}: {reason}"

    id: str
    task: str = "?"
    attempt: int = 0
    """How many attempts began."""
    reason: str
    outcome: Literal["dead", "expired"] = "dead"
    seconds: float | None = None
    """How long its last run took; None = no handler ran."""
    traceback: str = ""


class JobAborted(QueueEvent, frozen=True, kw_only=True):
    """A run ended because its job was cancelled."""

    line = "job {id} of {queue}, task {task}, was cancelled in attempt {attempt}"
    outcome = "cancelled"

    id: str
    task: str = "?"
    """"?" if the worker died or stopped before the run ended."""
    attempt: int = 0
    seconds: float | None = None
    """How long it ran; None = no handler ran."""


class JobDeferred(QueueEvent, frozen=True, kw_only=True):
    """A job cannot begin now: it is scheduled for when its window opens, or for soon when something is not there."""

    line = "job {id} of {queue}, task {task}, waits for its window"
    outcome = "deferred"

    id: str
    task: str
    due: float
    """When it is judged again, Unix seconds."""
    cause: Literal["window", "code", "task", "store"] = "window"
    """Its window is closed; the code on disk has no handler for it; the worker's app does not have its task; the store
    of the app does not give its arguments."""

    def log_line(self) -> tuple[int, str]:
        if self.cause == "store":
            return WARNING, "job {id} of {queue}, task {task}, waits: the store of its app does not give its arguments"
        # For the other causes, HandlerNotFound or TaskUnknown was logged, once for all of them.
        return INFO if self.cause == "window" else DEBUG, self.line


class JobSnoozed(QueueEvent, frozen=True, kw_only=True):
    """A handler asked to run later, or there was no memory for its message; the attempt does not count."""

    line = "job {id} of {queue}, task {task}, is {reason}"
    outcome = "snoozed"

    id: str
    task: str
    attempt: int
    reason: str
    """For how long or until when, and the handler's reason."""
    seconds: float | None = None
    """How long it ran; None = unknown."""


class HandlerNotFound(QueueEvent, frozen=True, kw_only=True):
    """A fresh process does not find the handler of a task: the code on disk differs from the worker's."""

    level = ERROR
    line = (
        "task {task} of {queue} cannot begin: {reason}: fix the code, or restart the worker; its jobs are tried again"
    )

    task: str
    reason: str


class TaskUnknown(QueueEvent, frozen=True, kw_only=True):
    """A worker fetched a job whose task its app does not have. Emitted once for each task."""

    level = WARNING
    line = "queue {queue}: {reason}; its jobs wait up to {grace:g} s for a worker that knows it"

    task: str
    reason: str
    grace: float
    """Seconds for which such jobs wait for another worker; 0 = they are given up at once."""


class JobsRequeued(QueueEvent, frozen=True, kw_only=True):
    """A worker's jobs went back to ready: the worker died, stops, or had no free slot for a job it had fetched."""

    line = "queue {queue}: {ids} of worker {worker} returned to ready: {reason}"

    worker: str
    ids: list[str]
    cause: Literal["died", "stopped", "busy"]
    reason: str

    def log_line(self) -> tuple[int, str]:
        # A busy worker's jobs are fetched by another at once: no action is needed.
        return DEBUG if self.cause == "busy" else WARNING, self.line


class RunLost(QueueEvent, frozen=True, kw_only=True):
    """A run ended, and Redis refused its end: the run did not belong to its worker any more."""

    outcome = "lost"

    worker: str
    id: str
    task: str
    attempt: int
    end: Literal["discarded", "unknown"] = "discarded"
    """Whether its outcome was written. "discarded" = no: the worker had lost its lease. "unknown" = the worker had sent
    the outcome before and got no reply, and the record does not show whether it was written then."""

    def log_line(self) -> tuple[int, str]:
        lost = {
            "discarded": "after its lease was lost; the result was discarded",
            "unknown": "while Redis did not answer: its end was sent twice, and whether it was written is not known",
        }
        return WARNING, "job {id} of {queue}, task {task}, attempt {attempt}, finished " + lost[self.end]
