"""Isolation: a job in a process of its own, as its worker sees it. `process/isolated_run.py` has the other side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import anyio

from evsched.execution.handlers import Handlers
from evsched.execution.prepare import Prepared
from evsched.execution.process_pool import ProcessDied
from evsched.execution.run import Run
from evsched.execution.verdict import TIMED_OUT, Failed, aborted, judge
from evsched.jobs.current_job import Progress
from evsched.jobs.job import FetchedJob, Outcome

_MOST: Final = 8
"""Jobs that are isolated at one time: each is a process of its own, with the app in its memory."""


class RunIsolated(Protocol):
    """Runs a job in a process of its own."""

    async def __call__(
        self, queue: str, job: FetchedJob, now: float, on_progress: Callable[[Progress], object]
    ) -> Outcome:
        """Return the outcome; `on_progress` is called with the progress of the run. Cancelling ends the process.

        Raises:
            ProcessDied: the process died.
            HandlerMissing: the process does not find the app or the task.
        """
        ...


class Isolation:
    """Runs jobs in processes of their own, which get `kill_grace` seconds past a job's timeout."""

    def __init__(self, run_isolated: RunIsolated, handlers: Handlers, slots: int, kill_grace: float) -> None:
        self._run_isolated = run_isolated
        self._handlers = handlers
        self._kill_grace = kill_grace
        self.places = anyio.CapacityLimiter(min(slots, _MOST))

    async def run(self, run: Run, prepared: Prepared) -> Outcome:
        """Run a job; return its outcome.

        Raises:
            asyncio.CancelledError: the run is lost.
            HandlerMissing: the process does not find the app or the task.
        """
        timeout, delivery = prepared.timeout, run.delivery
        # Only its own process knows when the handler begins. So the mark that it may have begun is not replaced.
        run.marked = True
        # The process enforces the timeout itself. If the handler does not yield to it, the process is ended from here.
        self._handlers.begin(run, None if timeout is None else timeout + self._kill_grace)
        try:
            outcome = await self._run_isolated(delivery.queue, run.job, delivery.redis_now(), run.report_progress)
        except asyncio.CancelledError:
            if run.stop_reason == "lost":
                raise
            failed = Failed(TIMED_OUT if run.stop_reason == "timeout" else "its process was ended")
            outcome = judge(run.job, prepared, failed)
        except ProcessDied as error:
            outcome = judge(run.job, prepared, Failed(str(error), killed=True))
        finally:
            self._handlers.end(run)
        return aborted(prepared) if run.stop_reason == "cancelled" else outcome
