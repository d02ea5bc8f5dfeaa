"""The executor: from a job that was fetched to its outcome. It runs the handler; it knows no Redis.

    prepare (payload, task, arguments) -> begin, with care where needed -> call the handler -> judge what came of it

Each step is a value. The outcome is data too; the worker writes it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, Protocol, cast

import anyio
import anyio.to_thread
from msgspec.structs import replace

from evsched.errors import ConfigError, StoreRefused
from evsched.jobs.current_job import CurrentJob, GiveUp, Progress, RetryLater, set_current_job
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Outcome, Returned, encode, shorten
from evsched.jobs.tasks import Task
from evsched.recurrence.windows import WINDOW_NAME, read_window
from evsched.worker import process_pool
from evsched.worker.care import MarkRun, Turnstile, care_for, patience
from evsched.worker.failure import Failure, failure_of, message, where
from evsched.worker.preparation import Prepared, prepare
from evsched.worker.process_pool import HandlerFailed, ProcessDied
from evsched.worker.program import Program
from evsched.worker.run import Run
from evsched.worker.timeouts import RunningRuns
from evsched.worker.verdict import Failed, judge

RESULT_MOST: Final = 1_048_576
"""Bytes of a result that is kept: Redis copies it in one go, and redis.conf refuses what is longer than 4 MiB."""

_UNREAD: Final = 5.0
"""Seconds after which a job comes back whose window Redis refuses to tell: few rounds of a job that cannot start, and a
short wait for who has mended the key."""

_APART_MOST: Final = 8
"""Jobs that run apart at one time: each is a process of its own, with the app in its memory."""


class Apart(Protocol):
    """Runs a job in a process of its own."""

    async def __call__(self, queue: str, job: FetchedJob, now: float, heard: Callable[[Progress], object]) -> Outcome:
        """Return what came of it; `heard` is called with how far it is. Cancelling ends the process.

        Raises:
            ProcessDied: the process did.
        """
        ...


class Executor:
    """Runs handlers. `threads` bounds the plain functions that run at one time, `processes` the tasks on processes.

    `mark` tells Redis that a run begins; `apart` runs a job in a process of its own, which gets `kill_grace` seconds
    past the job's timeout. Without it such a job runs alone in this process.
    """

    def __init__(
        self,
        program: Program,
        threads: int,
        processes: int = 1,
        window_of: Callable[[str, str], Awaitable[str | None]] | None = None,
        *,
        mark: MarkRun | None = None,
        apart: Apart | None = None,
        kill_grace: float = 10.0,
    ) -> None:
        self._tasks = program.tasks
        self._middleware = program.middleware
        self._threads = anyio.CapacityLimiter(threads)
        self._processes = anyio.CapacityLimiter(processes)
        self._window_of = window_of
        """(queue, name) -> a window that is kept in Redis; raises StoreRefused where it cannot be read."""
        self._mark = mark
        self._marking = asyncio.Lock()
        self._apart = apart
        self._places_apart = anyio.CapacityLimiter(min(threads, _APART_MOST))
        self._kill_grace = kill_grace
        self.turnstile = Turnstile(self._tell_freed)
        self.state: Any = None
        """What the app's lifespan yields."""
        self.running = RunningRuns()
        self.freed: list[Callable[[], None]] = []
        """Called when a process of the pool is free again, and when a run that was alone has ended."""

    @property
    def free_processes(self) -> int:
        """How many tasks on processes can begin now."""
        return max(0, int(self._processes.available_tokens))

    async def run(self, run: Run) -> Outcome:
        """Run a job's handler and return what came of it. Never raises for what a job does.

        Raises:
            asyncio.CancelledError: the run was abandoned.
        """
        prepared = prepare(self._tasks, run)
        if isinstance(prepared, Buried):
            return _never_began(prepared)
        payload, task, policy = prepared.payload, prepared.task, prepared.policy
        run.policy, run.reply = policy, payload.reply
        if payload.window is not None and (closed := await self._closed(run, payload.window, payload.reply)):
            return _never_began(closed) if isinstance(closed, Buried) else closed
        if run.abandoned:
            raise asyncio.CancelledError
        if run.aborted:
            return Aborted(prepared.retention, payload.reply)
        self._make_current(run, prepared)
        if task.on == "process" and not self._reserve_process(run):
            return Returned()
        try:
            if run.job.deaths or policy.attempts == 1:
                return await self._run_with_care(run, prepared)
            return await self._run_among_others(run, prepared)
        except asyncio.CancelledError:
            if run.aborted and not run.abandoned:  # while it waited to begin
                return Aborted(prepared.retention, payload.reply)
            raise
        finally:
            if task.on == "process":
                self._free_process(run)

    async def _run_among_others(self, run: Run, prepared: Prepared) -> Outcome:
        if self.turnstile.closed:
            await self.turnstile.enter()
        else:
            self.turnstile.past += 1  # as `enter` does, without a coroutine: each job comes here
        try:
            return await self.perform(run, prepared)
        finally:
            self.turnstile.leave()

    async def _run_with_care(self, run: Run, prepared: Prepared) -> Outcome:
        on_process = prepared.task.on == "process"  # whose death is told from its worker's as it is
        care = care_for(run.job, prepared.policy.attempts, can_part=self._apart is not None or on_process)
        apart = care.apart and not on_process
        async with AsyncExitStack() as stack:
            if apart:
                await stack.enter_async_context(self._places_apart)
            open_again: Callable[[], None] | None = None
            if apart or on_process:
                # What comes between the mark and the first step counts as begun: so the process is there before it.
                await process_pool.ready(prepared.task.module)
            if care.alone:
                open_again = await stack.enter_async_context(self.turnstile.alone(patience(run.job)))
            else:
                await self.turnstile.enter()
                stack.callback(self.turnstile.leave)
            if self._mark is not None and (open_again or prepared.policy.attempts == 1):
                # One after the other: the next waits until this one has made its first step.
                async with self._marking:
                    run.marked = await self._mark(run, "alone" if open_again else "1")
                if not run.marked:
                    return Returned()  # it is not this worker's any more, and there is nothing to put back
                if open_again:
                    stack.callback(asyncio.ensure_future(self._let_others_begin(run, open_again)).cancel)
            return await (self._perform_apart if apart else self.perform)(run, prepared)

    async def _let_others_begin(self, run: Run, open_again: Callable[[], None]) -> None:
        """End a run's being alone, when it goes on for longer than what kills its process at once."""
        assert self._mark is not None
        await asyncio.sleep(1.0 + patience(run.job))
        if await self._mark(run, "1"):
            open_again()

    async def perform(self, run: Run, prepared: Prepared) -> Outcome:
        """Call the handler here, and return what came of it. Raises as `run` does."""
        text, failure = b"", None
        if run.current is None:
            self._make_current(run, prepared)
        run.ends = prepared.task.on != "thread"
        try:
            text = encode(await self._call_through(run, prepared))
            if late := self.running.late(run):
                failure = Failed(late)
        except asyncio.CancelledError as error:
            if run.abandoned:
                raise
            failure = _stopped(run, error, prepared.task)
        except GiveUp as error:
            told = failure_of(error, prepared.task.module)
            failure = Failed(message(error), given_up=True, traceback=told.traceback)
        except RetryLater as error:
            failure = Failed(message(error), delay=error.delay)
        # The one place that catches all: what a handler does must not end its worker, nor keep its slot for ever.
        except BaseException as error:  # noqa: BLE001
            failure = _raised(run, error, prepared.task)
        finally:
            self._end(run)
        if run.aborted:
            return Aborted(prepared.retention, prepared.payload.reply)
        if failure is None and len(text) > RESULT_MOST:
            why = f"the result has {len(text)} bytes, more than {RESULT_MOST}: return a reference"
            failure = Failed(why, given_up=True)
        if failure is None:
            return Done(text, prepared.retention, prepared.payload.reply)
        return judge(run.job, prepared.policy, failure, reply=prepared.payload.reply)

    async def _perform_apart(self, run: Run, prepared: Prepared) -> Outcome:
        assert self._apart is not None
        timeout, reply = prepared.timeout, prepared.payload.reply
        # When its handler begins is known there alone. If the worker dies too, the run is a doubt, however long it was.
        run.marked = True
        # The timeout is kept there; one that does not yield to it is ended from here.
        self._begin(run, None if timeout is None else timeout + self._kill_grace)
        now = run.now + time.monotonic() - run.handed
        try:
            outcome = await self._apart(run.queue, run.job, now, run.tell)
        except asyncio.CancelledError:
            if run.abandoned:
                raise
            outcome = judge(run.job, prepared.policy, Failed(run.late or "its process was ended"), reply=reply)
        except ProcessDied as error:
            outcome = judge(run.job, prepared.policy, Failed(str(error), killed=True), reply=reply)
        finally:
            self._end(run)
        return Aborted(prepared.retention, reply) if run.aborted else outcome

    async def _closed(self, run: Run, window: str, reply: bool) -> Deferred | Buried | None:
        """Return what becomes of a job whose window is closed now."""
        text: str | None = window
        named = ()
        try:
            if WINDOW_NAME.fullmatch(window):
                text = await self._window_of(run.queue, window) if self._window_of else None
                named = (window, text or "")
            if text is None:
                return Buried(
                    f"there is no window {window!r}: `evsched windows set {window} ...`, then revive it", reply
                )
            now = run.now + time.monotonic() - run.handed
            opens = read_window(text).next_open(now)
        except ConfigError as error:
            return Buried(shorten(str(error)), reply)
        except StoreRefused as error:  # without a note of the window: `defer` could not compare it
            back = run.now + time.monotonic() - run.handed + _UNREAD * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
            return Deferred(back, shorten(f"its window {window!r} cannot be read: {error}"))
        if opens is None:
            return Buried(shorten(f"window {text!r} does not open again within two years"), reply)
        return None if opens <= now else Deferred(opens, shorten(f"outside its window {text}"), *named)

    def _make_current(self, run: Run, prepared: Prepared) -> None:
        job = run.job
        lateness = run.now - job.due + time.monotonic() - run.handed
        run.current = CurrentJob(
            job.id,
            run.queue,
            prepared.task.name,
            job.attempt,
            job.due,
            job.planned,
            lateness,
            prepared.payload.meta,
            self.state,
            run.tell,
        )
        set_current_job(run.current)  # each run is an asyncio task, with a context of its own

    def _reserve_process(self, run: Run) -> bool:
        try:
            self._processes.acquire_on_behalf_of_nowait(run)
        except anyio.WouldBlock:
            return False
        return True

    def _free_process(self, run: Run) -> None:
        self._processes.release_on_behalf_of(run)
        self._tell_freed()

    def _tell_freed(self) -> None:
        for freed in self.freed:
            freed()

    def _call_through(self, run: Run, prepared: Prepared) -> Awaitable[Any]:
        """Call the handler, through the middleware if there is any."""
        if prepared.task.on == "loop" and not self._middleware:
            self._begin(run, prepared.timeout)
            return prepared.task.handler(*prepared.args, **prepared.kwargs)
        call: Callable[[], Awaitable[Any]] = partial(self._call, run, prepared)
        for middleware in reversed(self._middleware):
            call = partial(middleware, cast(CurrentJob, run.current), call)
        return call()

    async def _call(self, run: Run, prepared: Prepared) -> Any:
        """Call the handler where its task says."""
        task, args, kwargs = prepared.task, prepared.args, prepared.kwargs
        if task.on == "process":
            await process_pool.ready(task.module)  # to wait for it is no run
        self._begin(run, prepared.timeout)
        if task.on == "process":
            return await process_pool.run(task.handler, args, kwargs, cast(CurrentJob, run.current))
        if task.on == "thread":
            # There is a thread for each slot: none waits.
            return await anyio.to_thread.run_sync(_in_thread, task, args, kwargs, limiter=self._threads)
        return await task.handler(*args, **kwargs)

    def _begin(self, run: Run, timeout: float | None) -> None:
        run.began = time.monotonic()
        self.running.add(run, timeout)
        if run.on_begin is not None:
            run.on_begin(run)

    def _end(self, run: Run) -> None:
        self.running.discard(run)
        if run.began:
            run.took = time.monotonic() - run.began


def _in_thread(task: Task, args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return task.handler(*args, **kwargs)
    except GeneratorExit as error:
        # It would close the coroutines that wait for the thread, where none of them could catch it.
        told = failure_of(error, task.module)
        raise HandlerFailed(told.reason, told.traceback) from None


def _never_began(buried: Buried) -> Buried:
    return replace(buried, began=False)


def _stopped(run: Run, error: asyncio.CancelledError, task: Task) -> Failed:
    """Tell where a handler waited when it was cancelled."""
    place = where(error, task.module)
    reason = (run.late or "the handler was cancelled from inside") + place
    return Failed(reason, traceback=failure_of(error, task.module).traceback if place else "")


def _raised(run: Run, error: BaseException, task: Task) -> Failed:
    """Tell what a handler raised."""
    told = Failure(str(error), error.traceback) if isinstance(error, HandlerFailed) else failure_of(error, task.module)
    return Failed(run.late + where(error, task.module) if run.late else told.reason, traceback=told.traceback)
