"""The executor: from a job that was taken to its outcome. It runs the handler; it knows no Redis.

A pipeline of values: read the payload, find the task, convert the arguments, run, read what came of it. The outcome
is data; the worker writes it.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread
import msgspec

from evsched.errors import ConfigError, EvschedError, UnknownTask
from evsched.job import Buried, Done, Outcome, Payload, Retried, Taken, decode_payload, encode, shorten
from evsched.tasks import Task, Tasks


class RetryLater(EvschedError):
    """Raised by a handler: run this job again, after `delay` seconds or as its retry policy says.

    It counts as an attempt: the last allowed one goes to dead all the same.
    """

    def __init__(self, delay: float | None = None, reason: str = "the handler asked for another attempt") -> None:
        super().__init__(reason)
        self.delay = delay


class GiveUp(EvschedError):
    """Raised by a handler: never run this job again, it goes to dead with this reason."""


class CurrentJob:
    """What a handler may know of the job that it runs. Times in seconds, the due in Unix seconds."""

    __slots__ = ("_payload", "attempt", "cancelled", "due", "id", "lateness", "queue", "task")

    def __init__(self, run: Run, task: Task, payload: Payload) -> None:
        self.id = run.job.id
        self.queue = run.queue
        self.task = task.name
        self.attempt = run.job.attempt
        self.due = run.job.due
        self.lateness = run.now - run.job.due + time.monotonic() - run.handed
        """From the due to this moment, by Redis's clock."""
        self.cancelled = False
        """True: the timeout has passed, the worker stops or has lost the job. A plain function looks at this, since
        a thread cannot be ended from outside."""
        self._payload = payload

    @property
    def meta(self) -> dict[str, Any]:
        """The payload's `meta`."""
        return self._payload.meta


_current: Final[contextvars.ContextVar[CurrentJob]] = contextvars.ContextVar("evsched_current_job")


def current_job() -> CurrentJob:
    """Return the job that the calling handler runs.

    Raises:
        LookupError: no handler is running here.
    """
    return _current.get()


class Run:
    """A run in a worker's hands: `(job.id, job.attempt)` names it."""

    __slots__ = ("abandoned", "awaits", "current", "deadline", "handed", "job", "late", "now", "queue", "task", "work")

    def __init__(self, queue: str, job: Taken, now: float, handed: float) -> None:
        self.queue = queue
        self.job = job
        self.now = now
        """When Redis handed it out, by Redis's clock."""
        self.handed = handed
        """The same by this host's monotonic clock."""
        self.task = "?"
        self.awaits = True
        self.current: CurrentJob | None = None
        self.work: asyncio.Task[None] | None = None
        self.deadline = float("inf")
        """By the monotonic clock: when the timeout passes."""
        self.late: str | None = None
        """The timeout has passed: what to say of it."""
        self.abandoned = False
        """The job is not this worker's any more: whatever comes of the run is forgotten."""

    @property
    def lateness(self) -> float:
        """Seconds from the due to the hand-out, by Redis's clock."""
        return self.now - self.job.due

    def stop(self) -> None:
        """Tell the run to stop: an async handler is cancelled where it waits, a thread must look at `cancelled`."""
        if self.current is not None:
            self.current.cancelled = True
        if self.work is not None and self.awaits:
            self.work.cancel()

    def abandon(self) -> None:
        """Stop the run, and forget what comes of it."""
        self.abandoned = True
        self.stop()


class Executor:
    """Runs handlers. `threads` bounds the plain functions that run at one time."""

    def __init__(self, tasks: Tasks, threads: int) -> None:
        self._tasks = tasks
        self._threads = anyio.CapacityLimiter(threads)
        self.running: set[Run] = set()
        """Runs whose handler has begun and not ended, those abandoned included."""
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = float("inf")

    async def run(self, run: Run) -> Outcome:
        """Run a job's handler and return what came of it. Never raises for what a job does.

        Raises:
            asyncio.CancelledError: the run was abandoned.
        """
        job = run.job
        try:
            payload = decode_payload(job.payload)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            return Buried(shorten(f"the payload is no job: {error}: mend it and schedule it again"), False)
        run.task = payload.task
        try:
            task = self._tasks.find(payload.task)
            policy = task.policy(payload)
            args, kwargs = task.bind(payload)
        except UnknownTask as error:
            return Buried(shorten(str(error)), payload.reply)
        except (msgspec.ValidationError, ConfigError, RecursionError) as error:
            return Buried(shorten(f"the arguments do not fit: {error}: mend the payload"), payload.reply)
        if payload.expires is not None and run.now > payload.expires:
            late = run.now - payload.expires
            return Buried(f"expired {late:.3g} s before a worker took it", payload.reply)
        if job.attempt > policy.attempts:
            return Buried(
                f"all {policy.attempts} attempts are spent: the last began and never ended, its worker died or hung",
                payload.reply,
            )

        run.current = CurrentJob(run, task, payload)
        run.awaits = task.awaits
        _current.set(run.current)  # each run is an asyncio task, with a context of its own
        self._begin(run, task.timeout if payload.timeout is None else payload.timeout)
        retention = task.retention if payload.retention is None else payload.retention
        delay: float | None = None
        try:
            if task.awaits:
                result = await task.handler(*args, **kwargs)
            else:
                result = await anyio.to_thread.run_sync(partial(task.handler, *args, **kwargs), limiter=self._threads)
            if run.late is None:
                return Done(encode(result), max(retention, 0.0), payload.reply)
            reason = run.late
        except asyncio.CancelledError:
            if run.abandoned:
                raise
            reason = run.late or "the handler was cancelled from inside"
        except GiveUp as error:
            return Buried(shorten(str(error)), payload.reply)
        except RetryLater as error:
            reason, delay = str(error), error.delay
        # The one place that catches all: what a handler does must not end its worker.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            reason = run.late or _explain(error)
        finally:
            self.running.discard(run)
        if job.attempt >= policy.attempts:
            return Buried(shorten(f"attempt {job.attempt} of {policy.attempts}: {reason}"), payload.reply)
        return Retried(policy.delay(job.attempt) if delay is None else max(0.0, delay), shorten(reason))  # NaN: 0

    def _begin(self, run: Run, timeout: float | None) -> None:
        # One timer for all runs, at the earliest deadline: a timer for each would cost more than a short job.
        self.running.add(run)
        if timeout is not None:
            run.deadline = time.monotonic() + timeout
            self._watch_for(run.deadline)

    def _watch_for(self, deadline: float) -> None:
        if deadline < self._watch_at:
            if self._watch is not None:
                self._watch.cancel()
            self._watch_at = deadline
            self._watch = asyncio.get_running_loop().call_at(deadline, self._time_out)

    def _time_out(self) -> None:
        now = time.monotonic()
        self._watch, self._watch_at = None, float("inf")
        for run in self.running:
            if run.late is None and run.deadline <= now:
                run.late = "timeout: it ran longer than its limit"
                run.stop()
        self._watch_for(min((run.deadline for run in self.running if run.late is None), default=float("inf")))

    def stuck(self, grace: float) -> Run | None:
        """Return a run that went on for `grace` seconds past its timeout, if there is one. For any thread."""
        now = time.monotonic()
        return next((run for run in list(self.running) if run.deadline + grace < now), None)


def _explain(error: BaseException) -> str:
    """Return what an operator needs to know of an exception: its type, its message, and where it was raised."""
    where, trace = "", error.__traceback__
    while trace is not None:
        where = f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
        trace = trace.tb_next
    return f"{type(error).__name__}: {error}{where}"
