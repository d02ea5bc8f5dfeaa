"""Precautions: how to run a job that may kill its process, so that no other job suffers and its attempts are exact.

When a worker dies, nobody knows which of its jobs killed it. So all jobs that it held are suspects
(`FetchedJob.deaths`). After one death a suspect runs like any other job: one death says little, and there may be many
suspects. After two, it runs in a process of its own: if that process dies, this job killed it. Its last attempt, and
every run after four deaths, has the worker to itself: if the whole worker dies then, this job killed it.

An isolated run is prepared in its process as in a worker: the process imports the app, reads the payload, and enters
the lifespan. Then the worker has it begin. A run that has the worker to itself holds the `RunLock` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import anyio
from msgspec import Struct

from evsched.execution.handlers import Handlers
from evsched.execution.process_pool import (
    Begin,
    Draining,
    HandlerMissing,
    Isolate,
    Process,
    ProcessDied,
    ProcessPool,
    Reply,
    RunEnded,
    Stop,
)
from evsched.execution.run import TIMED_OUT, Failed, Prepared, Run, aborted, judge
from evsched.jobs.job import FetchedJob, Outcome

_ISOLATED: Final = 2
"""Deaths after which a suspect runs in a process of its own: few jobs are held by two workers that die."""

_ALONE: Final = 4
"""Deaths after which nothing else runs in its worker: isolation did not keep the worker alive. A container whose memory
is full, for example, ends with all its processes."""

_PATIENCE: Final = 0.25
"""Seconds for which a run waits for the other runs of its worker to end, so that it is alone. Meanwhile no other run
begins there. The wait doubles with each death after the fourth, so that in the end the run is alone."""

_WAIT_MOST: Final = 60.0
"""The longest wait, in seconds."""

_ISOLATED_MOST: Final = 8
"""Jobs that are isolated at one time: each has a process, with the app in its memory."""


class Precautions(Struct, frozen=True):
    """How a run is to begin."""

    isolated: bool = False
    """It runs in a process of its own."""
    alone: bool = False
    """Nothing else runs in its worker meanwhile."""


def precautions_for(job: FetchedJob, attempts: int, *, can_isolate: bool) -> Precautions:
    """Return the precautions that a run needs. `can_isolate`: a process of its own is possible.

    A suspect runs its last attempt alone, and its doubtful runs count as attempts here: if its worker dies then, the
    job is given up. A job with a single attempt need not run alone, because its mark is enough to give it up.
    """
    last = job.deaths > 0 and job.attempt + job.doubts >= attempts
    isolated = job.deaths >= _ISOLATED or last
    alone = job.deaths >= _ALONE or (last and attempts > 1) or (isolated and not can_isolate)
    return Precautions(isolated=isolated and can_isolate, alone=alone)


def patience(job: FetchedJob) -> float:
    """Return how many seconds a run waits to be alone. Once it is, it stays alone for a second more than it waits."""
    return min(_PATIENCE * 2.0 ** max(0, job.deaths - _ALONE), _WAIT_MOST)


class AppSource(Struct, frozen=True):
    """How a process of an isolated run becomes like its worker."""

    app: str
    """MODULE:APP."""
    log_level: str = ""
    """The level of evsched's log; empty = the app configures logging itself."""


class Isolation:
    """Runs jobs in processes of their own. One that does not stop within `kill_grace` seconds is killed."""

    def __init__(self, source: AppSource, handlers: Handlers, slots: int, kill_grace: float) -> None:
        self._source = source
        self._handlers = handlers
        self._kill_grace = kill_grace
        self.processes = ProcessPool(output=None)
        self.limiter = anyio.CapacityLimiter(min(slots, _ISOLATED_MOST))

    async def find(self) -> Process:
        """Take a process that has imported the app's module.

        Raises:
            HandlerMissing: a fresh process cannot import it.
        """
        return await self.processes.find(self._source.app.partition(":")[0])

    async def prepare(self, process: Process, run: Run) -> Outcome | None:
        """Have a process get ready for a run; return the outcome if it has one already.

        Raises:
            HandlerMissing: the process does not find the app or the task, or dies before it is ready.
        """
        delivery, source = run.delivery, self._source
        process.run = run
        process.begun.clear()
        order = Isolate(source.app, source.log_level, run.job, delivery.whole_queue, delivery.redis_now())
        reply = await process.prepare(order)
        return reply.outcome if isinstance(reply, RunEnded) else None

    async def run(self, process: Process, run: Run, prepared: Prepared) -> Outcome:
        """Run a job in a process that is ready; return its outcome.

        Raises:
            asyncio.CancelledError: the run is lost.
            HandlerMissing: the process has died, so the handler has not begun.
        """
        if not process.alive:
            raise HandlerMissing("its process died before the handler began")
        # The process enforces the timeout. This one is for a handler that does not yield to it.
        self._handlers.begin(run, self._kill_grace)
        running = asyncio.ensure_future(process.ask(Begin()))
        run.on_drain = lambda: process.send(Draining())
        if run.draining:
            run.on_drain()
        try:
            outcome = await self._outcome_of(process, running, run)
        except ProcessDied as error:
            # It counts although the handler may not have begun: a middleware that ends the process would do so again
            # and again.
            outcome = judge(run.job, prepared, Failed(str(error), killed=True, began=error.began))
        finally:
            running.cancel()
            self._handlers.end(run)
        if run.stop_reason == "lost":
            raise asyncio.CancelledError
        if run.stop_reason == "cancelled":
            return aborted(prepared, began=run.entered)
        return outcome or judge(run.job, prepared, Failed(f"{TIMED_OUT} and did not yield"))

    async def _outcome_of(self, process: Process, running: asyncio.Task[Reply], run: Run) -> Outcome | None:
        """Wait for the outcome; None = the handler did not stop in time.

        Raises:
            ProcessDied: the process died.
        """
        until: float | None = None
        while not running.done() and (until is None or time.monotonic() < until):
            try:
                await asyncio.wait([running], timeout=until and until - time.monotonic())
            except asyncio.CancelledError:  # `run.stop`, or the end of the worker
                if run.stop_reason is None:
                    raise
                if run.stop_reason == "timeout":
                    break
                process.send(Stop(run.stop_reason))
                until = until or time.monotonic() + self._kill_grace
        if not running.done():
            return None
        reply = running.result()
        assert isinstance(reply, RunEnded)
        return reply.outcome


class RunLock:
    """Held by each run while it lasts: any number hold it together, or one holds it alone.

    `opened()` is called when runs can share it again.
    """

    def __init__(self, opened: Callable[[], None]) -> None:
        self._opened = opened
        self.holders = 0
        """Runs that hold it, the exclusive one included."""
        self._exclusive: object | None = None
        self._changed = asyncio.Event()

    @property
    def closed(self) -> bool:
        """A run holds it alone, or waits to: no other run begins."""
        return self._exclusive is not None

    async def share(self) -> None:
        """Hold it together with others, when no run holds it alone. Call `release` when the run has ended."""
        while self._exclusive is not None:
            await self._change()
        self.holders += 1

    def release(self) -> None:
        """Release it after `share`."""
        self.holders -= 1
        if self._exclusive is not None:
            self._changed.set()

    @asynccontextmanager
    async def alone(self, patience: float) -> AsyncGenerator[Callable[[], None] | None]:
        """Hold it alone, when no other run holds it; yield a function that lets others share it again.

        While this waits, no other run begins to share it. After `patience` seconds it is shared with the runs that
        still hold it, and None is yielded.
        """
        while self._exclusive is not None:
            await self._change()
        self._exclusive = me = object()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    while self.holders:
                        await self._change()
            if self.holders:
                self._open(me)
            self.holders += 1
            try:
                yield partial(self._open, me) if self._exclusive is me else None
            finally:
                self.holders -= 1
        finally:
            self._open(me)

    def _open(self, me: object) -> None:
        if self._exclusive is me:
            self._exclusive = None
            self._opened()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
