"""The end of a worker: it drains, then hands back the jobs that have not ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Final

from msgspec.structs import replace

from evsched import events
from evsched.errors import StoreError, StoreRefused
from evsched.events import Event
from evsched.execution.hang import Hang, HangFinder
from evsched.execution.running_runs import RunningRuns
from evsched.runtime.runtime import Runtime
from evsched.runtime.shutdown import FORCED, call_within, end_children
from evsched.transport.senders import SyncSender
from evsched.worker.consumer import QueueConsumer

_HAND_BACK: Final = 5.0
"""Seconds to hand back what still runs after the shutdown grace: a few replies of Redis are enough."""

_CLEAN_UP: Final = 2.0
"""Seconds in which cancelled handlers may end, once their jobs are handed back: the process must end soon."""

_REPORT: Final = 1.0
"""Seconds in which the heartbeat's thread emits what became of the jobs: the reader of the log may hang."""


class Drain:
    """Ends the work of a worker's consumers, from its event loop or, if a job blocks that, from a thread."""

    def __init__(
        self, runtime: Runtime, worker: str, consumers: Mapping[str, QueueConsumer], running: RunningRuns
    ) -> None:
        self._runtime = runtime
        self._worker = worker
        self._consumers = consumers
        self._running = running
        self._hangs = HangFinder(running)
        self.handing_back = False
        """The event loop has begun to hand back jobs."""

    @property
    def lingering(self) -> bool:
        """Whether handlers still run."""
        return len(self._running) > 0

    async def wait(self, consumers_running: Sequence[asyncio.Future[Any]], set_up: Sequence[bool]) -> None:
        """Fetch no more, and wait until what runs has ended, or for the shutdown grace.

        `consumers_running` are the tasks of the consumers, and `set_up` says which of them have begun to fetch.
        """
        consumers, grace = list(self._consumers.values()), self._runtime.config.shutdown_grace
        held = sum(len(consumer.held.runs) for consumer in consumers)
        self._runtime.emit(events.WorkerDraining(worker=self._worker, running=held, shutdown_grace=grace))
        stopping = [asyncio.ensure_future(consumer.stop_fetching()) for consumer in consumers]
        await asyncio.wait([*stopping, *compress(consumers_running, set_up)], timeout=grace)
        for task in stopping:
            task.cancel()

    def begin_hand_back(self) -> None:
        """Note that the event loop does it, so that no thread has to."""
        self.handing_back = True

    async def hand_back(self) -> None:
        """Put back to ready what has not ended, and end the leases."""
        back = 0
        # While Redis is down the jobs stay: the janitor puts them back when the lease ends.
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_HAND_BACK):
                for consumer in self._consumers.values():
                    with contextlib.suppress(StoreRefused):  # it concerns this queue alone
                        back += await consumer.hand_back()
        self._runtime.emit(events.WorkerStopped(worker=self._worker, handed_back=back))

    async def clean_up(self) -> None:
        """Let the handlers that were cancelled by `hand_back` end, within the kill grace."""
        works = [run.work for run in self._running if run.cancellable and run.work is not None]
        if works:
            await asyncio.wait(works, timeout=min(self._runtime.config.kill_grace, _CLEAN_UP))

    def rescue(self) -> None:
        """Hand back, since a job blocks the event loop and the process was asked to end. For any thread."""
        config, hang = self._runtime.config, self._hangs.blocks_loop()
        running = [run.job.id for run in self._running]
        sender = SyncSender(config.url, reply_timeout=config.reply_timeout)
        reason = f"worker {self._worker} was stopped, and a job blocked it"
        back, written = self._hand_back_from_thread(sender, reason, hang)
        blocked = events.WorkerBlocked(
            worker=self._worker, running=running, handed_back=back, traceback=hang.stack.traceback
        )
        if hang.run is not None:
            job, queue = hang.run.job, hang.run.delivery.queue
            blocked = replace(blocked, queue=queue, id=job.id, task=hang.run.task, attempt=job.attempt)
        self._emit_all([blocked, *written])

    def end_if_stuck(self, sender: SyncSender) -> None:
        """Hand back and end the process, if a job outlived its timeout and the kill grace. For any thread.

        That job has failed, or the one that blocks the event loop, so that the timeout could not stop any.
        """
        hang = self._hangs.stuck(self._runtime.config.kill_grace)
        if hang is None or hang.run is None:
            return
        run, job, queue = hang.run, hang.run.job, hang.run.delivery.queue
        reason = f"worker {self._worker} ended: job {job.id} did not yield"
        back, written = self._hand_back_from_thread(sender, reason, hang)
        stuck = events.WorkerStuck(
            worker=self._worker, queue=queue, id=job.id, task=run.task, attempt=job.attempt, handed_back=back
        )
        call_within(_REPORT, lambda: self._emit_all([stuck, *written]))
        end_children(self._runtime.emit)
        os._exit(FORCED)

    def _hand_back_from_thread(self, sender: SyncSender, reason: str, hang: Hang) -> tuple[int, list[Event]]:
        """Hand back in all queues; return how many jobs that were, and the events for what was written."""
        back, written = 0, list[Event]()
        with contextlib.suppress(StoreError):  # the rest waits for the lease to end
            for consumer in list(self._consumers.values()):
                with contextlib.suppress(StoreRefused):
                    back += consumer.hand_back_from_thread(sender, reason, hang, written.append)
        return back, written

    def _emit_all(self, found: list[Event]) -> None:
        for event in found:
            self._runtime.emit(event)
