"""An isolated run: one job in a process of its own, which imports the app, runs the handler and returns the outcome.

It protects the worker from a job that may kill its process: the worker survives, knows which job it was, and other jobs
are not interrupted. `execution/isolation.py` has the worker's side.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import cast

from msgspec.structs import replace

from evsched.errors import CannotStart, ConfigError
from evsched.execution import process_pool
from evsched.execution.failure import Failure, failure_of
from evsched.execution.handlers import Handlers
from evsched.execution.prepare import Prepared, prepare, read_payload
from evsched.execution.process_pool import HandlerMissing
from evsched.execution.program import Program
from evsched.execution.run import Delivery, Run
from evsched.execution.verdict import Failed, judge
from evsched.jobs.current_job import Progress
from evsched.jobs.job import Buried, FetchedJob, Outcome
from evsched.process.locate_app import find_app


async def run_isolated(
    app: str, queue: str, job: FetchedJob, now: float, on_progress: Callable[[Progress], object]
) -> Outcome:
    """Run a job of the app MODULE:APP in a process of its own; `now` by Redis's clock. Cancelling ends the process.

    `on_progress` is called with the progress that the handler reports.

    Raises:
        ProcessDied: the process died.
        HandlerMissing: the process does not find the app or the task.
    """
    return await process_pool.call(on_progress, _run, app, queue, job, now)


def _run(report: Callable[[Progress], None], app: str, queue: str, job: FetchedJob, now: float) -> Outcome:
    """Run a job; runs in the process."""
    run = Run(job, Delivery(queue, now, time.monotonic(), lambda: report(cast(Progress, run.progress))))
    return asyncio.run(_find_and_call(app, run))


async def _find_and_call(app: str, run: Run) -> Outcome:
    try:
        program = find_app(app).program
    except (CannotStart, ConfigError) as error:
        raise HandlerMissing(f"a fresh process cannot import the app: {error}") from None
    prepared = _prepare(program, run)
    if isinstance(prepared, Buried):
        if prepared.outcome == "expired":
            return replace(prepared, began=False)
        # The worker found it valid with the code that it runs, so the code on disk is another.
        raise HandlerMissing(f"by the code on disk it cannot run: {prepared.reason}")
    try:
        handlers = Handlers(program, threads=1)
        async with program.lifespan() as handlers.state:
            handlers.make_current(run, prepared)
            return judge(run.job, prepared, await handlers.call(run, prepared), run.stop_reason)
    # The lifespan fails here, although it did not fail in the worker: so this run fails, and the worker goes on.
    except Exception as error:  # noqa: BLE001
        failure = Failure(str(error)) if isinstance(error, ConfigError) else failure_of(error, app.partition(":")[0])
        return judge(run.job, prepared, Failed(failure.reason, traceback=failure.traceback))


def _prepare(program: Program, run: Run) -> Prepared | Buried:
    payload = read_payload(run.job)
    if isinstance(payload, Buried):
        return payload
    return prepare(program.tasks, run.job, payload, run.delivery.redis_now())
