"""The end of a worker: it fetches no more, lets runs end within the grace, and hands back the other jobs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from evsched import events
from evsched.errors import StoreError, StoreRefused
from evsched.events import Emit, Event
from evsched.execution.handlers import Hang, HangFinder, RunningRuns
from evsched.execution.run import Run
from evsched.runtime.loops import Runtime
from evsched.runtime.shutdown import FORCED, call_within, end_children
from evsched.store.run_ends import NotEnded, PutBack
from evsched.transport.call import Call
from evsched.transport.senders import SyncSender
from evsched.worker.consumer import QueueConsumer
from evsched.worker.exchange import HeldRuns, ServedQueue, events_of, lacks_memory

_HAND_BACK: Final = 5.0
"""Seconds to hand back the jobs that still run after the shutdown grace: a few replies of Redis are enough."""

_CLEAN_UP: Final = 2.0
"""Seconds in which cancelled handlers may end, once their jobs are handed back: the process must end soon."""

_ANSWER: Final = 1.0
"""Seconds in which an event loop responds that is not blocked."""

_REPORT: Final = 1.0
"""Seconds in which the heartbeat's thread emits the events about the jobs: the reader of the log may hang."""

_Ends = Sequence[tuple[Call[NotEnded], list[Run]]]
"""Calls, each with the runs that it ends."""


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
        """The event loop has begun to hand back jobs, so no thread has to."""

    async def wait(self, begun: Sequence[asyncio.Future[Any]]) -> None:
        """Fetch no more, and wait until all runs have ended, or for the shutdown grace.

        `begun`: the loops of the consumers that have begun to fetch.
        """
        consumers, grace = list(self._consumers.values()), self._runtime.config.shutdown_grace
        held = sum(len(consumer.held.runs) for consumer in consumers)
        self._runtime.emit(events.WorkerDraining(worker=self._worker, running=held, shutdown_grace=grace))
        for consumer in consumers:
            consumer.tell_of_drain()
        stopping = [asyncio.ensure_future(consumer.stop_fetching()) for consumer in consumers]
        await asyncio.wait([*stopping, *begun], timeout=grace)
        for task in stopping:
            task.cancel()

    async def hand_back(self) -> None:
        """Put the jobs that have not ended back to ready, and end the leases."""
        back = 0
        # While Redis is down the jobs stay: the janitor puts them back when the lease ends.
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(_HAND_BACK):
                for consumer in self._consumers.values():
                    with contextlib.suppress(StoreRefused):  # it concerns this queue alone
                        await consumer.finish()
                        back += await hand_back(consumer.served, consumer.held)
        self._runtime.emit(events.WorkerStopped(worker=self._worker, handed_back=back))

    async def clean_up(self) -> None:
        """Let the handlers that were cancelled by `hand_back` end, within the kill grace."""
        works = [run.work for run in self._running if run.cancellable and run.work is not None]
        if works:
            await asyncio.wait(works, timeout=min(self._runtime.config.kill_grace, _CLEAN_UP))

    def is_needed(self) -> bool:
        """Return whether a thread has to hand back the jobs, because the event loop is blocked. For any other thread.

        A loop that responds may not have begun to: the app's lifespan is late to begin or to end.
        """
        return not self.handing_back and not self._hangs.responds(_ANSWER)

    def rescue(self) -> None:
        """Hand back, since a job blocks the event loop and the process was asked to end. For any thread."""
        hang = self._hangs.blocks_loop()
        running = [run.job.id for run in self._running]
        sender = SyncSender(self._runtime.config.url, reply_timeout=self._runtime.times.reply_timeout)
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
        """Hand back in all queues; return how many jobs that were, and the events to emit.

        The events do not go to the subscribers: one may hang, and other queues are to be handed back.
        """
        back, written = 0, list[Event]()

        async def send(call: Call[Any]) -> Any:
            return sender.send(call)

        async def hand_back_all() -> None:
            nonlocal back
            for consumer in list(self._consumers.values()):
                served, held = consumer.served, consumer.held
                with contextlib.suppress(StoreRefused):
                    consumer.fetch_no_more()
                    ends = _ends(served, held, reason, hang)
                    back += await _hand_back(served, held, ends, reason, send, written.append)

        # The rest waits for the lease to end. OSError: no file descriptor is left for an event loop.
        with contextlib.suppress(StoreError, OSError):
            asyncio.run(hand_back_all())
        return back, written

    def _emit_all(self, found: list[Event]) -> None:
        for event in found:
            self._runtime.emit(event)


async def hand_back(served: ServedQueue, held: HeldRuns) -> int:
    """Write the ends of runs, put all other jobs back to ready, end the lease; return how many were put back.

    Raises:
        StoreDown, StoreRefused
    """
    reason, runtime = f"worker {served.worker} was stopped", served.runtime
    ends = _ends(served, held, f"{reason} while it ran")
    held.stop_all()
    put_back = await _hand_back(served, held, ends, reason, runtime.sender.send, runtime.emit)
    held.runs.clear()
    return put_back


def _ends(served: ServedQueue, held: HeldRuns, reason: str, hang: Hang | None = None) -> _Ends:
    """Return the calls that end runs. `reason`: of the runs that may not begin again."""
    store, worker = served.store, served.worker
    ends = [*store.end_runs(worker, held.ended), *store.end_runs(worker, held.give_up(reason, hang))]
    running = [run for run in held.runs.values() if run.outcome is None]
    return [*store.keep_positions(worker, running), *ends]


async def _hand_back(
    served: ServedQueue,
    held: HeldRuns,
    ends: _Ends,
    reason: str,
    send: Callable[[Call[Any]], Awaitable[Any]],
    emit: Emit,
) -> int:
    """Send the ends, and put all other jobs of the queue back; return how many. Raises as `send`."""
    queue, worker = served.queue, served.worker
    for call, ended in ends:
        for run in ended:
            run.repeated = True  # or may be: who hands back may have to begin again
        try:
            not_ended: NotEnded = await send(call)
        except StoreError as error:
            if not lacks_memory(ended, error):
                raise
            continue
        # `requeue` puts back those whose message was refused, as it does when there is no memory for any.
        runs = [run for run in ended if run.job.id not in not_ended.refused]
        held.forget(runs)
        for event in events_of(queue, worker, runs, not_ended.lost):
            emit(event)
    put, rest = 0, "more"
    while rest == "more":
        done: PutBack = await send(served.store.requeue(worker, reason, limit=served.runtime.config.batch))
        rest = done.rest
        put += len(done.ids)
        if done.ids:
            emit(events.JobsRequeued(queue=queue, worker=worker, ids=done.ids, cause="stopped", reason=reason))
        for job_id in done.cancelled:
            emit(events.JobAborted(queue=queue, id=job_id))
    return put
