"""Calling handlers: on the event loop, in a thread or in a process, through the app's middleware.

`RunningRuns` has the runs whose handlers are running, and enforces their timeouts. `HangFinder` finds a run that hangs.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, cast

import anyio
import anyio.to_thread
from msgspec import Struct

from evsched import forks
from evsched.execution.failure import Failure, Stack, failure_of, message, release, stack_of, where
from evsched.execution.instruments import Instrumented
from evsched.execution.process_pool import CallHandler, HandlerFailed, HandlerMissing, ProcessDied, ProcessPool
from evsched.execution.program import Around, Program
from evsched.execution.run import TIMED_OUT, Failed, Prepared, Run, encode_result
from evsched.jobs.current_job import CurrentJob, set_current_job
from evsched.jobs.job import Message, Snoozed, shorten
from evsched.jobs.retry import class_name, kinds_of
from evsched.jobs.sealed import About, put_value
from evsched.jobs.steering import GiveUp, RetryLater, Snooze
from evsched.jobs.tasks import Task


class RunningRuns:
    """The runs whose handlers run, even if their lease is lost. Stops each when its timeout passes.

    One timer serves all runs, at the earliest deadline: a timer for each would cost more than a short job.
    """

    def __init__(self) -> None:
        self._deadlines: dict[Run, float] = {}
        """By the monotonic clock; inf = no timeout."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._checked = -math.inf
        """When the timer last fired: runs with an earlier deadline have been stopped."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def __iter__(self) -> Iterator[Run]:
        """Iterate over a copy. For any thread."""
        return iter(self._deadlines.copy())

    def add(self, run: Run, extra: float = 0.0) -> None:
        """Note that a run has begun. It is stopped `extra` seconds after its timeout, if it has one."""
        timeout = None if run.prepared is None else run.prepared.timeout
        if timeout is None:
            self._deadlines[run] = math.inf
        else:
            self._deadlines[run] = deadline = run.began + timeout + extra
            self._wake_at(deadline)

    def remove(self, run: Run, now: float) -> None:
        """Note that a run has ended, at `now` by the monotonic clock.

        If its timeout had passed, that is its stop reason, even if it blocked the event loop and no timer fired.
        """
        if self._deadlines.pop(run, math.inf) <= now and run.stop_reason is None:
            run.stop_reason = "timeout"

    def stuck(self, kill_grace: float) -> Run | None:
        """Return a run that went on for `kill_grace` seconds past its timeout, if there is one. For any thread."""
        now = time.monotonic()
        return next((run for run, end in self._deadlines.copy().items() if end + kill_grace < now), None)

    def _wake_at(self, deadline: float) -> None:
        if deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = asyncio.get_running_loop().call_at(deadline, self._time_out)

    def _time_out(self) -> None:
        now = time.monotonic()
        late = [run for run, deadline in self._deadlines.items() if self._checked < deadline <= now]
        self._timer, self._timer_at, self._checked = None, math.inf, now
        for run in late:
            run.stop("timeout")
        self._wake_at(min((end for end in self._deadlines.values() if end > now), default=math.inf))


_BLOCKED: Final = "it blocked the event loop, and other jobs outlived their timeouts"


class Hang(Struct, frozen=True):
    """Code that blocks the event loop, or a thread beyond its time limit, as another thread sees it."""

    run: Run | None
    """None: code that is in no run's own asyncio task blocks the event loop, such as a task that a handler created."""
    stack: Stack
    """Empty when the run waits in the event loop, or runs in a process."""
    fault: str = ""
    """Why the run has failed; empty = it may still be handed back."""

    def failed(self, reason: str) -> Failed:
        """Return how the run failed: by its own fault, or else for `reason`."""
        return Failed((self.fault or reason) + self.stack.place, traceback=self.stack.traceback)


class HangFinder:
    """Finds hangs of the running event loop and of `running`. For any thread, except its constructor."""

    def __init__(self, running: RunningRuns) -> None:
        self._running = running
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def responds(self, seconds: float) -> bool:
        """Return whether the event loop responds within that time, or is closed. Not for its own thread."""
        answer = threading.Event()
        try:
            self._loop.call_soon_threadsafe(answer.set)
        except RuntimeError:  # it is closed
            return True
        return answer.wait(seconds)

    def blocks_loop(self) -> Hang:
        """Return the code that the event loop executes now. For a loop that does not respond."""
        run = self._current()
        return Hang(run, _stack(self._thread, run))

    def stuck(self, kill_grace: float) -> Hang | None:
        """If a run went on for `kill_grace` seconds past its timeout, return the code that is at fault.

        If the event loop did not even stop that run, the one that blocks the event loop is at fault.
        """
        run, current = self._running.stuck(kill_grace), self._current()
        if run is None:
            return None
        if run.stop_reason is None and current is not None and current is not run:
            return Hang(current, _stack(self._thread, current), _BLOCKED)
        thread = self._thread if current is run else run.thread
        return Hang(run, _stack(thread, run), f"{TIMED_OUT} and did not yield")

    def _current(self) -> Run | None:
        task = asyncio.current_task(self._loop)
        return next((run for run in self._running if task is not None and run.work is task), None)


def _stack(thread: int, run: Run | None) -> Stack:
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    prepared = None if run is None else run.prepared
    return Stack() if frame is None else stack_of(frame, "" if prepared is None else prepared.task.module)


class Handlers:
    """Calls the handlers of an app. `threads` bounds the plain functions that run at one time."""

    def __init__(self, program: Program, threads: int, worker: str = "") -> None:
        self._worker = worker
        self._middleware = program.middleware
        self._around = program.around
        self._codec = program.codec
        self._threads = anyio.CapacityLimiter(threads)
        self.state: Any = None
        """The value that the app's lifespan yields."""
        self.running = RunningRuns()
        self.processes = ProcessPool()

    def make_current(self, run: Run, prepared: Prepared) -> None:
        """Have `current_job` return a run's job in the run's own asyncio task, which may be cancelled from now on."""
        job, delivery = run.job, run.delivery
        run.cancellable = True
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
            tags=prepared.payload.tags,
            redact=prepared.payload.redact,
            draining=run.draining,
            keeper=run,
            worker=self._worker,
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
            if type(result) is Message:
                return result
            text = encode_result(result)
            if self._codec is None:
                return text
            return await put_value(self._codec, About("result", of=run.job.id), text)
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
        """Call the handler, through the instruments and the middleware if there are any."""
        if prepared.task.on == "loop" and not self._middleware and not self._around:
            self.begin(run)
            run.entered = True
            return prepared.task.handler(*prepared.args, **prepared.kwargs)
        call: Callable[[], Awaitable[Any]] = partial(self._call, run, prepared)
        for middleware in reversed(self._middleware):
            call = partial(middleware, cast(CurrentJob, run.current), call)
        return _instrumented(self._around, run, call) if self._around else call()

    async def _call(self, run: Run, prepared: Prepared) -> Any:
        """Call the handler where its task says."""
        task, args, kwargs = prepared.task, prepared.args, prepared.kwargs
        self.begin(run)
        if task.on == "process":
            return await self._call_in_process(run, task)
        if task.on == "thread":
            # There is a thread for each slot, so none waits.
            result = await anyio.to_thread.run_sync(_in_thread, run, task, args, kwargs, limiter=self._threads)
            if type(result) is not _Raised:
                return result
            try:
                raise result.error
            finally:
                del result  # this frame is in the traceback
        run.entered = True
        return await task.handler(*args, **kwargs)

    async def _call_in_process(self, run: Run, task: Task) -> Any:
        """Call the handler in a process, and in a fresh one if that process dies before the handler begins.

        The process may have been killed from outside while it was idle. If the second one dies so early too, something
        of the job kills them, such as the conversion of its arguments.
        """
        current = cast(CurrentJob, run.current)
        order = CallHandler(task.module, task.handler.__qualname__, run.job, current.queue, current.lateness)
        try:
            return await self.processes.call(order, run)
        except ProcessDied as error:
            if error.began:
                raise
        # It waits again, and the wait for a process does not count as running time.
        self.running.remove(run, run.began)
        run.began = 0.0
        await self.processes.ready(order.module, order.name, fresh=True)
        run.began = time.monotonic()
        self.running.add(run)
        return await self.processes.call(order, run)


async def _instrumented(around: Sequence[Around], run: Run, call: Callable[[], Awaitable[Any]]) -> Any:
    with Instrumented(around, run):
        return await call()


class _Raised(Struct, frozen=True):
    """An exception that a thread returns instead of raising, so that the waiting frames stay out of its traceback.

    These frames refer to the exception, so each failed run would leave a circle, with all its variables.
    """

    error: BaseException


def _in_thread(run: Run, task: Task, args: list[Any], kwargs: dict[str, Any]) -> Any:
    run.thread, run.entered = threading.get_ident(), True
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
            return Snoozed(shorten(message(error)), error.delay or 0.0, error.until, error.signal)
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
    began = not isinstance(error, ProcessDied) or error.began
    return Failed(
        reason, killed=not began, began=began, traceback=traceback, error=failure.error, refused=refused, place=place
    )
