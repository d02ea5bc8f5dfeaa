"""Starting runs: from the reply that handed out jobs to the tasks that run them, and the events that say so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from evsched import events
from evsched.execution.executor import Executor
from evsched.execution.run import Delivery, Run
from evsched.jobs.job import Requeued
from evsched.store.worker_calls import Fetched
from evsched.worker.demand import Demand
from evsched.worker.held_runs import HeldRuns
from evsched.worker.progress_writer import ProgressWriter
from evsched.worker.served_queue import ServedQueue


class RunStarter:
    """Runs each job in an asyncio task of its own. Calls `wake()` when there is something to exchange."""

    def __init__(
        self,
        served: ServedQueue,
        executor: Executor,
        held: HeldRuns,
        demand: Demand,
        progress: ProgressWriter,
        wake: Callable[[], None],
    ) -> None:
        self._served = served
        self._executor = executor
        self._held = held
        self._demand = demand
        self._progress = progress
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._left_some: bool | None = None
        """Whether the last reply left jobs in ready, as was reported; None = there was no reply yet."""

    def delivery(self, reply: Fetched, sent: float) -> Delivery:
        """Return what the runs of a reply have in common. `sent`: when the call was sent (monotonic clock)."""
        whole = self._served.runtime.shards.whole(self._served.queue)
        return Delivery(self._served.queue, reply.now, sent, self._progress.progressed, whole)

    def start(self, reply: Fetched, runs: list[Run]) -> None:
        """Begin the runs that a reply has handed out, and report what else it says."""
        for run in runs:
            run.work = self._loop.create_task(self._run(run))
        if runs:
            self._loop.call_soon(self._report, runs, time.monotonic())
            self._progress.handed_out()
        self._report_rest(reply)

    def _report_rest(self, reply: Fetched) -> None:
        """Report the jobs that `start` buried, and whether it left jobs in ready."""
        emit, queue = self._served.runtime.emit, self._served.queue
        if reply.more != self._left_some:
            self._left_some = reply.more
            emit(events.ReadyLeft(queue=queue) if reply.more else events.ReadyDrained(queue=queue))
        for job_id, why in reply.buried:
            emit(events.JobBuried(queue=queue, id=job_id, reason=why))

    async def _run(self, run: Run) -> None:
        try:
            await self._executor.run(run)
        finally:
            self._demand.share.end(time.monotonic() - run.delivery.sent)
            self._held.end(run)
            self._wake()

    def _report(self, runs: list[Run], handed_out: float) -> None:
        """Report the runs that have begun. The event loop calls this after the first step of each.

        A run that still waits is reported when it begins. A run that is returned, because there was no room for it, is
        not reported.
        """
        if self._demand.begun(len(runs), time.monotonic() - handed_out):
            self._wake()
        begun = list[Run]()
        for run in runs:
            if run.began or run.work is None:  # it runs, or has ended
                if type(run.outcome) is not Requeued:
                    begun.append(run)
            else:
                run.on_begin = self._report_one
        if begun:
            self._emit_started(begun)

    def _report_one(self, run: Run) -> None:
        self._emit_started([run])

    def _emit_started(self, runs: list[Run]) -> None:
        # A run that blocked the loop in its first step began earlier than now.
        now, delivery = time.monotonic(), runs[0].delivery
        offset = delivery.now - delivery.sent
        self._served.runtime.emit(
            events.Started(
                queue=self._served.queue,
                worker=self._served.worker,
                ids=[run.job.id for run in runs],
                tasks=[run.task for run in runs],
                lateness=[(run.began or now) + offset - run.job.due for run in runs],
                attempts=[run.job.attempt for run in runs],
            )
        )
