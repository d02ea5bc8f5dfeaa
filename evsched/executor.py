"""The executor: from a job that was taken to its outcome. It runs the handler; it knows no Redis.

A pipeline of values: read the payload, find the task, convert the arguments, run, read what came of it. The outcome
is data; the worker writes it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final, cast

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from evsched import processes
from evsched.backoff import Retry, least_delay
from evsched.current import CurrentJob, GiveUp, RetryLater, explain, set_current_job
from evsched.errors import ConfigError, UnknownTask
from evsched.job import (
    Aborted,
    Buried,
    Deferred,
    Done,
    Outcome,
    Payload,
    Retried,
    decode_payload,
    encode,
    shorten,
)
from evsched.processes import HandlerFailed
from evsched.recurrence import Declared
from evsched.run import Run
from evsched.tasks import Task, Tasks
from evsched.windows import WINDOW_NAME, read_window

RESULT_MOST: Final = 1_048_576
"""Bytes of a result that is kept: Redis copies it in one go, and redis.conf refuses what is longer than 4 MiB."""

Middleware = Callable[[CurrentJob, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Gets the job and what runs it (or the next middleware), and returns the result."""

Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
"""Makes what the tasks of a worker share; `current_job().state` is what it yields."""


@asynccontextmanager
async def no_lifespan() -> AsyncGenerator[None]:
    """Share nothing."""
    yield


class Program(Struct, frozen=True):
    """What an app brings to a worker: its tasks, and what stands around each run of them."""

    tasks: Tasks
    middleware: list[Middleware] = []
    lifespan: Lifespan = no_lifespan
    owner: str = ""
    """The app's name: the recurrences that it declares are its own."""
    recurrences: list[tuple[str, Declared]] = []
    """(queue, recurrence)."""


class Executor:
    """Runs handlers. `threads` bounds the plain functions that run at one time, `processes` the tasks on processes."""

    def __init__(
        self,
        program: Program,
        threads: int,
        processes: int = 1,
        window_of: Callable[[str, str], Awaitable[str | None]] | None = None,
    ) -> None:
        self._tasks = program.tasks
        self._middleware = program.middleware
        self._threads = anyio.CapacityLimiter(threads)
        self._processes = anyio.CapacityLimiter(processes)
        self._window_of = window_of
        """(queue, name) -> a window that is kept in Redis."""
        self.state: Any = None
        """What the app's lifespan yields."""
        self.running: set[Run] = set()
        """Runs whose handler has begun and not ended, those abandoned included."""
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = float("inf")

    async def run(self, run: Run) -> Outcome:
        """Run a job's handler and return what came of it. Never raises for what a job does.

        Raises:
            asyncio.CancelledError: the run was abandoned.
        """
        prepared = self._prepare(run)
        if isinstance(prepared, Buried):
            return prepared
        payload, task, policy, args, kwargs = prepared
        retention = max(0.0, task.retention if payload.retention is None else payload.retention)
        if payload.window is not None and (closed := await self._closed(run, payload.window, payload.reply)):
            return closed
        if run.abandoned:
            raise asyncio.CancelledError
        if run.aborted:
            return Aborted(retention, payload.reply)
        current = run.current = self._current(run, task, payload)
        set_current_job(current)  # each run is an asyncio task, with a context of its own
        run.ends = task.on != "thread"
        timeout = task.timeout if payload.timeout is None else payload.timeout
        reason: str | None = None
        delay, given_up, text = None, False, b""
        try:
            if task.on == "loop" and not self._middleware:
                self._begin(run, timeout)
                text = encode(await task.handler(*args, **kwargs))
            else:
                call = partial(self._call, run, task, args, kwargs, timeout)
                for middleware in reversed(self._middleware):
                    call = partial(middleware, current, call)
                text = encode(await call())
            reason = run.late
        except asyncio.CancelledError:
            if run.abandoned:
                raise
            reason = run.late or "the handler was cancelled from inside"
        except GiveUp as error:
            reason, given_up = str(error), True
        except RetryLater as error:
            reason, delay = str(error), error.delay
        # The one place that catches all: what a handler does must not end its worker.
        except (Exception, SystemExit) as error:  # noqa: BLE001
            reason = run.late or (str(error) if isinstance(error, HandlerFailed) else explain(error))
        finally:
            self.running.discard(run)
            if run.began:
                run.took = time.monotonic() - run.began
        if run.aborted:
            return Aborted(retention, payload.reply)
        if reason is None and len(text) <= RESULT_MOST:
            return Done(text, retention, payload.reply)
        if reason is None:
            reason, given_up = f"the result has {len(text)} bytes, more than {RESULT_MOST}: return a reference", True
        if given_up:
            return Buried(shorten(reason), payload.reply)
        reason = f"attempt {run.job.attempt} of {policy.attempts}: {reason}"
        if run.job.attempt >= policy.attempts:
            return Buried(shorten(reason), payload.reply)
        least = least_delay(run.job.attempt)
        wait = policy.delay(run.job.attempt) if delay is None else max(least, delay)  # NaN: the least
        return Retried(wait, shorten(reason))

    def _prepare(self, run: Run) -> tuple[Payload, Task, Retry, list[Any], dict[str, Any]] | Buried:
        """Read what is to be run, or why it cannot or must not be."""
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
        if payload.expires is not None:
            late = run.now + time.monotonic() - run.handed - payload.expires
            if late > 0:
                return Buried(f"expired {late:.3g} s before a worker could start it", payload.reply, "expired")
        if job.attempt > policy.attempts:
            return Buried(
                f"all {policy.attempts} attempts are spent: the last began and never ended, its worker died or hung",
                payload.reply,
            )
        return payload, task, policy, args, kwargs

    async def _closed(self, run: Run, window: str, reply: bool) -> Deferred | Buried | None:
        """Return what becomes of a job whose window is closed now."""
        try:
            text: str | None = window
            if WINDOW_NAME.fullmatch(window):
                text = await self._window_of(run.queue, window) if self._window_of else None
            if text is None:
                return Buried(
                    f"there is no window {window!r}: `evsched windows set {window} ...`, then revive it", reply
                )
            now = run.now + time.monotonic() - run.handed
            opens = read_window(text).next_open(now)
        except ConfigError as error:
            return Buried(shorten(str(error)), reply)
        if opens is None:
            return Buried(shorten(f"window {text!r} does not open again within two years"), reply)
        return None if opens <= now else Deferred(opens, shorten(f"outside its window {text}"))

    def _current(self, run: Run, task: Task, payload: Payload) -> CurrentJob:
        job = run.job
        lateness = run.now - job.due + time.monotonic() - run.handed
        return CurrentJob(
            job.id,
            run.queue,
            task.name,
            job.attempt,
            job.due,
            job.planned,
            lateness,
            payload.meta,
            self.state,
            run.tell,
        )

    async def _call(self, run: Run, task: Task, args: list[Any], kwargs: dict[str, Any], timeout: float | None) -> Any:
        """Call the handler where its task says."""
        if task.on == "process":
            began = partial(self._begin, run, timeout)  # not before there is a process: to wait for one is no run
            return await processes.run(
                task.handler, args, kwargs, cast(CurrentJob, run.current), began, self._processes
            )
        self._begin(run, timeout)
        if task.on == "loop":
            return await task.handler(*args, **kwargs)
        return await anyio.to_thread.run_sync(partial(task.handler, *args, **kwargs), limiter=self._threads)

    def _begin(self, run: Run, timeout: float | None) -> None:
        # One timer for all runs, at the earliest deadline: a timer for each would cost more than a short job.
        self.running.add(run)
        run.began = time.monotonic()
        if timeout is not None:
            run.deadline = run.began + timeout
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
