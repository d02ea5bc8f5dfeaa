"""A run apart: one job in a process of its own, which imports the app, runs the handler and says what came of it.

For a job that may kill its process: then that death names it, its worker lives, and no other job is cut short.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from evsched.errors import ConfigError
from evsched.jobs.current_job import Progress
from evsched.jobs.job import Buried, FetchedJob, Outcome
from evsched.process.locate_app import find_app
from evsched.worker import process_pool
from evsched.worker.executor import Executor
from evsched.worker.failure import Failure, failure_of
from evsched.worker.preparation import prepare
from evsched.worker.run import Run
from evsched.worker.verdict import Failed, judge


async def run_apart(app: str, queue: str, job: FetchedJob, now: float, heard: Callable[[Progress], object]) -> Outcome:
    """Run a job of the app MODULE:APP in a process of its own; `now` by Redis's clock. Cancelling ends the process.

    `heard` is called with how far it is.

    Raises:
        ProcessDied: the process did.
    """
    return await process_pool.call(heard, _run, app, queue, job, now)


def _run(tell: Callable[[Progress], None], app: str, queue: str, job: FetchedJob, now: float) -> Outcome:
    """Run a job; runs in the process."""
    run = Run(queue, job, now, time.monotonic(), lambda: tell(cast(Progress, run.progress)))
    return asyncio.run(_perform(app, run))


async def _perform(app: str, run: Run) -> Outcome:
    executor, prepared = None, None
    try:
        program = find_app(app).program
        executor = Executor(program, threads=1)
        prepared = prepare(program.tasks, run)
        if isinstance(prepared, Buried):
            return prepared
        async with program.lifespan() as executor.state:
            return await executor.perform(run, prepared)
    # A module or lifespan that fails here, though it did not in the worker: the run has failed, not the worker.
    except Exception as error:  # noqa: BLE001
        if prepared is None or isinstance(prepared, Buried):
            return Buried(f"it could not run apart: {error}", False)
        told = Failure(str(error)) if isinstance(error, ConfigError) else failure_of(error, app.partition(":")[0])
        failed = Failed(told.reason, traceback=told.traceback)
        return judge(run.job, prepared.policy, failed, reply=prepared.payload.reply)
