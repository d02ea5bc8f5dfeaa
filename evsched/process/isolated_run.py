"""An isolated run: one job in a process of its own, which imports the app, runs the handler and returns the outcome.

It protects the worker from a job that may kill its process: the worker survives, knows which job it was, and other jobs
are not interrupted. To the handler it is a run like any other: its output is the worker's, and it is stopped in the
same ways. `execution/isolation.py` has the worker's side, and `run_link.py` what passes between the two.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import cast

from msgspec.structs import replace

from evsched.errors import CannotStart, ConfigError
from evsched.execution import process_pool
from evsched.execution.failure import Failure, failure_of
from evsched.execution.handlers import Handlers
from evsched.execution.prepare import Prepared
from evsched.execution.process_pool import HandlerMissing, ProcessDied
from evsched.execution.progress_socket import SocketAddress
from evsched.execution.run import Delivery, Run, StopReason
from evsched.execution.verdict import Failed, aborted, judge
from evsched.jobs.current_job import Progress
from evsched.jobs.job import Buried, FetchedJob, Outcome, Requeued
from evsched.process.locate_app import find_app
from evsched.process.run_link import ProcessEnd, WorkerEnd, join_link, open_link
from evsched.telemetry import log


class Process:
    """The process of one run, as `execution/isolation.py` uses it."""

    def __init__(self, link: WorkerEnd, outcome: asyncio.Task[Outcome]) -> None:
        self.outcome = outcome
        self.begun = link.begun
        self._link = link

    def go(self) -> bool:
        """Have the handler begin; return False if the process has died."""
        return not self.outcome.done() and self._link.send("go")

    def stop(self, reason: StopReason) -> None:
        """Stop the handler, in the same way as one that runs in the worker."""
        self._link.send(reason)


async def start_isolated(app: str, run: Run) -> Process:
    """Start a process for a run of the app MODULE:APP; return it when it is ready, or has an outcome already.

    Raises:
        HandlerMissing: the process does not find the app or the task, or dies before it is ready.
    """
    await process_pool.ready(app.partition(":")[0])
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(open_link())
        job, delivery = run.job, run.delivery
        outcome: asyncio.Task[Outcome] = asyncio.ensure_future(
            process_pool.call(
                run.report_progress,
                _run,
                link.address,
                log.level(),
                app,
                delivery.whole_queue,
                job,
                delivery.redis_now(),
            )
        )
        try:
            await asyncio.wait([link.ready, outcome], return_when=asyncio.FIRST_COMPLETED)
            if outcome.done():
                outcome.result()
        except asyncio.CancelledError:
            outcome.cancel()
            await asyncio.gather(outcome, return_exceptions=True)
            raise
        except ProcessDied as error:
            raise HandlerMissing(f"a fresh process cannot run it: {error}") from None
        still_open = stack.pop_all()
        outcome.add_done_callback(lambda _: still_open.close())
        return Process(link, outcome)


def _run(
    report: Callable[[Progress], None],
    address: SocketAddress,
    level: str,
    app: str,
    queue: str,
    job: FetchedJob,
    now: float,
) -> Outcome:
    """Run a job; runs in the process."""
    received = time.monotonic()
    with join_link(address) as link:
        if level:
            log.configure(level)
        run = Run(job, Delivery(queue, now, received, lambda: report(cast(Progress, run.progress))))
        return asyncio.run(_find_and_call(app, run, link))


async def _find_and_call(app: str, run: Run, link: ProcessEnd) -> Outcome:
    try:
        program = find_app(app).program
    except (CannotStart, ConfigError) as error:
        raise HandlerMissing(f"a fresh process cannot import the app: {error}") from None
    prepared = run.prepare(program.tasks)
    if isinstance(prepared, Buried) and prepared.outcome == "expired":
        return replace(prepared, began=False)
    if not isinstance(prepared, Prepared):
        # The worker found the job valid with the code that it runs, so the code on disk is different.
        why = prepared.reason if isinstance(prepared, Buried) else f"it has no task {run.task[:200]!r}"
        raise HandlerMissing(f"the code on disk cannot run it: {why}")
    try:
        handlers = Handlers(program, threads=1)
        async with program.lifespan() as handlers.state:
            await link.wait_to_begin(run.stop)
            run.on_begin = lambda _: link.report_begun()
            run.work = asyncio.ensure_future(_call(handlers, run, prepared))
            await asyncio.wait([run.work])
            return _outcome_of(run, prepared)
    # The lifespan failed in this process, although not in the worker. So this run fails, and the worker continues.
    except Exception as error:  # noqa: BLE001
        failure = Failure(str(error)) if isinstance(error, ConfigError) else failure_of(error, app.partition(":")[0])
        return judge(run.job, prepared, Failed(failure.reason, traceback=failure.traceback, error=failure.error))


async def _call(handlers: Handlers, run: Run, prepared: Prepared) -> None:
    """Call the handler in a task of its own, as a worker does: a timeout or a cancellation cancels nothing else."""
    handlers.make_current(run, prepared)
    run.outcome = judge(run.job, prepared, await handlers.call(run, prepared), run.stop_reason)


def _outcome_of(run: Run, prepared: Prepared) -> Outcome:
    """Return the outcome of a run that has ended; also of one that was stopped before its first step, and set none."""
    return run.outcome or (aborted(prepared, began=False) if run.stop_reason == "cancelled" else Requeued())
