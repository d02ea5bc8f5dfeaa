"""The executor: from a job that was fetched to its outcome. It knows no Redis.

    prepare (payload, task, arguments, window) -> call the handler, with precautions where needed -> judge the result

Each step is a value. The outcome is data too, and stays with its run: the worker writes it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final, Self

from msgspec.structs import replace

from evsched.events import Emit
from evsched.execution.beginning import Marks
from evsched.execution.deferral import MissingHandlers, RunStore, UnknownTasks, check_window, not_now
from evsched.execution.handlers import Handlers
from evsched.execution.precautions import AppSource, Isolation, RunLock, patience, precautions_for
from evsched.execution.process_pool import HandlerMissing, Process
from evsched.execution.program import Program
from evsched.execution.run import NoTask, Prepared, Run, judge, stopped_before
from evsched.jobs.job import Aborted, Buried, Deferred, Outcome, Requeued, shorten

_FIRST_STEP: Final = 0.025
"""Seconds after which a handler that this process calls itself has taken its first step, unless it has ended."""


class Executor:
    """Runs jobs: up to `slots` at a time, and up to `processes` of those whose task has `on="process"`.

    `source` is the app that the process of an isolated job imports; the process is killed when the job does not stop
    within `kill_grace` seconds. Without it such a job runs alone in this process. A job whose task the program does not
    have waits for another worker for `unknown_task_grace` seconds. Use it in an `async with`, which ends its processes.
    """

    def __init__(
        self,
        program: Program,
        slots: int,
        processes: int = 1,
        store: RunStore | None = None,
        *,
        source: AppSource | None = None,
        kill_grace: float = 10.0,
        unknown_task_grace: float = 0.0,
        emit: Emit = lambda event: None,
        worker: str = "",
    ) -> None:
        self._tasks = program.tasks
        self.codec = program.codec
        self._store = store or RunStore()
        self.handlers = Handlers(program, slots, worker)
        self._isolation = Isolation(source, self.handlers, slots, kill_grace) if source else None
        self.free_processes = processes
        """How many tasks on processes can begin now."""
        self._missing = MissingHandlers(emit)
        self._unknown = UnknownTasks(program.tasks, self._store, unknown_task_grace, emit)
        self._marks = Marks(self._store)
        self._closing = False
        self.lock = RunLock(self._on_freed)
        self.freed: list[Callable[[], None]] = []
        """Called when a process of the pool is free again, and when a run that was alone has ended."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        """End the processes, even if they still run handlers."""
        self._closing = True
        self._marks.close()
        await self.handlers.processes.close()
        if self._isolation is not None:
            await self._isolation.processes.close()

    async def run(self, run: Run) -> None:
        """Run a job and set `run.outcome`. No exception of the job's code is raised.

        Raises:
            asyncio.CancelledError: the run is lost, or this executor is closed; it has no outcome.
        """
        outcome: Outcome | None = None
        try:
            if self.codec is None:
                prepared = run.prepare(self._tasks)
            else:
                prepared = await run.prepare_opened(self._tasks, self.codec)
            if isinstance(prepared, Prepared) and prepared.payload.window is None and run.stop_reason is None:
                outcome = await self._call(run, prepared)
            else:
                outcome = await self._call_if_possible(run, prepared)
        except asyncio.CancelledError:
            if run.stop_reason == "lost" or self._closing:
                raise
            why = "it was cancelled before its handler began, and nobody had asked for that"
            outcome = not_now(run.delivery.redis_now(), why, "code")
        # A run without an outcome would stay in the worker's list for ever.
        except BaseException as error:  # noqa: BLE001
            why = f"its run came to no outcome, which is a bug of evsched: {type(error).__name__}: {error}"
            outcome = Buried(shorten(why), run.reply)
        finally:
            run.end(outcome)

    async def _call_if_possible(self, run: Run, prepared: Prepared | NoTask | Buried | Deferred | Aborted) -> Outcome:
        if isinstance(prepared, Buried):
            return replace(prepared, began=False)
        if isinstance(prepared, Deferred | Aborted):
            return prepared
        window = prepared.payload.window
        if window is not None and (closed := await check_window(self._store, run, window, prepared.payload.reply)):
            return closed if isinstance(closed, Deferred) else replace(closed, began=False)
        if run.stop_reason is not None:
            return stopped_before(run, prepared)
        if isinstance(prepared, NoTask):
            return await self._unknown.judge(run, prepared.payload)
        return await self._call(run, prepared)

    async def _call(self, run: Run, prepared: Prepared) -> Outcome:
        on_process = prepared.task.on == "process"
        if (on_process or run.job.deaths) and (deferred := self._missing.known(run)):
            return deferred
        self.handlers.make_current(run, prepared)
        if on_process:
            if not self.free_processes:
                return Requeued()
            self.free_processes -= 1
        try:
            if run.job.deaths:
                return await self._call_with_precautions(run, prepared)
            if self.lock.closed:
                await self.lock.share()
            else:
                self.lock.holders += 1  # as `share` does, without the cost of a coroutine for each job
            try:
                if prepared.policy.attempts == 1:
                    if on_process:  # a slow step, so it comes before the mark
                        await self.handlers.processes.ready(prepared.task.module, prepared.task.handler.__qualname__)
                    run.marked = await self._marks.mark(run, "1")
                    if not run.marked:
                        return Requeued()  # the job is not in this worker's list any more: nothing will be put back
                result = await self.handlers.call(run, prepared)
                return judge(run.job, prepared, result, run.stop_reason, began=run.entered)
            finally:
                self.lock.release()
        except asyncio.CancelledError:  # while it waited to begin
            return stopped_before(run, prepared)
        except HandlerMissing as error:
            return self._missing.found_missing(run, str(error))
        finally:
            if on_process:
                self.free_processes += 1
                self._on_freed()

    async def _call_with_precautions(self, run: Run, prepared: Prepared) -> Outcome:
        on_process = prepared.task.on == "process"  # a process already, so its death does not end the worker
        can_isolate = self._isolation is not None or on_process
        precautions = precautions_for(run.job, prepared.policy.attempts, can_isolate=can_isolate)
        isolation = self._isolation if precautions.isolated and not on_process else None
        async with AsyncExitStack() as stack:
            process: Process | None = None
            # Slow steps come before the mark. If the worker dies between the mark and the first step, the attempt
            # counts, although the job did not begin.
            if isolation is not None:
                await stack.enter_async_context(isolation.limiter)
                process = await isolation.find()
                stack.push_async_callback(isolation.processes.give_back, process)
                if outcome := await isolation.prepare(process, run):
                    return outcome
            elif on_process:
                await self.handlers.processes.ready(prepared.task.module, prepared.task.handler.__qualname__)
            open_again: Callable[[], None] | None = None
            if precautions.alone:
                open_again = await stack.enter_async_context(self.lock.alone(patience(run.job)))
            else:
                await self.lock.share()
                stack.callback(self.lock.release)
            # "alone" has the doubtful runs counted if the worker dies. With one attempt, none of those has begun, and
            # the job must not run again although it may not have begun.
            only = prepared.policy.attempts == 1
            if not await self._marks.mark(run, "1" if only else "soon alone" if open_again else "soon"):
                return Requeued()  # the job is not in this worker's list any more, so `requeue` will put nothing back
            followed = process is not None or open_again is not None
            run.marked = only or followed  # if not, `ProgressWriter` marks it again when it has begun
            if followed:
                following = self._follow(run, None if process is None else process.begun, open_again, only=only)
                stack.callback(asyncio.ensure_future(following).cancel)
            if isolation is not None and process is not None:
                return await isolation.run(process, run, prepared)
            result = await self.handlers.call(run, prepared)
            return judge(run.job, prepared, result, run.stop_reason, began=run.entered)

    async def _follow(
        self, run: Run, begun: asyncio.Event | None, open_again: Callable[[], None] | None, *, only: bool
    ) -> None:
        """Mark again a run that was about to begin, once it has begun: its attempt counts if the worker dies.

        Let other runs begin when one has been alone for long enough: a job that crashes usually does so at once.
        `begun`: set when the handler begins in a process of its own. `only`: the run is marked as begun already.
        """
        alone_until = time.monotonic() + 1.0 + patience(run.job)
        try:
            async with asyncio.timeout_at(None if open_again is None else asyncio.get_running_loop().time() + 1.0):
                await (begun.wait() if begun is not None else asyncio.sleep(_FIRST_STEP))
        except TimeoutError:
            pass  # a middleware keeps it waiting
        has_begun = only or run.entered
        if has_begun and not only:
            await self._store.mark(run.delivery.queue, [(run.job, "alone" if open_again else "1")])
        if open_again is None:
            return
        await asyncio.sleep(max(0.0, alone_until - time.monotonic()))
        if not await self._store.mark(run.delivery.queue, [(run.job, "1" if has_begun else "soon")]):
            open_again()
            run.marked = has_begun

    def _on_freed(self) -> None:
        for freed in self.freed:
            freed()
