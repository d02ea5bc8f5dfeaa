"""Calling handlers: on the event loop, in a thread or in a process, through the app's middleware."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import anyio
import anyio.to_thread
from msgspec import Struct

from evsched import forks
from evsched.execution.failure import Failure, failure_of, message, release, where
from evsched.execution.process_pool import CallHandler, HandlerFailed, HandlerMissing, ProcessDied, ProcessPool
from evsched.execution.program import Program
from evsched.execution.run import Prepared, Run
from evsched.execution.running_runs import RunningRuns
from evsched.execution.verdict import Failed, encode_result
from evsched.jobs.current_job import CurrentJob, set_current_job
from evsched.jobs.job import Message, Snoozed, shorten
from evsched.jobs.retry import class_name, kinds_of
from evsched.jobs.steering import GiveUp, RetryLater, Snooze
from evsched.jobs.tasks import Task


class Handlers:
    """Calls the handlers of an app. `threads` bounds the plain functions that run at one time."""

    def __init__(self, program: Program, threads: int) -> None:
        self._middleware = program.middleware
        self._threads = anyio.CapacityLimiter(threads)
        self.state: Any = None
        """The value that the app's lifespan yields."""
        self.running = RunningRuns()
        self.processes = ProcessPool()

    def make_current(self, run: Run, prepared: Prepared) -> None:
        """Have `current_job` return a run's job in the run's own asyncio task."""
        job, delivery = run.job, run.delivery
        run.current = CurrentJob(
            job.id,
            delivery.whole_queue,
            prepared.task.name,
            job.attempt,
            job.due,
            job.planned,
            delivery.redis_now() - job.due,
            prepared.payload.meta,
            self.state,
            run.report_progress,
        )
        set_current_job(run.current)

    async def call(self, run: Run, prepared: Prepared) -> bytes | Message | Failed | Snoozed:
        """Call the handler of a run; return its result as JSON, its message, how it failed, or that it snoozes.

        Raises:
            asyncio.CancelledError: the run is lost.
            HandlerMissing: no process finds the handler, which has not begun.
        """
        run.cancellable = prepared.task.on != "thread"
        try:
            if prepared.task.on == "process":
                # The wait for a process does not count as running time.
                await self.processes.ready(prepared.task.module, prepared.task.handler.__qualname__)
            result = await self._call_through(run, prepared)
            return result if type(result) is Message else encode_result(result)
        except HandlerMissing:
            raise
        # The one place that catches all: a handler must neither end its worker nor keep its slot for ever.
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and run.stop_reason == "lost":
                raise
            ended = _ended(error, prepared)
            release(error)
            return ended
        finally:
            forks.end_child()
            self.end(run)

    def begin(self, run: Run, extra: float = 0.0) -> None:
        """Note that the handler of a run begins. It is stopped `extra` seconds after its timeout, if it has one."""
        run.began = time.monotonic()
        self.running.add(run, extra)
        if run.on_begin is not None:
            run.on_begin(run)

    def end(self, run: Run) -> None:
        """Note that the handler of a run has ended, if it had begun."""
        if run.began:
            now = time.monotonic()
            self.running.remove(run, now)
            run.took = now - run.began

    def _call_through(self, run: Run, prepared: Prepared) -> Awaitable[Any]:
        """Call the handler, through the middleware if there is any."""
        if prepared.task.on == "loop" and not self._middleware:
            self.begin(run)
            return prepared.task.handler(*prepared.args, **prepared.kwargs)
        call: Callable[[], Awaitable[Any]] = partial(self._call, run, prepared)
        for middleware in reversed(self._middleware):
            call = partial(middleware, cast(CurrentJob, run.current), call)
        return call()

    async def _call(self, run: Run, prepared: Prepared) -> Any:
        """Call the handler where its task says."""
        task, args, kwargs = prepared.task, prepared.args, prepared.kwargs
        self.begin(run)
        if task.on == "process":
            current = cast(CurrentJob, run.current)
            order = CallHandler(task.module, task.handler.__qualname__, run.job, current.queue, current.lateness)
            return await self.processes.call(order, run.report_progress)
        if task.on == "thread":
            # There is a thread for each slot, so none waits.
            result = await anyio.to_thread.run_sync(_in_thread, run, task, args, kwargs, limiter=self._threads)
            if type(result) is not _Raised:
                return result
            try:
                raise result.error
            finally:
                del result  # this frame is in the traceback
        return await task.handler(*args, **kwargs)


class _Raised(Struct, frozen=True):
    """An exception that a thread returns instead of raising, so that the waiting frames stay out of its traceback.

    These frames refer to the exception, so each failed run would leave a circle, with all its variables.
    """

    error: BaseException


def _in_thread(run: Run, task: Task, args: list[Any], kwargs: dict[str, Any]) -> Any:
    run.thread = threading.get_ident()
    try:
        return task.handler(*args, **kwargs)
    except GeneratorExit as error:
        # It would close the coroutines that wait for the thread, where none of them could catch it.
        failure = failure_of(error, task.module)
        return _Raised(HandlerFailed(failure.reason, failure.traceback, kinds_of(error), failure.error))
    except BaseException as error:  # noqa: BLE001 - `_call` raises it
        return _Raised(error)
    finally:
        forks.end_child()


def _ended(error: BaseException, prepared: Prepared) -> Failed | Snoozed:
    """Say how a run ended whose handler raised something, and whether its policy allows another attempt after it.

    A handler is cancelled by itself, by another task, or because of its timeout.
    """
    module, policy = prepared.task.module, prepared.policy
    match error:
        case RetryLater():
            return Failed(message(error), delay=error.delay, error=class_name(error))
        case Snooze():
            return Snoozed(shorten(message(error)), error.delay or 0.0, error.until)
        case HandlerFailed():
            failure = Failure(str(error), error.traceback, error.error)
        case _:
            failure = failure_of(error, module)
    reason, traceback, refused, place = failure.reason, failure.traceback, "", where(error, module)
    if isinstance(error, GiveUp):
        return Failed(message(error), given_up=True, traceback=traceback, error=failure.error)
    if isinstance(error, asyncio.CancelledError):
        reason, traceback = "the handler was cancelled from inside" + place, traceback if place else ""
    if policy.by_exception and not isinstance(error, ProcessDied):
        refused = policy.refusal(error.kinds if isinstance(error, HandlerFailed) else kinds_of(error))
    return Failed(reason, traceback=traceback, error=failure.error, refused=refused, place=place)
