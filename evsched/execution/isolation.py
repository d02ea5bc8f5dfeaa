"""Isolation: a job in a process of its own, as its worker sees it. `process/isolated_run.py` has the other side."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol

import anyio

from evsched.execution.handlers import Handlers
from evsched.execution.prepare import Prepared
from evsched.execution.process_pool import HandlerMissing, ProcessDied
from evsched.execution.run import Run, StopReason
from evsched.execution.verdict import TIMED_OUT, Failed, aborted, judge
from evsched.jobs.job import Outcome

_MOST: Final = 8
"""Jobs that are isolated at one time: each is a process of its own, with the app in its memory."""


class IsolatedProcess(Protocol):
    """A process that runs one job. It enforces the job's timeout itself."""

    outcome: asyncio.Task[Outcome]
    """Ends with the run; raises ProcessDied. Cancelling it kills the process."""
    begun: asyncio.Event
    """The handler begins."""

    def go(self) -> bool:
        """Have the handler begin; return False if the process has died."""
        ...

    def stop(self, reason: StopReason) -> None:
        """Stop the handler as in the worker: an async one is cancelled where it waits."""
        ...


class StartIsolated(Protocol):
    """Starts a process for a run."""

    async def __call__(self, run: Run) -> IsolatedProcess:
        """Return the process when it is ready to run the handler, or has an outcome already. Cancelling kills it.

        Raises:
            HandlerMissing: the process does not find the app or the task, or dies before it is ready.
        """
        ...


class Isolation:
    """Runs jobs in processes of their own. One that does not stop within `kill_grace` seconds is killed."""

    def __init__(self, start: StartIsolated, handlers: Handlers, slots: int, kill_grace: float) -> None:
        self.start = start
        self._handlers = handlers
        self._kill_grace = kill_grace
        self.limiter = anyio.CapacityLimiter(min(slots, _MOST))

    async def run(self, process: IsolatedProcess, run: Run, prepared: Prepared) -> Outcome:
        """Run a job in a process that is ready; return its outcome.

        Raises:
            asyncio.CancelledError: the run is lost.
            HandlerMissing: the process has died, so the handler has not begun.
        """
        if not process.go():
            raise HandlerMissing("its process died before the handler began")
        # The process enforces the timeout. This one is for a handler that does not yield to it.
        self._handlers.begin(run, self._kill_grace)
        try:
            outcome = await self._outcome_of(process, run)
        except ProcessDied as error:
            outcome = judge(run.job, prepared, Failed(str(error), killed=True))
        finally:
            self._handlers.end(run)
        if run.stop_reason == "lost":
            raise asyncio.CancelledError
        if run.stop_reason == "cancelled":
            return aborted(prepared)
        return outcome or judge(run.job, prepared, Failed(f"{TIMED_OUT} and did not yield"))

    async def _outcome_of(self, process: IsolatedProcess, run: Run) -> Outcome | None:
        """Wait for the outcome; None = the handler did not stop in time.

        Raises:
            ProcessDied: the process died.
        """
        until: float | None = None
        while not process.outcome.done() and (until is None or time.monotonic() < until):
            try:
                await asyncio.wait([process.outcome], timeout=until and until - time.monotonic())
            except asyncio.CancelledError:  # `run.stop`, or the end of the worker
                if run.stop_reason is None:
                    raise
                if run.stop_reason == "timeout":
                    break
                process.stop(run.stop_reason)
                until = until or time.monotonic() + self._kill_grace
        return process.outcome.result() if process.outcome.done() else None
