"""The consumer: a worker's part that serves one queue. It starts jobs, has them run, and writes their outcomes.

Two loops. One waits for jobs: in BLMOVE (`fetcher.py`), or for messages (`idle_wait.py`). The other exchanges
(`exchange.py`): in one round trip it writes the outcomes of the jobs that have ended and starts the next ones. So under
load there is no blocking call at all, and one batch costs what one job does.

If a reply is lost, its jobs are in the worker's list without the worker's knowledge: `lost_replies.py` finds them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from evsched import events
from evsched.errors import StoreError
from evsched.events import Emit
from evsched.execution.executor import Executor
from evsched.execution.hang import Hang
from evsched.execution.run import Run
from evsched.jobs.job import Requeued
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect
from evsched.runtime.runtime import Runtime
from evsched.store.store import Store
from evsched.store.workers import Fetched
from evsched.transport.senders import SyncSender
from evsched.worker import hand_back
from evsched.worker.demand import WIDEST, Demand, FetchPause
from evsched.worker.exchange import Exchange, Exchanged
from evsched.worker.fetcher import Fetcher
from evsched.worker.held_runs import HeldRuns
from evsched.worker.idle_wait import IdleWait
from evsched.worker.lost_replies import LostReplies
from evsched.worker.notices import SharedConnections
from evsched.worker.outcomes import events_of
from evsched.worker.progress_writer import ProgressWriter
from evsched.worker.run_starter import RunStarter
from evsched.worker.served_queue import ServedQueue
from evsched.worker.shard_windows import ShardWindows
from evsched.worker.slots import Slots

_PROMPT: Final = 0.25
"""Seconds for which the slots of a question, and the turns of its queue, wait for the reply: fifty times what the
longest script takes. After that the other queues have them: the node that was asked may hang."""


class QueueConsumer:
    """Serves one queue for a worker. `attend()` is called when it holds jobs after it held none.

    `shared`: connections that it shares with other queues; None = it has connections of its own.
    """

    def __init__(
        self,
        runtime: Runtime,
        queue: str,
        worker: str,
        executor: Executor,
        slots: Slots,
        attend: Callable[[], None],
        shared: SharedConnections | None = None,
    ) -> None:
        self.served = ServedQueue(runtime, Store(queue), worker)
        self.held = HeldRuns()
        self._attend = attend
        share = slots.join(runtime.config.weights.get(queue, 1.0), self.wake)
        self._demand = Demand(share, executor)
        self._exchange = Exchange(self.served, shared and shared.sender)
        self._fetcher = (
            shared.notices.join(IdleWait(self.served, self)) if shared else Fetcher(self.served, share, self)
        )
        self._progress = ProgressWriter(self.served, self.held.runs)
        self._starter = RunStarter(self.served, executor, self.held, self._demand, self._progress, self.wake)
        self._lost = LostReplies(self.served, self.held, share)
        self._windows = ShardWindows(self.served)
        self._reconnect = Reconnect("worker", runtime.emit, queue)
        self._reserved = 0
        """Slots that are kept for the reply to come."""
        self._lent = False
        """It is late, so the other queues have them."""
        self._work = asyncio.Event()
        """There may be something to exchange."""
        self._work.set()
        self._loop = asyncio.get_running_loop()
        executor.freed.append(self._on_freed)

    @property
    def store(self) -> Store:
        """The calls of its queue."""
        return self.served.store

    @property
    def pulses(self) -> list[Pulse]:
        """The pulses of its loops."""
        return [self._reconnect.pulse, *self._fetcher.pulses]

    @property
    def running(self) -> int:
        """How many slots its runs occupy."""
        return self.held.running

    @property
    def not_fetching(self) -> FetchPause | None:
        """Why it fetches nothing now, however many slots are free; None = it fetches when it has a slot."""
        return self._demand.not_fetching

    @property
    def fetches(self) -> bool:
        """Whether it still fetches jobs."""
        return not self._demand.closed

    def problem(self) -> str | None:
        """Return why it cannot start and end jobs; None = it can."""
        return self._reconnect.reason or self._fetcher.reason

    def wake(self) -> None:
        """Have the loop make an exchange, if there is anything to exchange."""
        self._work.set()

    async def run(self) -> None:
        """Fetch and run jobs until `stop_fetching` was called and what is held has ended."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._fetcher.run())
                group.create_task(self._exchange_all())
        finally:
            self._progress.close()
            await self._windows.close()
            await self._fetcher.close()
            await self._exchange.close()

    async def _exchange_all(self) -> None:
        while self.fetches or self.held.busy:
            await self._work.wait()
            self._work.clear()
            async with self._reconnect:
                try:
                    await self.exchange()
                except StoreError:
                    # Before `_reconnect` waits: the other queues need not leave room for jobs that cannot come.
                    self._demand.share.want(False)
                    self.on_unsure()
                    raise

    async def exchange(self) -> None:
        """Write the outcomes of what has ended, and start what there is room for.

        Raises:
            StoreDown, StoreRefused: what was not written stays, for the next exchange.
        """
        if self._lost.suspected:
            for run in await self._lost.drop_written():
                self._report_ended([run])
            await self._lost.find()
            self._demand.more = True
        await self._progress.settle()
        if self._exchange.finished:
            return  # `hand_back` writes what has ended by now
        ended, fetched = self.held.begin_exchange(self._exchange.limit)
        if any(type(run.outcome) is Requeued for run in ended):
            self._demand.narrow()
        if ended and self._fetcher.full:
            self._demand.more = True  # these ends may let other jobs pass the gate, and BLMOVE cannot fetch those
        room = self._demand.reserve(self._exchange.limit, len(fetched), notified=self._fetcher.notified)
        hold = min(self.held.running + len(fetched) + room, WIDEST) if fetched or room else 0
        self._reserved = room + len(fetched)
        late = self._loop.call_later(_PROMPT, self._lend) if self._demand.share.is_in_turn else None
        result = await self._exchange.send(ended, fetched, hold, wait=self._fetcher.asks(room))
        if late is not None:
            late.cancel()
        runs = self._take_over(result, fetched)
        if result.error is None and self._has_more():
            # The next exchange is sent first: Redis works on it while these runs begin.
            self._work.set()
            self._loop.call_soon(self._go_on, result, runs)
        else:
            self._go_on(result, runs)
        await self._report_lost(result)
        if result.error is not None:
            raise result.error
        await self._fetcher.pass_on()
        self._fetcher.feed(hungry=self._demand.blocks)

    def _has_more(self) -> bool:
        """Whether there is something to exchange at once."""
        return self._demand.asks_again() or bool(self.held.ended or self.held.fetched) or self._lost.suspected

    def _lend(self) -> None:
        """Leave the slots of a question, and the queue's turns, to the other queues: the reply is late."""
        self._demand.share.want(False)
        self._demand.share.release(self._reserved)
        self._reserved, self._lent = 0, True

    def _take_over(self, result: Exchanged, fetched: list[str]) -> list[Run]:
        """Update what is held by the result of an exchange; return the new runs, which are to begin."""
        reserved, lent, runs = self._reserved, self._lent, list[Run]()
        self._reserved, self._lent = 0, False
        if lent:
            self._work.set()  # take turns again, now that the node answers
        if result.error is not None:
            kept = fetched if result.started is None and not lent else []
            self.held.keep(result.unwritten, kept)
            reserved -= len(kept)
        if result.refused:
            self.held.ended += result.refused
            self._work.set()
        for ended, _ in result.written:
            self.held.forget(ended)
            self._windows.note(ended)
        if result.started is not None:
            reply = result.started
            if lent:
                reply = result.started = self._with_slots(reply)
                reserved = len(reply.jobs)
            runs = self._hold(reply, result.sent)
            self._lost.look_for(fetched, reply)
            reserved -= len(runs)
        self._demand.share.release(reserved)
        return runs

    def _with_slots(self, late: Fetched) -> Fetched:
        """Return a late reply with the jobs that get a slot. The others are in the worker's list, to be handed back."""
        kept = [job for job in late.jobs if self._demand.share.reserve_one()]
        if len(kept) < len(late.jobs):
            self._lost.suspected = True
        return replace(late, jobs=kept)

    def _hold(self, reply: Fetched, sent: float) -> list[Run]:
        """Hold what was handed out; return the new runs."""
        if not reply.leased and self.held.runs:
            self.lose()
        self._demand.more = reply.more
        self._fetcher.asked(reply)
        held_some = bool(self.held.runs)
        runs = self.held.add(reply.jobs, self._starter.delivery(reply, sent))
        if runs:
            self._demand.handed_out()
        if runs and not held_some:
            self._attend()
        return runs

    def _go_on(self, result: Exchanged, runs: list[Run]) -> None:
        """Report the ends that an exchange has written, and begin the new runs."""
        for ended, lost in result.written:
            self._report_ended([run for run in ended if run.job.id not in lost] if lost else ended)
        if result.started is not None:
            self._starter.start(result.started, runs)

    async def _report_lost(self, result: Exchanged) -> None:
        """Report the runs whose end an exchange could not write: lost, unless it turns out to be written before."""
        for ended, ids in result.written:
            if ids:
                lost = [run for run in ended if run.job.id in ids]
                written = await self._lost.written(lost)
                self._report_ended(lost, [run.job.id for run in lost if run not in written])

    def _report_ended(self, ended: list[Run], lost: Sequence[str] = ()) -> None:
        for event in events_of(self.served.queue, self.served.worker, ended, lost):
            self.served.runtime.emit(event)

    # Called by the fetcher and by the executor.

    def on_fetched(self, job_id: str) -> None:
        """Start a job, which has a slot already."""
        self.held.fetched.append(job_id)
        self.on_more()

    def on_more(self) -> None:
        """Ask for jobs: where one was there may be more."""
        self._demand.more = True
        self._work.set()

    def on_unsure(self) -> None:
        """Read the worker's list: it may hold jobs that are not known here."""
        self._lost.suspected = True
        self._work.set()

    def _on_freed(self) -> None:
        if self._demand.freed():
            self._work.set()

    # Called for what comes from outside the loop, and at the end of the worker.

    def cancel(self, job_id: str) -> bool:
        """Stop a run, since its job was cancelled; return False if it does not run, or was stopped before."""
        return self.held.cancel(job_id)

    def counted(self, count: int, *, waits: bool) -> None:
        """Note how many jobs Redis has in the worker's list, and whether the worker waits for a message."""
        self._fetcher.found(waits=waits)
        if self.held.is_surplus(count):
            self.on_unsure()

    def lose(self) -> None:
        """Stop and drop what is held: the lease had ended, so other workers have these jobs now."""
        count = len(self.held.runs) + len(self.held.fetched)
        self._demand.share.release(self.held.lose())
        self.on_unsure()
        self.served.runtime.emit(events.LeaseLost(queue=self.served.queue, worker=self.served.worker, held=count))

    def fetch_no_more(self) -> None:
        """Begin no other fetch. For any thread; `stop_fetching` ends the one that waits."""
        self._demand.closed = True
        self._fetcher.fetch_no_more()

    async def stop_fetching(self) -> None:
        """Fetch no more; a BLMOVE that waits ends without a job, or hands its job back."""
        self.fetch_no_more()
        self._work.set()
        await self._fetcher.stop()

    async def hand_back(self) -> int:
        """Put all that is still held back to ready, end the lease; return how many jobs that were.

        Raises:
            StoreDown, StoreRefused
        """
        # The last exchange travels on another connection. If it arrived later, jobs that have ended would run again.
        await self._exchange.finish()
        return await hand_back.hand_back(self.served, self.held)

    def hand_back_from_thread(self, sender: SyncSender, reason: str, hang: Hang | None, emit: Emit) -> int:
        """Do the same from a thread, for an event loop that is blocked; the process must end then.

        `emit` gets the events, and not the subscribers: one of them may hang, and other queues are to be handed back.

        Raises:
            StoreDown, StoreRefused
        """
        self.fetch_no_more()
        self._fetcher.unblock_from_thread(sender)
        return hand_back.hand_back_from_thread(self.served, self.held, sender, reason, hang, emit)
