"""The log: a line for each event that an operator needs to know, as text for a terminal, else as JSON.

`escape` and `json_text` make any text from Redis safe on a terminal.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from typing import Any, Final

import msgspec

from evsched import events
from evsched.display import escape, json_text
from evsched.errors import FULL
from evsched.events import Event
from evsched.jobs.current_job import JobLogFilter

_LONGEST: Final = 8192
"""Characters of a line: collectors cut longer ones, which breaks the JSON."""

_CUTS: Final = ((4000, 300), (1000, 50), (150, 5))
"""The characters of a text and the items of a list that are shown: the first pair with which the line is short enough
is used."""


def handler(level: int = logging.NOTSET) -> logging.Handler:
    """Return what writes lines of a level and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(level)
    handler.addFilter(JobLogFilter())
    handler.setFormatter(_Human() if sys.stderr.isatty() else _Json())
    return handler


def _cut(text: str, most: int) -> str:
    """Return the text as valid UTF-8; only its beginning and its end if it is long."""
    if len(text) > most:
        text = f"{text[: most // 2]} ... {text[-most // 2 :]}"
    return text.encode(errors="backslashreplace").decode()


def _bounded(value: object, characters: int, items: int) -> object:
    if isinstance(value, str):
        return _cut(value, characters)
    if isinstance(value, list):
        shown = [_bounded(item, characters, items) for item in value[:items]]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        more = len(value) - items  # pyright: ignore[reportUnknownArgumentType]
        return [*shown, f"and {more} more"] if more > 0 else shown
    return value


def _job_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields that `JobLogFilter` adds to lines logged in a run; empty outside of one."""
    names = ("job_id", "job_queue", "job_task", "job_attempt")
    return {name: getattr(record, name) for name in names} if getattr(record, "job_attempt", 0) else {}


def _traceback_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return the traceback that a library or a handler logs; empty when there is none."""
    return formatter.formatException(record.exc_info) if record.exc_info else ""


class _Human(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        message = _cut(escape(record.getMessage()), _LONGEST - 700)
        job = escape(" ".join(map(str, _job_of(record).values())))
        line = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname.lower():8} {message}"
        line = f"{line} [{_cut(job, 600)}]" if job else line
        traceback = getattr(getattr(record, "event", None), "traceback", "") or _traceback_of(self, record)
        return "\n".join([line, *(f"  {escape(part)}" for part in traceback.splitlines())])


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": record.created, "level": record.levelname.lower(), "message": record.getMessage()}
        event = getattr(record, "event", None)
        if isinstance(event, Event):
            line["event"] = type(event).__name__
            line.update(msgspec.to_builtins(event))
        line.update(getattr(record, "fields", {}))
        line.update(_job_of(record))
        if traceback := _traceback_of(self, record):
            line["traceback"] = traceback
        text = ""
        for characters, items in _CUTS:
            text = json_text({name: _bounded(value, characters, items) for name, value in line.items()})
            if len(text) <= _LONGEST:
                break
        return text


LINES: Final[dict[type[Event], tuple[int, str]]] = {
    events.DispatcherStarted: (logging.INFO, "dispatcher started on {server}, queues: {queues}"),
    events.ApiStarted: (logging.INFO, "API at {url}/v1, its description at {url}/openapi.json"),
    events.DoctorStarted: (logging.INFO, "doctor started: it checks now, and again {interval:g} s after each check"),
    events.RedisUnsafe: (logging.WARNING, "Redis may lose jobs: {what}. {mend}"),
    events.LeaseDiffers: (
        logging.WARNING,
        "EVSCHED_LEASE is {given:g}, but all use {lease:g} s, as Redis has: run `evsched lease {given:g}`, or unset it",
    ),
    events.LeaseChanged: (
        logging.INFO,
        "the lease in Redis is {lease:g} s; for {settles_in:.0f} s from now some processes may have the one before",
    ),
    events.QueueFound: (logging.INFO, "queue {queue} found"),
    events.ShardsFound: (logging.INFO, "queue {queue} has {count} shards"),
    events.ShardsUnknown: (
        logging.WARNING,
        "the numbers of shards cannot be read; until they are, dispatchers serve shards whose keys they find: {reason}",
    ),
    events.SubscriptionLost: (logging.WARNING, "subscription lost: {reason}"),
    events.NotificationsMissing: (logging.ERROR, "Redis sends no keyspace events, so jobs start late: {mend}"),
    events.NotificationsProven: (logging.INFO, "keyspace events arrive"),
    events.Retrying: (logging.WARNING, "job {id} of {queue}, task {task}: {reason}; again in {delay:.3g} s"),
    events.JobBuried: (logging.ERROR, "job {id} of {queue}, task {task}, is {outcome}: {reason}"),
    events.JobAborted: (logging.INFO, "job {id} of {queue}, task {task}, was cancelled in attempt {attempt}"),
    events.HandlerNotFound: (
        logging.ERROR,
        "task {task} of {queue} cannot begin: {reason}: fix the code, or restart the worker; its jobs are tried again",
    ),
    events.TaskUnknown: (
        logging.WARNING,
        "queue {queue}: {reason}; its jobs wait up to {grace:g} s for a worker that knows it",
    ),
    events.JobDeferred: (logging.INFO, "job {id} of {queue}, task {task}, waits for its window"),
    events.JobSnoozed: (logging.INFO, "job {id} of {queue}, task {task}, is {reason}"),
    events.RecurrenceDeclared: (logging.INFO, "queue {queue}: recurrence {name} {done}, as the code declares"),
    events.LimitDeclared: (logging.INFO, "queue {queue}: limit {limit} is {value} now, as the code declares"),
    events.RevisionOutdated: (
        logging.WARNING,
        (
            "queue {queue}: app {app} declares revision {revision} of its recurrences and limits, but the newer "
            "{newest} stays in force. If you rolled back on purpose: evsched recurrences rollback --queue {queue} "
            "--app {app}. If this is another app of the same name: give each App a name of its own"
        ),
    ),
    events.Missed: (logging.WARNING, "queue {queue}: recurrence {name} missed {count} occurrences"),
    events.MoveFinished: (
        logging.INFO,
        "queue {queue}: {moved} jobs have moved to {to}, and {back} are back, after an interrupted move",
    ),
    events.ClockJumped: (logging.ERROR, "Redis's clock jumped by {seconds:+.1f} s: due times follow it"),
    events.Rewound: (
        logging.WARNING,
        "queue {queue}: {names} continue from now; a clock that was ahead and is set back had advanced them",
    ),
    events.PauseOver: (logging.INFO, "queue {queue}: recurrence {name} recurs again, its pause is over"),
    events.RecurrencePaused: (
        logging.WARNING,
        (
            "queue {queue}: recurrence {name} is paused: {why}. Find out why (evsched explain {name} --queue {queue}), "
            "then: evsched recurrences resume {name} --queue {queue}"
        ),
    ),
    events.RecurrenceBroken: (logging.ERROR, "queue {queue}: recurrence {name} makes no jobs: {reason}"),
    events.JobsRequeued: (logging.WARNING, "queue {queue}: {ids} of worker {worker} returned to ready: {reason}"),
    events.RunLost: (logging.WARNING, "job {id} of {queue}, task {task}, attempt {attempt}, finished {but}"),
    events.LeaseLost: (
        logging.ERROR,
        "worker {worker} lost its lease on {queue}{effect}",
    ),
    events.WorkerStarted: (logging.INFO, "worker {worker} started: {slots} slots, queues {queues}, tasks {tasks}"),
    events.WorkerDraining: (
        logging.INFO,
        "worker {worker} fetches no more, {running} jobs run for {shutdown_grace:g} s at most",
    ),
    events.WorkerStopped: (logging.INFO, "worker {worker} stopped, {handed_back} jobs handed back"),
    events.WorkerStuck: (
        logging.CRITICAL,
        (
            "job {id} of {queue}, task {task}, attempt {attempt}, does not stop: the worker ends; "
            "{handed_back} jobs returned to ready"
        ),
    ),
    events.WorkerBlocked: (
        logging.CRITICAL,
        "worker {worker} ends: {blocker} blocks its event loop; {handed_back} jobs returned to ready",
    ),
    events.EndedByForce: (logging.CRITICAL, "ended by force {seconds:.0f} s after the signal: the app did not end"),
    events.EndedAtOnce: (
        logging.WARNING,
        "second signal: the process ends at once; its jobs start elsewhere when its lease ends",
    ),
    events.HandlersLeft: (logging.WARNING, "ended {processes} processes that handlers had started and left"),
    events.ChildStarted: (logging.INFO, "worker process {number} started: pid {pid}"),
    events.ChildNotStarted: (
        logging.ERROR,
        "worker process {number} could not be started: {reason}; it is tried again",
    ),
    events.ChildEnded: (logging.INFO, "worker process {number}, pid {pid}, ended with {code}"),
    events.ChildCannotStart: (
        logging.ERROR,
        "worker process {number} cannot start (exit code {code}): all end; its last log line says why",
    ),
    events.ChildKilled: (
        logging.ERROR,
        "worker process {number}, pid {pid}, hung and was killed: its jobs return to ready",
    ),
    events.ParentWaits: (logging.INFO, "no worker process runs: one starts when a job of {queues} waits"),
    events.ParentWoken: (logging.INFO, "queue {queue} needs a worker process, because {why}: one starts"),
    events.Reloading: (logging.INFO, "reload: {processes} worker processes are replaced one by one"),
    events.Reloaded: (logging.INFO, "reload: {processes} worker processes run the new code, after {seconds:.1f} s"),
    events.ReloadFailed: (
        logging.ERROR,
        (
            "reload failed after {replaced} of {processes}: the new worker process {number} {reason}. "
            "Those that run go on with the old code. Read the lines above, correct the code and send SIGHUP again"
        ),
    ),
    events.LedgerStarted: (logging.INFO, "relay started on {server} and {database}"),
    events.EpochFound: (logging.INFO, "epoch {epoch}: rows that were scheduled in another one are scheduled again"),
    events.JobsWithdrawn: (
        logging.WARNING,
        "queue {queue}: Redis had jobs again that have ended, as their rows say: {count} were removed",
    ),
    events.RelayWaits: (logging.ERROR, "{reason}"),
    events.RowsRefused: (
        logging.ERROR,
        "queue {queue}: rows that cannot be scheduled, and are dead: {count}; one is {first}",
    ),
    events.RowsSetAside: (
        logging.ERROR,
        "queue {queue}: rows that Redis does not take, and that are tried again later: {count}; one is {first}",
    ),
    events.LedgerDown: (logging.ERROR, "the database of the ledger does not serve, as {who} found: {reason}"),
    events.LedgerUp: (logging.INFO, "the database of the ledger serves {who} again, after {seconds:.1f} s"),
    events.Listening: (logging.INFO, "metrics at {url}/metrics, liveness at /healthz, readiness at /readyz"),
    events.RedisDown: (logging.ERROR, "Redis {is_down}, as {who} found: {reason}"),
    events.RedisUp: (logging.INFO, "Redis is back after {seconds:.1f} s"),
    events.NodeReleased: (
        logging.INFO,
        "{who} has ended, after {seconds:.1f} s without Redis: another node has its queues, or the process stops",
    ),
    events.CallRefused: (logging.ERROR, "{who}{of_queue}: Redis refuses (bad data, no right, or a bug): {reason}"),
    events.CallAccepted: (logging.INFO, "{who}{of_queue}: Redis accepts calls again, after {seconds:.1f} s"),
}

FULL_LINES: Final[dict[type[Event], tuple[int, str]]] = {
    events.CallRefused: (
        logging.ERROR,
        (
            "Redis's memory is full (maxmemory), as {who}{of_queue} found: it refuses new jobs. Jobs that are there "
            "continue, which frees memory; only those that forward a message to it are put off. "
            "Raise it with CONFIG SET maxmemory, or drop dead jobs (evsched dead drop)"
        ),
    ),
    events.CallAccepted: (logging.INFO, "Redis's memory is not full any more, after {seconds:.1f} s"),
}
"""The lines of events about full memory."""

NEEDS: Final = {
    "ready": "jobs wait",
    "undeclared": "Redis has lost what the app declares",
    "sought": "jobs wait for a task that other workers do not have",
}
"""By the field `need` of ParentWoken."""

LOST_ENDS: Final = {
    "discarded": "after its lease was lost; the result was discarded",
    "unknown": "while Redis did not answer: its end was sent twice, and whether it was written is not known",
}
"""By the field `end` of RunLost."""

BLOCKER: Final = "job {id} of {queue}, task {task}, attempt {attempt},"


_logger: Final = logging.getLogger("evsched")

_ABSENT: Final = ("connection", "timeout")
"""The kinds of errors that mean that Redis cannot be reached."""

_MOST: Final = 8
"""Items of a list that a line for a terminal shows. The JSON has more."""


class Log:
    """The log of one process. It logs once that Redis is down, although every loop notices it.

    `jobs`: also log the start and the end of each job, whose events cover batches.
    """

    def __init__(self, *, jobs: bool = False) -> None:
        self._jobs = jobs
        self._down = set[str]()
        """The loops that Redis does not serve."""
        self._full = set[tuple[str, str]]()
        """The loops, and their queues, that Redis refuses because its memory is full."""
        self._since = 0.0
        """When the first of them lost Redis, by the monotonic clock."""

    def on_event(self, event: Event) -> None:
        """Log the event, if it is one that has a line."""
        if self._jobs and isinstance(event, events.Started | events.Completed):
            _log_each(event)
            return
        level, line = (FULL_LINES if getattr(event, "kind", "") == FULL else LINES).get(type(event), (0, ""))
        if isinstance(event, events.JobsRequeued) and event.cause == "busy":
            level = logging.DEBUG  # another worker fetches it at once: no action is needed
        if isinstance(event, events.JobDeferred) and event.cause != "window":
            level = logging.DEBUG  # HandlerNotFound or TaskUnknown was logged, once for all of them
        if isinstance(event, events.LeaseLost) and not event.held:
            level = logging.WARNING  # nothing is lost, but it sent no heartbeat for long
        if isinstance(event, events.ChildEnded) and event.code not in (0, -signal.SIGTERM):
            level = logging.WARNING  # it was not asked to end, or could not
        if not self._is_news(event) or not line or not _logger.isEnabledFor(level):
            return
        if isinstance(event, events.RedisUp):
            event = events.RedisUp(who=event.who, seconds=time.monotonic() - self._since)
        values = {name: _show(getattr(event, name)) for name in event.__struct_fields__}
        if isinstance(event, events.RedisDown):
            values["is_down"] = "is down" if event.kind in _ABSENT else "cannot serve now"
        elif isinstance(event, events.WorkerBlocked):
            one_of = f"one of {values['running']}" if event.running else "the app"
            values["blocker"] = BLOCKER.format_map(values) if event.id else one_of
        elif isinstance(event, events.ParentWoken):
            values["why"] = NEEDS.get(event.need, event.need)
        elif isinstance(event, events.LeaseLost):
            cancelled = ": its jobs are cancelled here and start elsewhere"
            values["effect"] = cancelled if event.held else ", and held no jobs"
        elif isinstance(event, events.RunLost):
            values["but"] = LOST_ENDS[event.end]
        elif isinstance(event, events.CallRefused | events.CallAccepted):
            values["of_queue"] = f", queue {event.queue}" if event.queue else ""
        _logger.log(level, line.format_map(values), extra={"event": event})

    def _is_news(self, event: Event) -> bool:
        """Return whether to log an event: of an outage, only the first loop's loss and the last loop's recovery.

        The same of a time in which Redis's memory is full.
        """
        if isinstance(event, events.RedisDown):
            first = not self._down
            self._down.add(event.who)
            if first:
                self._since = time.monotonic()
            return first
        if isinstance(event, events.RedisUp | events.NodeReleased):
            self._down.discard(event.who)
            return not self._down
        if isinstance(event, events.CallRefused | events.CallAccepted) and event.kind == FULL:
            was, refused = bool(self._full), isinstance(event, events.CallRefused)
            (self._full.add if refused else self._full.discard)((event.who, event.queue))
            return was is not bool(self._full)
        return True


def _log_each(event: events.Started | events.Completed) -> None:
    """Log a line for each job of a batch."""
    if not _logger.isEnabledFor(logging.INFO):
        return
    name = type(event).__name__
    is_start = isinstance(event, events.Started)
    lengths = event.lateness if is_start else event.seconds
    for job_id, task, attempt, length in zip(event.ids, event.tasks, event.attempts, lengths, strict=True):
        done = f"started {length * 1e3:.1f} ms late" if is_start else f"done in {length:.3f} s"
        fields: dict[str, Any] = {
            "id": job_id,
            "queue": event.queue,
            "task": task,
            "attempt": attempt,
            "worker": event.worker,
        }
        fields["lateness" if is_start else "seconds"] = length
        message = f"job {job_id} of {event.queue}, task {task}, attempt {attempt}, {done}"
        _logger.info("%s", message, extra={"fields": {"event": name, **fields}})


def _show(value: object) -> object:
    if isinstance(value, list):
        items = [str(item) for item in value[:_MOST]]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        more = len(value) - _MOST  # pyright: ignore[reportUnknownArgumentType]
        return ", ".join(items) + (f" and {more} more" if more > 0 else "")
    return value


def configure(level: str = "INFO") -> None:
    """Write the log to stderr. Called by the commands; a program that embeds evsched configures logging itself.

    The warnings of libraries and handlers have the same form, as long as the app sets up no logging of its own.
    """
    logging.lastResort = handler(logging.WARNING)
    # It logs tracebacks when a broker ends or cannot be reached, which the reasons of the jobs say in a sentence.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    _logger.handlers = [handler()]
    _logger.setLevel(level)
    _logger.propagate = False


def level() -> str:
    """Return the level that `configure` set; empty in a program that configures logging itself."""
    return "" if _logger.propagate else logging.getLevelName(_logger.level)
