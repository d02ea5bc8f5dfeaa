"""The consumer: a worker's part that serves one queue.

A job passes through it in these steps:

    fetch    a `Fetcher` waits while ready is empty, and the message that ends the wait may bring a job, which begins at
             once; under load it is not needed, since the exchange fetches too
    collect  take the ends that are to be written, and reserve slots for the jobs to ask for: an `Exchange`
    send     one round trip writes these ends and starts the next jobs, so a batch costs what one job does
    settle   forget the runs whose ends are written, and hold the jobs that were handed out
    report   emit the events for the ends that are written
    begin    give each new job a task, in which the executor runs it; emit that it has begun
    end      note its outcome, which the next exchange collects

`exchange` has the steps from `collect` to `begin`, in this order. If a reply is lost, its jobs are in the worker's list
without the worker's knowledge: the exchange after it begins with `_find_lost`.

Beside the exchanges, a `ProgressWriter` writes that runs have begun, and how far they are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from evsched import events
from evsched.errors import StoreError
from evsched.execution.executor import Executor
from evsched.execution.run import Delivery, Run
from evsched.jobs.job import FetchedJob, Requeued
from evsched.runtime.loops import Pulse, Runtime
from evsched.runtime.reconnect import Reconnect
from evsched.store.store import Store
from evsched.store.worker_calls import Fetched, Handed, Renewed
from evsched.worker.exchange import Exchange, ExchangeSender, HeldRuns, LostReplies, ServedQueue, events_of
from evsched.worker.fetcher import Fetcher, hand_back_one
from evsched.worker.notices import Notices, ShardWindows
from evsched.worker.run_notes import ProgressWriter, StepKeeper
from evsched.worker.slots import WIDEST, Demand, Slots

_PROMPT: Final = 0.25
"""Seconds for which the slots of an exchange, and the turns of its queue, wait for the reply: fifty times what the
longest script takes. After that the other queues have them: the node that was asked may hang."""


class QueueConsumer:
    """Serves one queue for a worker. `attend()` is called when it holds jobs after it held none, or its lease was lost.

    `notices`: connections that it shares with other queues. `watch()` is called when the worker may hold jobs while it
    waits for a message.
    """

    def __init__(
        self,
        runtime: Runtime,
        queue: str,
        worker: str,
        executor: Executor,
        slots: Slots,
        attend: Callable[[], None],
        notices: Notices,
        watch: Callable[[], None],
    ) -> None:
        self.served = ServedQueue(runtime, Store(queue), worker)
        self.held = HeldRuns()
        share = slots.join(runtime.config.weights.get(queue, 1.0), self.wake)
        self.fetcher = notices.join(Fetcher(self.served, share, self))
        self._attend = attend
        self._watch = watch
        self._executor = executor
        self.demand = Demand(share, executor)
        self._sender = ExchangeSender(self.served, notices.sender if notices.share(queue) else None)
        self._progress = ProgressWriter(self.served, self.held.runs)
        self._steps = StepKeeper(self.served, executor.codec)
        self._lost = LostReplies(self.served, self.held, share)
        self._windows = ShardWindows(self.served)
        self._reconnect = Reconnect("worker", runtime.emit, queue)
        self._under_way: Exchange | None = None
        """The exchange that was sent and is not answered."""
        self._left_some: bool | None = None
        """Whether the last reply left jobs in ready, as was reported; None = there was no reply yet."""
        self._work = asyncio.Event()
        """There may be something to exchange."""
        self._work.set()
        self._loop = asyncio.get_running_loop()
        executor.freed.append(self._on_freed)

    @property
    def pulses(self) -> list[Pulse]:
        return [self._reconnect.pulse]

    def problem(self) -> str | None:
        """Return why it cannot start and end jobs; None = it can."""
        return self._reconnect.reason or self.fetcher.reason

    def wake(self) -> None:
        """Have the loop make an exchange, if there is anything to exchange."""
        self._work.set()

    async def run(self) -> None:
        """Fetch and run jobs until `stop_fetching` was called and all held jobs have ended."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.fetcher.run())
                group.create_task(self._exchange_all())
        finally:
            self._progress.close()
            await self._windows.close()
            await self._sender.close()

    async def _exchange_all(self) -> None:
        while not self.demand.closed or self.demand.quiet or self.held.busy:
            await self._work.wait()
            self._work.clear()
            async with self._reconnect:
                try:
                    await self.exchange()
                except StoreError:
                    # Before `_reconnect` waits: the other queues need not leave room for jobs that cannot come.
                    self.demand.share.want(False)
                    self.on_unsure()
                    raise

    # The steps.

    async def exchange(self) -> None:
        """Write the outcomes of ended runs, and start as many jobs as there is room for.

        Raises:
            StoreDown, StoreRefused: unwritten ends stay for the next exchange.
        """
        if self._lost.suspected:
            self.fetcher.forget()
            await self._find_lost()
        await self._progress.settle()
        if self._sender.finished:
            return  # `hand_back` writes the ends
        exchange = self._collect()
        late = self._loop.call_later(_PROMPT, self._lend, exchange) if self.demand.share.is_in_turn else None
        self._under_way = exchange
        await self._sender.send(exchange)
        self._under_way = None
        if late is not None:
            late.cancel()
        runs = self._settle(exchange)
        if exchange.error is None and self._has_more():
            # The next exchange is sent first: Redis works on it while these runs begin.
            self._work.set()
            self._loop.call_soon(self._report_and_begin, exchange, runs)
        else:
            self._report_and_begin(exchange, runs)
        await self._report_lost(exchange)
        if exchange.error is not None:
            raise exchange.error
        await self.fetcher.feed(hungry=self.demand.waits)

    async def _find_lost(self) -> None:
        """Find the jobs whose replies were lost.

        Raises:
            StoreDown, StoreRefused
        """
        await self._lost.find(stopping=self.demand.closed_by == "stopping")
        self.demand.more = True

    def _collect(self) -> Exchange:
        """Take the ends to write and the jobs to start, and reserve slots for the jobs to ask for."""
        demand, limit = self.demand, self._sender.batch.limit
        ended, fetched = self.held.begin_exchange(limit)
        if any(type(run.outcome) is Requeued for run in ended):
            demand.narrow()
        room = demand.reserve(limit, len(fetched), notified=self.fetcher.notified)
        hold = min(self.held.running + len(fetched) + room, WIDEST) if fetched or room else 0
        if hold:
            self.held.ask()
        ticket = self.fetcher.asks(room, starts=hold > 0)
        if ticket is not None and (self.held.busy or demand.share.slots.shared):
            self._watch()  # from now on: a handler may block the event loop before the reply is read
        return Exchange(ended, fetched, hold, room + len(fetched), ticket)

    def _lend(self, exchange: Exchange) -> None:
        """Leave the slots of an exchange, and the queue's turns, to the other queues: the reply is late."""
        self.demand.share.want(False)
        self.demand.share.release(exchange.reserved)
        exchange.reserved, exchange.lent = 0, True

    def _settle(self, exchange: Exchange) -> list[Run]:
        """Update the account of held jobs by the result of an exchange; return the new runs, which are to begin."""
        if exchange.lent:
            self._work.set()  # take turns again, now that the node answers
        if exchange.error is not None:
            kept = exchange.fetched if exchange.started is None and not exchange.lent else []
            self.held.keep(exchange.unwritten, kept)
            exchange.reserved -= len(kept)
        if exchange.refused:
            self.held.ended += exchange.refused
            self._work.set()
        for ended, _ in exchange.written:
            self.held.forget(ended)
            self._windows.note(ended)
        runs = [] if exchange.started is None else self._hold(exchange, exchange.started)
        self.demand.share.release(exchange.reserved)
        self.fetcher.settled()
        return runs

    def _hold(self, exchange: Exchange, reply: Fetched) -> list[Run]:
        """Hold the jobs that were handed out, each in a slot; return the new runs."""
        if exchange.lent:
            reply = exchange.started = self._with_slots(reply)
            exchange.reserved = len(reply.jobs)
        if not reply.leased:
            self._attend()  # a heartbeat finds what else Redis has lost
            if self.held.runs:
                self.lose()
        self.demand.more = reply.more
        runs = self._make_runs(reply.jobs, reply.now, exchange.sent)
        self.fetcher.answered(reply, len(self.held.runs) + len(self.held.fetched))
        self._lost.look_for(exchange.fetched, reply)
        exchange.reserved -= len(runs)
        return runs

    def _make_runs(self, jobs: Sequence[FetchedJob], now: float, sent: float) -> list[Run]:
        """Make runs of jobs that Redis handed out at `now`, by its clock; return the new runs, which are to begin."""
        held_some = bool(self.held.runs)
        whole = self.served.runtime.shards.whole(self.served.queue)
        delivery = Delivery(self.served.queue, now, sent, self._progress.progressed, whole, self._steps)
        runs = self.held.add(jobs, delivery)
        if runs:
            self.demand.begin_limit.handed_out()
            if not held_some:
                self._attend()
                if self.demand.share.slots.shared:
                    self._watch()
        return runs

    def _with_slots(self, late: Fetched) -> Fetched:
        """Return a late reply with the jobs that get a slot. The others are in the worker's list, to be handed back."""
        kept = [job for job in late.jobs if self.demand.share.reserve_one()]
        if len(kept) < len(late.jobs):
            self._lost.suspected = True
        return replace(late, jobs=kept)

    def _has_more(self) -> bool:
        """Whether there is something to exchange at once."""
        return self.demand.asks_again() or bool(self.held.ended or self.held.fetched) or self._lost.suspected

    def _report_and_begin(self, exchange: Exchange, runs: list[Run]) -> None:
        """Report the ends that an exchange has written, begin the new runs, and report the rest of the reply."""
        for ended, lost in exchange.written:
            self._report([run for run in ended if run.job.id not in lost] if lost else ended)
        self._begin(runs)
        if exchange.started is not None:
            self._report_rest(exchange.started)

    def _begin(self, runs: list[Run]) -> None:
        for run in runs:
            run.work = self._loop.create_task(self._run(run))
        if runs:
            self._loop.call_soon(self._report_begun, runs, time.monotonic())
            self._progress.handed_out()

    async def _run(self, run: Run) -> None:
        try:
            await self._executor.run(run)
        finally:
            self.demand.share.end(time.monotonic() - run.delivery.sent)
            self.held.end(run)
            if not self.held.running:
                self._progress.rest()
            self._work.set()

    # The events.

    async def _report_lost(self, exchange: Exchange) -> None:
        """Report the runs whose end an exchange could not write: lost, unless it turns out to be written before."""
        for ended, ids in exchange.written:
            if ids:
                lost = [run for run in ended if run.job.id in ids]
                written = await self._lost.written(lost)
                self.on_unsure()  # a newer run of such a job may be in the list
                self._report(lost, [run.job.id for run in lost if run not in written])

    def _report(self, ended: list[Run], lost: Sequence[str] = ()) -> None:
        for event in events_of(self.served.queue, self.served.worker, ended, lost):
            self.served.runtime.emit(event)

    def _report_rest(self, reply: Fetched) -> None:
        """Report the jobs that `start` buried, and whether it left jobs in ready."""
        emit, queue = self.served.runtime.emit, self.served.queue
        self._report_left(reply.more)
        for job_id, why in reply.buried:
            emit(events.JobBuried(queue=queue, id=job_id, reason=why))

    def _report_left(self, more: bool) -> None:
        """Report whether ready holds more jobs than the worker took, when that changes."""
        if more != self._left_some:
            self._left_some, queue = more, self.served.queue
            self.served.runtime.emit(events.ReadyLeft(queue=queue) if more else events.ReadyDrained(queue=queue))

    def _report_begun(self, runs: list[Run], handed_out: float) -> None:
        """Report the runs that have begun. The event loop calls this after the first step of each.

        A run that still waits is reported when it begins. A run that is returned, because there was no room for it, is
        not reported.
        """
        if self.demand.begun(len(runs), time.monotonic() - handed_out):
            self._work.set()
        begun = list[Run]()
        for run in runs:
            if run.began or run.work is None:  # it runs, or has ended
                if type(run.outcome) is not Requeued:
                    begun.append(run)
            else:
                run.on_begin = lambda run: self._emit_started([run])
        if begun:
            self._emit_started(begun)

    def _emit_started(self, runs: list[Run]) -> None:
        # A run that blocked the loop in its first step began earlier than now.
        now, delivery = time.monotonic(), runs[0].delivery
        offset = delivery.now - delivery.sent
        self.served.runtime.emit(
            events.Started(
                queue=self.served.queue,
                worker=self.served.worker,
                ids=[run.job.id for run in runs],
                tasks=[run.task for run in runs],
                lateness=[(run.began or now) + offset - run.job.due for run in runs],
                attempts=[run.job.attempt for run in runs],
            )
        )

    # Called by the fetcher and by the executor.

    def on_fetched(self, job_id: str) -> None:
        """Start a job, which has a slot already."""
        self.held.fetched.append(job_id)
        self.on_more()

    def on_more(self) -> None:
        """Ask for jobs: ready may hold some."""
        self.demand.more = True
        self._work.set()

    async def on_handed(self, handed: Handed, age: float | None) -> None:
        """Begin a job that was handed over, and ask for another one.

        If there is no slot for it, it is put back. If its message is old, `start` says first whether it is still here.
        """
        job = handed.job
        if not self.held.unknown([job.id]):
            return
        if not self._reserve_handed(handed.ticket):
            self.on_more()
            self.held.returning.add(job.id)
            try:
                await hand_back_one(self.served, job.id, job.run)
                self.held.returning.discard(job.id)
            except StoreError:
                self.on_unsure()
        elif age is None:
            self.on_fetched(job.id)
        else:
            self._begin(self._make_runs([job], handed.now, time.monotonic() - age))
            self._report_left(handed.more)  # without a free slot, no question is sent whose reply would say so
            self.on_more()

    def _reserve_handed(self, ticket: int) -> bool:
        """Reserve a slot for a job that was handed over: one of the exchange that asked for it, or another one."""
        exchange = self._under_way
        if self.demand.closed_by is not None:
            return False
        if exchange is not None and exchange.ticket == ticket and exchange.reserved > 0:
            exchange.reserved -= 1  # `start` has left it: otherwise the worker would not wait
            return True
        return self.demand.share.reserve_one()

    def on_unsure(self) -> None:
        """Read the worker's list: it may hold jobs that are not known here."""
        self._lost.suspected = True
        self._work.set()

    def _on_freed(self) -> None:
        if self.demand.freed():
            self._work.set()

    # Called by the heartbeat, and at the end of the worker.

    def counted(self, found: Renewed, sent: float) -> None:
        """Note how many jobs the worker's list holds, and whether Redis knows that the worker waits for a message.

        `sent`: when the heartbeat was sent, in seconds since boot.
        """
        self.fetcher.found(waits=found.waits, now=found.now, sent=sent)
        if self.held.is_surplus(found.held):
            self.on_unsure()

    def lose(self) -> None:
        """Stop and drop all held jobs: the lease had ended, so other workers have them now."""
        count = len(self.held.runs) + len(self.held.fetched)
        self.demand.share.release(self.held.lose())
        self.fetcher.forget()
        self.on_unsure()
        self.served.runtime.emit(events.LeaseLost(queue=self.served.queue, worker=self.served.worker, held=count))

    def tell_of_drain(self) -> None:
        """Tell the runs that the worker stops: a long one may end now, and go on elsewhere."""
        for run in self.held.runs.values():
            run.drain()

    def fetch_no_more(self) -> None:
        """Begin no other fetch. For any thread; `stop_fetching` ends the one that waits."""
        self.demand.closed, self.demand.quiet = True, False
        self.fetcher.fetch_no_more()

    async def stop_fetching(self) -> None:
        """Fetch no more; a job that was handed over meanwhile is handed back."""
        self.fetch_no_more()
        self._work.set()
        self.fetcher.stop()

    async def go_quiet(self) -> None:
        """Fetch no more, and go on: jobs that run end, and a job that a lost reply left in the worker's list starts."""
        self.fetch_no_more()
        self.demand.quiet = True
        self.fetcher.stop()

    async def finish(self) -> None:
        """Make no other exchange, and wait for the one that is under way.

        It travels on a connection of its own. If it arrived after `hand_back`, jobs that have ended would run again.
        """
        await self._sender.finish()
