"""A run: one job in a worker, from the reply that handed it out to its outcome.

`prepare` reads the payload and finds the task, which makes a `Prepared` job. `judge` makes the outcome of what the
handler did; it is pure, but for the jitter of retries. `encode_result` makes JSON of results, and refuses a value that
JSON would change silently.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, Literal, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from evsched.display import format_duration
from evsched.errors import CannotOpen, ConfigError
from evsched.execution.failure import message
from evsched.jobs import option_checks as check
from evsched.jobs.current_job import CurrentJob, Progress
from evsched.jobs.job import (
    Aborted,
    Buried,
    Deferred,
    Done,
    FetchedJob,
    Forwarded,
    Message,
    Outcome,
    Payload,
    Retried,
    Snoozed,
    decode_payload,
    describe_malformed,
    encode,
    is_not_finite,
    label_of,
    shorten,
)
from evsched.jobs.kept import Keep, KeptAnswer, Question
from evsched.jobs.record import DEFAULT_RETENTION
from evsched.jobs.redaction import REDACTED
from evsched.jobs.retry import Retry, least_delay
from evsched.jobs.sealed import PayloadCodec, covers_all, open_payload
from evsched.jobs.steering import GiveUp, RetryLater, Snooze
from evsched.jobs.tasks import Hooks, Task, Tasks


class Prepared(Struct, frozen=True):
    """A job that can be run: its payload, its task, and the arguments for the handler."""

    payload: Payload
    task: Task
    policy: Retry
    args: list[Any]
    kwargs: dict[str, Any]

    @property
    def retention(self) -> float:
        kept = self._chosen_retention
        return DEFAULT_RETENTION if kept is None else kept

    def retention_if_done(self, job: FetchedJob) -> float:
        """Return for how long its record is kept once it is done: not at all if nobody can name it, or waits for it."""
        kept = self._chosen_retention
        if kept is None and not self.payload.reply and job.is_unnamed:
            return 0.0
        return DEFAULT_RETENTION if kept is None else kept

    @property
    def _chosen_retention(self) -> float | None:
        return self.task.retention if self.payload.retention is None else self.payload.retention

    @property
    def timeout(self) -> float | None:
        return timeout_of(self.task, self.payload)


def timeout_of(task: Task, payload: Payload) -> float | None:
    """Return the seconds that a run of a job may take; None = no limit."""
    return task.timeout if payload.timeout is None else payload.timeout


class NoTask(Struct, frozen=True):
    """A job whose task the app does not have. Another worker may have it."""

    payload: Payload

    @property
    def retention(self) -> float:
        return DEFAULT_RETENTION if self.payload.retention is None else max(0.0, self.payload.retention)


def read_payload(job: FetchedJob) -> Payload | Buried:
    """Read the payload of a job, or return why that cannot be done."""
    try:
        return decode_payload(job.readable)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        why = describe_malformed(job.readable, error)
        return Buried(shorten(f"invalid payload: {why}: correct it and enqueue the job again"), False)


def prepare(tasks: Tasks, job: FetchedJob, payload: Payload, now: float) -> Prepared | NoTask | Buried:
    """Return the job ready to run, or why it cannot or must not run. `now` by Redis's clock."""
    task = tasks.get(payload.task)
    if task is None:
        return _expired(job, payload, now) or NoTask(payload)
    if payload.sealed is not None:
        why = (
            f"its arguments are sealed, {payload.sealed}, and this worker has no codec: give it one, and revive the job"
        )
        return _expired(job, payload, now) or Buried(shorten(why), payload.reply)
    try:
        policy = task.policy(payload)
        args, kwargs = task.bind(payload)
    except (msgspec.ValidationError, ConfigError, RecursionError) as error:
        advice = "correct the payload, or revive the job when the workers have the code for it"
        return Buried(shorten(f"the arguments do not fit: {error}: {advice}"), payload.reply)
    if payload.tags:
        try:
            check.tags("tags", payload.tags)
        except ConfigError as error:
            return Buried(shorten(f"the payload's {error}: correct the payload"), payload.reply)
    if payload.timeout is not None and payload.timeout <= 0:
        wrong = f"the payload's timeout is {payload.timeout:g}, must be over 0 s: correct the payload"
        return Buried(wrong, payload.reply)
    if payload.retention is not None and payload.retention < 0:
        wrong = f"the payload's retention is {payload.retention:g}, must be 0 s or more: correct the payload"
        return Buried(wrong, payload.reply)
    if payload.expires is not None and (expired := _expired(job, payload, now)):
        return expired
    if job.attempt > policy.attempts and (policy.attempts == 1 or not job.deaths):
        return Buried(_why_spent(job, policy.attempts), payload.reply)
    return Prepared(payload, task, policy, args, kwargs)


def _expired(job: FetchedJob, payload: Payload, now: float) -> Buried | None:
    if payload.expires is None or now <= payload.expires:
        return None
    again = "" if job.attempt == 1 else f", while it waited for attempt {job.attempt}"
    why = f"expired {format_duration(now - payload.expires)} before a worker could start it{again}"
    return Buried(why, payload.reply, "expired")


def _why_spent(job: FetchedJob, attempts: int) -> str:
    """Return why a job is given up that has no attempt left."""
    begun = job.attempt - 1
    if attempts == 1:
        # It is marked before it begins, so its worker may have died in between.
        return "its only attempt began, or was about to, and never ended: its worker died or hung"
    remark = doubtful(job.counted)
    if begun == attempts:
        return f"the last of its {attempts} attempts began and never ended{remark}: its worker died or hung"
    return f"{begun} attempts began{remark}, {attempts} are allowed: workers died or hung, or the limit was lowered"


def doubtful(counted: int) -> str:
    """Say how many of a job's attempts are runs that may not have begun."""
    if not counted:
        return ""
    return f" ({counted} earlier run{' is' if counted == 1 else 's are'} counted that may not have begun)"


_STORE_AGAIN: Final = 5.0
"""Seconds until a job is looked at again whose arguments are in a store that fails."""

StopReason = Literal["timeout", "cancelled", "lost"]
"""Why a run is to stop: its timeout has passed; its job was cancelled; its job is not this worker's any more."""

_PRECEDENCE: Final[dict[StopReason | None, int]] = {None: 0, "timeout": 1, "cancelled": 2, "lost": 3}


class RunKeeper(Protocol):
    """Answers the questions of runs about what their jobs have kept, as a `Keeper` does for one run."""

    def ask(self, run: Run, question: Question) -> Future[KeptAnswer]: ...


class Delivery(Struct, frozen=True):
    """One reply of `start`: the data that its runs have in common."""

    queue: str
    now: float
    """When Redis handed them out, by its clock."""
    sent: float
    """When the call of `start` was sent, by this host's monotonic clock; at most a round trip before `now`."""
    on_progress: Callable[[], None] | None = None
    """Called when one of the runs has reported progress, from any thread."""
    shard_of: str | None = None
    """The queue of which `queue` is a shard; None = it is not a shard."""
    keeper: RunKeeper | None = None
    """Keeps data of these runs for later runs of their jobs."""

    @property
    def whole_queue(self) -> str:
        """The queue as the program knows it, without its shards."""
        return self.shard_of or self.queue

    def redis_now(self) -> float:
        """Return the present time by Redis's clock; at most a round trip ahead of it."""
        return self.now + time.monotonic() - self.sent


class Run(Struct, eq=False):
    """A run; `(job.id, job.attempt)` names it. One object for each job, so it is as small as it can be.

    Each group of attributes below has one writer. `job` and `delivery` do not change, but that the arguments of the job
    are opened once. The executor sets the attributes
    of the second group, and the consumer those of the third. The handler sets `progress` and `positions`, from any
    thread, and nothing else. To stop a run, call `stop` in the event loop's thread.
    """

    job: FetchedJob
    delivery: Delivery

    task: str = "?"
    """The name of the task; "?" until the payload is read."""
    hooks: Hooks | None = None
    """The hooks of the task, if the task is known."""
    prepared: Prepared | None = None
    current: CurrentJob | None = None
    """The run as the handler sees it."""
    marked: bool = False
    """Redis knows, or will soon, that the run has begun. `ProgressWriter` writes this too."""
    began: float = 0.0
    """When the handler began, by the monotonic clock; 0 = it has not."""
    took: float | None = None
    """Seconds that the handler ran; None until it has ended."""
    cancellable: bool = False
    """Cancelling `work` ends what it waits for: its arguments, or the handler, unless that is in a thread."""
    entered: bool = False
    """The handler has been called. On a busy machine, its thread or its process may call it long after `began`."""
    thread: int = 0
    """The thread that runs the handler, if the handler has one of its own; else 0."""
    outcome: Outcome | None = None
    """None until the run has ended, and for good if it is lost."""

    work: asyncio.Task[None] | None = None
    on_begin: Callable[[Run], None] | None = None
    """Called when the handler begins, if that is not at once."""

    repeated: bool = False
    """Its end was sent before, and no reply came: it may be written already."""

    progress: Progress | None = None
    """The last report of the handler. `ProgressWriter` sets it back to None when that is written."""
    positions: dict[str, bytes] | None = None
    """The last positions that the handler has noted and not kept. They are written when the run ends."""
    stop_reason: StopReason | None = None
    draining: bool = False
    """The worker stops."""
    on_drain: Callable[[], None] | None = None
    """Called when the worker begins to stop."""

    @property
    def reply(self) -> bool:
        return self.prepared is not None and self.prepared.payload.reply

    @property
    def in_only_attempt(self) -> bool:
        """The handler is running, and the job has one attempt: it must not be run again."""
        prepared = self.prepared
        return prepared is not None and prepared.policy.attempts == 1 and self.began > 0 and self.took is None

    def report_progress(self, progress: Progress) -> None:
        """Note how far the run is. For any thread."""
        self.progress = progress
        if self.delivery.on_progress is not None:
            self.delivery.on_progress()

    def ask(self, question: Question) -> Future[KeptAnswer]:
        """Ask what the job has kept, or keep more. For any thread."""
        if isinstance(question, Keep) and self.positions:
            self.positions.pop(question.name, None)
        if self.delivery.keeper is not None:
            return self.delivery.keeper.ask(self, question)
        nobody = Future[KeptAnswer]()
        nobody.set_result(KeptAnswer("refused", b"nothing can be kept here"))
        return nobody

    def note_position(self, name: str, value: bytes) -> None:
        """Note a position of the handler. For any thread."""
        if self.positions is None:
            self.positions = {}
        self.positions[name] = value

    def drain(self) -> None:
        """Tell the handler that the worker stops."""
        self.draining = True
        if self.current is not None:
            self.current.draining = True
        if self.on_drain is not None:
            self.on_drain()

    def prepare(self, tasks: Tasks) -> Prepared | NoTask | Buried:
        """Read the payload and find the task; return the job ready to run, or why it cannot run."""
        payload = read_payload(self.job)
        if isinstance(payload, Buried):
            return payload
        self.task = payload.task
        prepared = prepare(tasks, self.job, payload, self.delivery.redis_now())
        if isinstance(prepared, Prepared):
            self.prepared, self.hooks = prepared, prepared.task.hooks
        elif task := tasks.get(payload.task):
            self.hooks = task.hooks
        return prepared

    def has_failed(self, error: BaseException | None) -> bool:
        """Return whether a run that ended with this exception counts as failed; None = its handler returned.

        A run that was cancelled, or that this worker lost, has not failed, nor has one that asks to run later. After
        its timeout it has, even if a thread returns.
        """
        if isinstance(error, RetryLater | Snooze):
            return False
        return self.stop_reason == "timeout" or (error is not None and self.stop_reason is None)

    async def prepare_opened(
        self, tasks: Tasks, codec: PayloadCodec
    ) -> Prepared | NoTask | Buried | Deferred | Aborted:
        """Open the arguments, and prepare the run. If they cannot be opened, the job waits or is dead.

        Raises:
            asyncio.CancelledError: the run is lost.
        """
        refusal = await self._open(tasks, codec)
        prepared = self.prepare(tasks)
        if (
            refusal is None
            or isinstance(prepared, NoTask)
            or (isinstance(prepared, Buried) and prepared.outcome == "expired")
        ):
            return prepared
        self.prepared = None
        return refusal

    async def _open(self, tasks: Tasks, codec: PayloadCodec) -> Buried | Deferred | Aborted | None:
        payload = read_payload(self.job)
        if isinstance(payload, Buried) or (task := tasks.get(payload.task)) is None:
            return None  # `prepare` says why it cannot run here
        if self.stop_reason is not None:
            return stopped_before(self, NoTask(payload))
        seconds = timeout_of(task, payload) if codec.waits else None
        limit = asyncio.timeout(seconds if seconds and seconds > 0 else None)  # `prepare` refuses another one
        self.cancellable = True
        try:
            if not codec.accepts_plain(payload.task) and not covers_all(self.job.payload):
                why = "its arguments are not encrypted, and the codec of the app takes no others: enqueue it by the app"
                return Buried(why, payload.reply)
            async with limit:
                opened = await open_payload(codec, self.job.payload, self.job.id)
            self.job = replace(self.job, opened=opened)
            return None
        except CannotOpen as error:
            why = f"its arguments cannot be read: {error}"
            if not error.later:
                return Buried(shorten(f"{why}. Revive the job when it can be read"), payload.reply)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            wrong = f"its arguments, once opened, are not valid: {error}"
            return Buried(
                shorten(f"{wrong}: correct what sealed them, or find out who can write to Redis"), payload.reply
            )
        # The codec and its store are the user's. They may raise anything, such as a CancelledError of their own.
        except BaseException as error:  # noqa: BLE001
            failed = f"{type(error).__name__}: {message(error)}".removesuffix(": ")
            if limit.expired():
                failed = f"its timeout, {format_duration(seconds or 0)}, passed before its store gave them"
            why = f"its arguments cannot be read: {failed}"
        finally:
            self.cancellable = False
        if self.stop_reason is not None:
            return stopped_before(self, NoTask(payload))
        return Deferred(self.delivery.redis_now() + _STORE_AGAIN, shorten(why), cause="store")

    def end(self, outcome: Outcome | None) -> None:
        """Keep the outcome, unless the run was given up and has one; drop everything that only a live run needs.

        `current` refers to the run, and so does `work`, whose context has `current`. They would live until the garbage
        collector finds them.
        """
        if self.outcome is None:
            self.outcome = outcome
        self.prepared = self.current = self.work = self.on_drain = None

    def refuse(self, why: str) -> None:
        """Note that Redis has refused the message with which the run ends: it ends in another way."""
        if isinstance(self.outcome, Forwarded):
            self.outcome = self.outcome.refused(why)

    def put_off(self, delay: float, why: str) -> None:
        """Note that Redis takes no message now, so that the run ends without one, and its job runs again later."""
        if isinstance(self.outcome, Forwarded):
            self.outcome = self.outcome.put_off(delay, why)

    def stop(self, reason: StopReason) -> None:
        """Tell the run to stop. "lost" takes precedence over "cancelled", and that over "timeout".

        An async handler is cancelled where it waits, a process is ended, and a thread must look at `cancelled`. A run
        that waits for its arguments is cancelled too. Another one that has not begun looks at `stop_reason` before it
        begins.
        """
        if _PRECEDENCE[reason] > _PRECEDENCE[self.stop_reason]:
            self.stop_reason = reason
        if self.current is not None:
            self.current.stopped = self.stop_reason
        if self.work is not None and self.cancellable:
            self.work.cancel()


RESULT_MOST: Final = 1_048_576
"""Bytes of a result or a message: Redis copies it in one go, and redis.conf refuses values over 4 MiB."""

TIMED_OUT: Final = "timeout: it ran longer than its limit"


class Failed(Struct, frozen=True):
    """How a run failed."""

    reason: str
    delay: float | None = None
    """Seconds that the handler asked for; None = as the policy says."""
    given_up: bool = False
    killed: bool = False
    """It killed the process in which it was isolated, or two of the pool before the handler began."""
    began: bool = True
    """Whether the handler had begun when that process died."""
    traceback: str = ""
    error: str = ""
    """The class of the handler's exception; empty = it raised none."""
    refused: str = ""
    """Why the policy allows no other attempt after this exception; empty if it does."""
    place: str | None = None
    """Where the handler was, as the end of a reason. None: its exception asks for a retry or gives up, or it did not
    fail itself; the reason then stays as it is, even after a timeout."""


def judge(
    job: FetchedJob,
    prepared: Prepared,
    result: bytes | Message | Failed | Snoozed,
    stop_reason: StopReason | None = None,
    *,
    began: bool = True,
) -> Outcome:
    """Return the outcome of a run. `result`: the handler's result, how it failed, or that it snoozes.

    `began` is False for a run that was stopped while it waited for a process, in a process or in a middleware, before
    its handler was called.
    """
    if stop_reason == "cancelled":
        return aborted(prepared, began=began)
    if isinstance(result, Snoozed):
        return _judge_snooze(job, prepared, result)
    if isinstance(result, Failed):
        if stop_reason == "timeout" and result.place is not None:
            when = "" if began else " before its handler began"
            result = replace(result, reason=TIMED_OUT + result.place + when, refused="", error="")
        return _judge_failure(job, prepared, result)
    if stop_reason == "timeout":
        return _judge_failure(job, prepared, Failed(TIMED_OUT))
    message = isinstance(result, Message)
    size = len(result.text if message else result)
    if size > RESULT_MOST:
        why = f"the {'message' if message else 'result'} has {size} bytes, more than {RESULT_MOST}: return a reference"
        return _judge_failure(job, prepared, Failed(why, given_up=True))
    if message:
        payload = prepared.payload
        name = REDACTED if payload.redact else result.name[:200]
        otherwise = _judge_failure(job, prepared, Failed(f"Redis refused the message to {name}"))
        return Forwarded(
            b"null",
            prepared.retention_if_done(job),
            payload.reply,
            message=result,
            otherwise=otherwise,
            label=label_of(payload),
        )
    kept = prepared.retention_if_done(job)
    return Done(result, kept, prepared.payload.reply, label_of(prepared.payload))


def _judge_snooze(job: FetchedJob, prepared: Prepared, snoozed: Snoozed) -> Snoozed | Buried:
    """Return the outcome of a run that snoozes: it costs no attempt, but none may be left for the next run."""
    if job.attempt <= prepared.policy.attempts:
        return snoozed
    count = _beyond(job.attempt, prepared.policy.attempts)
    reason = shorten(f"attempt {count}: {snoozed.reason}; not run again: no attempt is left")
    return Buried(reason, prepared.payload.reply)


def _beyond(attempt: int, allowed: int) -> str:
    """Name an attempt of a suspect, which may begin more often than allowed: another job may have caused the deaths."""
    return f"{attempt} ({allowed} are allowed, but workers died that held the job)"


def aborted(prepared: Prepared | NoTask, *, began: bool = True) -> Aborted:
    """Return the outcome of a run whose job was cancelled."""
    return Aborted(prepared.retention, prepared.payload.reply, began)


def stopped_before(run: Run, prepared: Prepared | NoTask) -> Aborted:
    """Return the outcome of a run that was stopped before its handler began.

    Raises:
        asyncio.CancelledError: the run is lost.
    """
    if run.stop_reason != "cancelled":
        raise asyncio.CancelledError
    return aborted(prepared, began=False)


def _judge_failure(job: FetchedJob, prepared: Prepared, failure: Failed) -> Retried | Buried:
    location = (failure.place or "").strip(" ()")
    outcome = _retry_or_bury(job, prepared, failure)
    return replace(outcome, traceback=failure.traceback, error=failure.error, location=location)


def _retry_or_bury(job: FetchedJob, prepared: Prepared, failure: Failed) -> Retried | Buried:
    policy, reply = prepared.policy, prepared.payload.reply
    if failure.given_up:
        return Buried(shorten(failure.reason), reply)
    # A job that kills its process now most likely killed those of its doubtful runs too, so they count as attempts. The
    # run of a job with one attempt is marked before it begins, so none of its doubtful runs has begun.
    killed = failure.killed and policy.attempts > 1
    doubts = job.doubts if killed else 0
    attempt = job.attempt + doubts
    count = f"{attempt} of {policy.attempts}" if attempt <= policy.attempts else _beyond(attempt, policy.attempts)
    refused = f"; not run again: {failure.refused}" if failure.refused else ""
    reason = shorten(f"attempt {count}{doubtful(job.counted + doubts)}: {failure.reason}{refused}")
    if attempt >= policy.attempts or refused:
        return Buried(reason, reply, killed=killed)
    # A handler may ask for NaN: max() then returns its first argument, the least delay.
    wait = policy.delay(attempt) if failure.delay is None else max(least_delay(attempt), failure.delay)
    unsure = killed and not failure.began
    return Retried(wait, reason, killed=killed, unsure=unsure)


def encode_result(result: Any) -> bytes:
    """Return a result as JSON.

    Raises:
        GiveUp: JSON cannot hold it. The handler has done its work, so another attempt would do it again for nothing.
    """
    try:
        text = encode(result)
        # NaN and the infinities become null. Most results have no null, and are not looked at.
        lost = result is not None and b"null" in text and is_not_finite(result)
    # A class may raise anything while it is encoded.
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise GiveUp(f"the result is not JSON: {error}: return a value that JSON can hold") from None
    if lost:
        raise GiveUp("the result has a number that JSON cannot hold, NaN or infinite: return None or a string for it")
    return text
