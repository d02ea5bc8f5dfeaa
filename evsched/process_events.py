"""The events about Redis and the lease, the processes of a service, the ledger and the doctor."""

from __future__ import annotations

import signal
from logging import CRITICAL, ERROR, INFO, WARNING

from evsched.errors import FULL
from evsched.events import Event, Metric, QueueEvent


class LoopEvent(Event, frozen=True, kw_only=True):
    """A fact that a loop has found."""

    who: str


class CountEvent(QueueEvent, frozen=True, kw_only=True):
    """A fact about several rows, jobs or shards of a queue."""

    count: int


class RedisUnsafe(Event, frozen=True, kw_only=True):
    """Redis is configured so that it may lose jobs. Emitted once, at the start."""

    level = WARNING
    line = "Redis may lose jobs: {what}. {mend}"

    what: str
    mend: str
    """The command that sets this right."""


class LeaseDiffers(Event, frozen=True, kw_only=True):
    """The lease in the settings of a process is not the one in Redis, which it uses. Emitted at the start."""

    level = WARNING
    line = (
        "EVSCHED_LEASE is {given:g}, but all use {lease:g} s, as Redis has: run `evsched lease {given:g}`, or unset it"
    )

    given: float
    lease: float


class LeaseChanged(Event, frozen=True, kw_only=True):
    """A process has read a new lease."""

    line = "the lease in Redis is {lease:g} s now"

    lease: float


class RedisFailed(Event, frozen=True, kw_only=True):
    """A command failed; `kind` is that of the StoreError."""

    counter = Metric("redis_errors", "Redis commands that failed.", ("kind",))

    kind: str


class RedisDown(LoopEvent, frozen=True, kw_only=True):
    """Redis cannot be reached, or cannot serve. Each loop emits it once, at the first failure."""

    reason: str
    kind: str = "connection"
    """That of the StoreError. Other kinds than "connection" and "timeout" = Redis answers, and cannot serve."""

    def log_line(self) -> tuple[int, str]:
        is_down = "is down" if self.kind in ("connection", "timeout") else "cannot serve now"
        return ERROR, "Redis " + is_down + ", as {who} found: {reason}"


class RedisUp(LoopEvent, frozen=True, kw_only=True):
    """Redis serves again. Each loop emits it once."""

    line = "Redis is back after {seconds:.1f} s"

    seconds: float
    """How long it was down."""


class NodeReleased(LoopEvent, frozen=True, kw_only=True):
    """A loop that Redis did not serve has ended: another node of the cluster has its queues, or the process stops."""

    line = "{who} has ended, after {seconds:.1f} s without Redis: another node has its queues, or the process stops"

    seconds: float
    """How long Redis had not served it."""


class CallRefused(LoopEvent, frozen=True, kw_only=True):
    """Redis serves, but refuses a loop's calls: bad data, a missing right, a bug, or full memory. Emitted once."""

    queue: str = ""
    """Empty = the call concerns no single queue."""
    reason: str
    kind: str = ""
    """That of the StoreError; "oom" = Redis's memory is full."""

    def log_line(self) -> tuple[int, str]:
        who = "{who}, queue {queue}" if self.queue else "{who}"
        if self.kind == FULL:
            return ERROR, (
                "Redis's memory is full (maxmemory), as " + who + " found: it refuses new jobs. Jobs that are there "
                "continue, which frees memory; only those that forward a message to it are put off. "
                "Raise it with CONFIG SET maxmemory, or drop dead jobs (evsched dead drop)"
            )
        return ERROR, who + ": Redis refuses (bad data, no right, or a bug): {reason}"


class CallAccepted(LoopEvent, frozen=True, kw_only=True):
    """Redis accepts the calls that it had refused. Emitted once."""

    queue: str = ""
    seconds: float
    """How long it refused."""
    kind: str = ""
    """That of the last refusal."""

    def log_line(self) -> tuple[int, str]:
        if self.kind == FULL:
            return INFO, "Redis's memory is not full any more, after {seconds:.1f} s"
        who = "{who}, queue {queue}" if self.queue else "{who}"
        return INFO, who + ": Redis accepts calls again, after {seconds:.1f} s"


class Subscribed(Event, frozen=True, kw_only=True):
    """Redis confirmed the subscription to keyspace events."""

    again: bool = False
    """An earlier subscription was lost."""


class SubscriptionLost(Event, frozen=True, kw_only=True):
    level = WARNING
    line = "subscription lost: {reason}"

    reason: str


class NotificationsMissing(Event, frozen=True, kw_only=True):
    """Redis sends no keyspace events, so new jobs are found by the safety cap alone."""

    level = ERROR
    line = "Redis sends no keyspace events, so jobs start late: {mend}"

    mend: str
    """The command that sets this right."""


class NotificationsProven(Event, frozen=True, kw_only=True):
    """A canary's keyspace event arrived."""

    line = "keyspace events arrive"


class ShardsFound(CountEvent, frozen=True, kw_only=True):
    """A process has learned from Redis that a queue has more shards than it knew."""

    line = "queue {queue} has {count} shards"


class ShardsUnknown(Event, frozen=True, kw_only=True):
    """A process that started cannot read how many shards queues have. It tries again."""

    level = WARNING
    line = (
        "the numbers of shards cannot be read; until they are, dispatchers serve shards whose keys they find: {reason}"
    )

    reason: str


class Listening(Event, frozen=True, kw_only=True):
    """The process serves metrics, liveness and readiness."""

    line = "metrics at {url}/metrics, liveness at /healthz, readiness at /readyz"

    url: str


class ApiStarted(Event, frozen=True, kw_only=True):
    """The process answers requests of the HTTP interface."""

    line = "API at {url}/v1, its description at {url}/openapi.json"

    url: str


class ConsoleStarted(Event, frozen=True, kw_only=True):
    """The process answers requests for the pages of the console."""

    line = "console at {url}"

    url: str


class EndedByForce(Event, frozen=True, kw_only=True):
    """The process did not end in time after it was asked to: it is ended now."""

    level = CRITICAL
    line = "ended by force {seconds:.0f} s after the signal: the app did not end"

    seconds: float
    """Since it was asked to."""


class EndedAtOnce(Event, frozen=True, kw_only=True):
    """A second signal ends the process now: its jobs start elsewhere when its lease ends."""

    level = WARNING
    line = "second signal: the process ends at once; its jobs start elsewhere when its lease ends"


class HandlersLeft(Event, frozen=True, kw_only=True):
    """A worker has ended the processes that its handlers had started with `multiprocessing` and left."""

    level = WARNING
    line = "ended {processes} processes that handlers had started and left"

    processes: int


class ChildStarted(Event, frozen=True, kw_only=True):
    """A parent started a worker process."""

    line = "worker process {number} started: pid {pid}"

    number: int
    pid: int


class ChildNotStarted(Event, frozen=True, kw_only=True):
    """The system could not start a worker process; its parent tries again."""

    level = ERROR
    line = "worker process {number} could not be started: {reason}; it is tried again"

    number: int
    reason: str


class ChildEnded(Event, frozen=True, kw_only=True):
    line = "worker process {number}, pid {pid}, ended with {code}"

    number: int
    pid: int
    code: int

    def log_line(self) -> tuple[int, str]:
        # With another code it was not asked to end, or could not.
        return INFO if self.code in (0, -signal.SIGTERM) else WARNING, self.line


class ChildCannotStart(Event, frozen=True, kw_only=True):
    """The first worker process cannot start. The others could not either, so the parent ends."""

    level = ERROR
    line = "worker process {number} cannot start (exit code {code}): all end; its last log line says why"

    number: int
    code: int


class ChildKilled(Event, frozen=True, kw_only=True):
    """A worker process did not end in time: its parent killed it."""

    level = ERROR
    line = "worker process {number}, pid {pid}, hung and was killed: its jobs return to ready"

    number: int
    pid: int = 0


class ParentWaits(Event, frozen=True, kw_only=True):
    """A parent without worker processes waits for jobs."""

    line = "no worker process runs: one starts when a job of {queues} waits"

    queues: list[str]


class ParentWoken(QueueEvent, frozen=True, kw_only=True):
    """A queue needs a worker process: a parent without any starts one."""

    need: str = "ready"
    """`ready`, `undeclared` or `sought`, as `log_line` explains."""

    def log_line(self) -> tuple[int, str]:
        why = {
            "ready": "jobs wait",
            "undeclared": "Redis has lost what the app declares",
            "sought": "jobs wait for a task that other workers do not have",
        }
        return INFO, "queue {queue} needs a worker process, because " + why[self.need] + ": one starts"


class Reloading(Event, frozen=True, kw_only=True):
    """A parent got SIGHUP: it replaces its worker processes one by one."""

    line = "reload: {processes} worker processes are replaced one by one"

    processes: int


class Reloaded(Event, frozen=True, kw_only=True):
    """All worker processes were replaced."""

    line = "reload: {processes} worker processes run the new code, after {seconds:.1f} s"

    processes: int
    seconds: float


class ReloadFailed(Event, frozen=True, kw_only=True):
    """A worker process with the new code did not become ready: the processes not replaced yet go on."""

    level = ERROR
    line = (
        "reload failed after {replaced} of {processes}: the new worker process {number} {reason}. Those that run go "
        "on with the old code. Read the lines above, correct the code and send SIGHUP again"
    )

    number: int
    reason: str
    replaced: int
    """How many were replaced before."""
    processes: int


class CodeChanged(Event, frozen=True, kw_only=True):
    """`evsched dev --reload` has seen that files of the working folder changed."""

    line = "{files} changed: the app is started again"

    files: list[str]


class DevWaits(Event, frozen=True, kw_only=True):
    """The process of `evsched dev --reload` has ended by itself with an error."""

    level = ERROR
    line = "the app does not run (exit code {code}), as the lines above say: it is started again at the next change"

    code: int


class JobsPutBack(CountEvent, frozen=True, kw_only=True):
    """The parent put back the jobs of worker processes that ran here before and died."""


class LedgerStarted(Event, frozen=True, kw_only=True):
    line = "relay started on {server} and {database}"

    server: str
    database: str
    """Which server has the tables."""


class EpochFound(Event, frozen=True, kw_only=True):
    """Redis has other data than before, or the relay has just started."""

    line = "epoch {epoch}: rows that were scheduled in another one are scheduled again"

    epoch: str


class RelayWaits(Event, frozen=True, kw_only=True):
    """A relay schedules nothing, because another relay of the same database serves another Redis.

    The wait ends when this relay finds an epoch or schedules rows: the other one may stop or change its Redis.
    """

    level = ERROR
    line = "{reason}"

    reason: str


class RowsScheduled(CountEvent, frozen=True, kw_only=True):
    """Rows were scheduled, and that is committed."""

    counter = Metric(
        "ledger_rows_scheduled",
        "Rows of the ledger that were scheduled: new ones, and restored ones, which had been scheduled before.",
        ("queue", "kind"),
    )

    again: bool
    """They had been scheduled in another epoch."""

    @property
    def kind(self) -> str:
        return "restored" if self.again else "new"


class RowsRefused(CountEvent, frozen=True, kw_only=True):
    """Rows cannot be scheduled: they are dead, and each has the reason. That is committed."""

    level = ERROR
    line = "queue {queue}: rows that cannot be scheduled, and are dead: {count}; one is {first}"
    counter = Metric("ledger_rows_refused", "Rows of the ledger that could not be scheduled: they are dead.")

    first: str
    """The id and the reason of one of them."""


class RowsSetAside(CountEvent, frozen=True, kw_only=True):
    """Redis does not take these rows though it takes others: they wait, and are tried again later."""

    level = ERROR
    line = "queue {queue}: rows that Redis does not take, and that are tried again later: {count}; one is {first}"

    first: str
    """The id, or the name of a recurrence, and the reason of one of them."""


class RowsDeclared(CountEvent, frozen=True, kw_only=True):
    """Rows of recurrences were declared or removed, or got the reason why that is not possible."""


class EndsWritten(CountEvent, frozen=True, kw_only=True):
    """Ends of jobs were written into their rows."""

    counter = Metric("ledger_ends_written", "Ends of jobs that were written into their rows.")


class JobsWithdrawn(CountEvent, frozen=True, kw_only=True):
    """Redis had jobs again whose rows say that they have ended: they were removed, or asked to stop."""

    level = WARNING
    line = "queue {queue}: Redis had jobs again that have ended, as their rows say: {count} were removed"


class HistoryStarted(Event, frozen=True, kw_only=True):
    line = "history started on {server} and {database}: it keeps the ends of jobs for {days:g} days"

    server: str
    database: str
    days: float


class HistoryWrites(Event, frozen=True, kw_only=True):
    """This process writes the history of all queues from now on."""

    line = "this process writes the history"


class HistoryStandsBy(Event, frozen=True, kw_only=True):
    """Another process writes the history; this one takes over when its session in the database ends."""

    line = "another process writes the history, this one stands by"


class RunsWritten(CountEvent, frozen=True, kw_only=True):
    """Ends of jobs were written into the history of the ledger, and that is committed."""

    counter = Metric("ledger_runs_written", "Ends of jobs that were written into the history of the ledger.")


class RunsMissed(CountEvent, frozen=True, kw_only=True):
    """The history in Redis was cut before these ends were read."""

    level = WARNING
    line = (
        "queue {queue}: {count} ends are missing in the history of the ledger, because Redis did not keep them until "
        "they were read: keep more with `evsched limit {queue} --history`, and do not stop `evsched ledger history`"
    )
    counter = Metric("ledger_runs_missed", "Ends of jobs that Redis no longer had when the history was read.")


class RunsLeftOut(CountEvent, frozen=True, kw_only=True):
    """Ends were not written, because the table has no partition for their day."""

    level = WARNING
    line = "queue {queue}: {count} ends are not in the history of the ledger: their times are in the far future"


class LedgerPruned(Event, frozen=True, kw_only=True):
    """Old days of the history were dropped, and rows of jobs that ended long ago deleted."""

    line = "days of the history that were dropped: {days}; rows of ended jobs that were deleted: {jobs}"

    days: int
    jobs: int


class PruningWaits(Event, frozen=True, kw_only=True):
    """A day of the history cannot be dropped, because another session reads the table. It is tried again later."""

    level = WARNING
    line = "{partition} cannot be dropped now, because another session uses the table; pg_stat_activity says which"

    partition: str


class LedgerDown(LoopEvent, frozen=True, kw_only=True):
    """The database does not serve. Each loop emits it at the first failure, and again for each other reason."""

    level = ERROR
    line = "the database of the ledger does not serve, as {who} found: {reason}"

    reason: str


class LedgerUp(LoopEvent, frozen=True, kw_only=True):
    """The database serves again. Each loop emits it once."""

    line = "the database of the ledger serves {who} again, after {seconds:.1f} s"

    seconds: float
    """How long it did not serve."""


class DoctorStarted(Event, frozen=True, kw_only=True):
    """A doctor begins to watch. It rests for `interval` seconds after each examination."""

    line = "doctor started: it checks now, and again {interval:g} s after each check"

    interval: float


class Examined(Event, frozen=True, kw_only=True):
    """Redis and its queues were checked. The lists run parallel: one entry for each fault and warning."""

    checks: list[str]
    levels: list[str]
