"""The exchange: one round trip to Redis that writes the ends of runs and starts the next jobs of a queue.

A consumer uses these parts of the file: the account of the jobs that the worker holds (`HeldRuns`), the exchange as
a value (`Exchange`), its sender (`ExchangeSender`), the events for the ends that it wrote (`events_of`), and the
search for jobs and ends whose replies were lost (`LostReplies`). `consumer.py` has the steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec import Struct

from evsched import events, keys, process_events
from evsched.errors import FULL, StoreError
from evsched.events import Event
from evsched.execution.handlers import Hang
from evsched.execution.run import Delivery, Failed, Run, judge
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Forwarded, Requeued, Retried, Snoozed
from evsched.runtime.loops import Runtime
from evsched.store.queue import BatchLimit
from evsched.store.run_ends import NotEnded
from evsched.store.server import clock
from evsched.store.store import Store
from evsched.store.worker_calls import Fetched, LastRun
from evsched.transport.call import Call
from evsched.transport.redis_errors import PutOff
from evsched.transport.senders import BatchingSender, DirectSender
from evsched.worker.slots import QueueShare

_FINISH: Final = 1.0
"""Seconds to wait for the last exchange. If its reply is not there by then, its connection is most likely dead."""

_NO_MEMORY: Final = "Redis's memory is full, and its message needs some: raise `maxmemory`"


class ServedQueue(Struct, frozen=True):
    """A queue as one worker serves it: passed to each part of a consumer."""

    runtime: Runtime
    store: Store
    worker: str

    @property
    def queue(self) -> str:
        """The queue's name."""
        return self.store.queue


class HeldRuns:
    """The jobs in a worker's list of one queue, as far as the worker knows them. For the event loop's thread.

    fetched (to be started) -> runs (until their end is written) -> ended (their end is to be written)
    """

    def __init__(self) -> None:
        self.fetched: list[str] = []
        """Ids that are to be started; each has a slot."""
        self.runs: dict[str, Run] = {}
        """By id: the runs whose end is not written yet."""
        self.ended: list[Run] = []
        """The runs that have ended and whose end is to be written. A run whose end is being written is not included."""
        self.running = 0
        """How many of `runs` have not ended."""
        self._cancelled = set[str]()
        """Ids of unknown jobs that were cancelled since the worker asked for jobs: their runs may be on the way."""
        self.returning = set[str]()
        """Ids of jobs that are being handed back. A call whose reply was lost may be done later, so their runs do not
        begin here any more."""
        self._surplus = 0
        """How many times in a row Redis counted more jobs than are known."""

    @property
    def busy(self) -> bool:
        """Whether there are any. For any thread."""
        return bool(self.runs or self.fetched)

    def begin_exchange(self, limit: int) -> tuple[list[Run], list[str]]:
        """Take out the runs whose ends the next exchange writes, at most `limit`, and the ids that it starts."""
        ended, self.ended = self.ended[:limit], self.ended[limit:]
        fetched, self.fetched = self.fetched, []
        return ended, fetched

    def ask(self) -> None:
        """Note that jobs are asked for: a job that was handed over before is not begun by its message any more."""
        self._cancelled.clear()

    def keep(self, ended: list[Run], fetched: list[str]) -> None:
        """Keep the ends that an exchange could not write, and the jobs that it could not start, for the next one."""
        for run in ended:
            run.repeated = True
        self.ended += ended
        self.fetched = fetched + self.fetched

    def add(self, jobs: Iterable[FetchedJob], delivery: Delivery) -> list[Run]:
        """Make runs of jobs that were handed out; return the new runs.

        If a job was cancelled while it was on its way, its run is stopped.
        """
        # By id: a job that Redis names twice is one run.
        new = {job.id: Run(job, delivery) for job in jobs if job.id not in self.runs}
        for job_id in self._cancelled & new.keys():
            new[job_id].stop("cancelled")
        self.runs.update(new)
        self.running += len(new)
        return list(new.values())

    def end(self, run: Run) -> None:
        """Note that a run has ended. Nothing is written for a run that is lost or has no outcome."""
        if run.stop_reason == "lost":
            return
        self.running -= 1
        if run.outcome is not None:
            self.ended.append(run)

    def forget(self, ended: Iterable[Run]) -> None:
        """Drop runs whose end is written, or is not this worker's to write."""
        for run in ended:
            if self.runs.get(run.job.id) is run:
                del self.runs[run.job.id]

    def cancel(self, job_id: str) -> bool:
        """Stop a run, since its job was cancelled; return False if it does not run, or was stopped before.

        Jobs that have not started are ended by `start`.
        """
        run = self.runs.get(job_id)
        if run is None:
            self._cancelled.add(job_id)
        if run is None or run.stop_reason in ("cancelled", "lost"):
            return False
        run.stop("cancelled")
        return True

    def unknown(self, listed: Sequence[str]) -> list[str]:
        """Return which of the ids in the worker's list are not known here."""
        known = {*self.runs, *self.fetched}
        return [job_id for job_id in dict.fromkeys(listed) if job_id not in known]

    def is_surplus(self, count: int) -> bool:
        """Note how many jobs Redis has in the worker's list; return whether it had more than are known twice in a row.

        Once may be a job that is on its way. Twice is a reply that was lost.
        """
        self._surplus = self._surplus + 1 if count > len(self.runs) + len(self.fetched) else 0
        if self._surplus < 2:
            return False
        self._surplus = 0
        return True

    def lose(self) -> int:
        """Stop and drop everything: other workers have it now. Return the slots of the jobs that had not started."""
        slots = len(self.fetched)
        self.stop_all()
        self.runs.clear()
        self.ended.clear()
        self.fetched.clear()
        self.running = 0
        return slots

    def stop_all(self) -> None:
        """Stop all runs; their outcomes are dropped."""
        for run in self.runs.values():
            run.stop("lost")

    def give_up(self, reason: str, hang: Hang | None = None) -> list[Run]:
        """Return the runs that may not be handed back when the worker ends before them, each with an outcome.

        A run that is in the only attempt of its job has failed for `reason`. The one that hangs has failed if it is at
        fault, whatever attempt it is in.
        """
        ended = list[Run]()
        for run in list(self.runs.values()):
            prepared, own = run.prepared, hang if hang is not None and hang.run is run else None
            if prepared is not None and (run.in_only_attempt or (own is not None and own.fault)):
                run.outcome = judge(run.job, prepared, Failed(reason) if own is None else own.failed(reason))
                ended.append(run)
        return ended


class Exchange(Struct):
    """One exchange: the ends that it writes, the jobs that it starts, and then the replies."""

    ended: list[Run]
    """The runs whose ends it writes."""
    fetched: list[str]
    """Ids in the worker's list that it starts; each has a slot."""
    hold: int
    """How many jobs the worker may hold after it; 0 = it starts nothing."""
    reserved: int
    """Slots that are kept for the jobs of the reply, those of `fetched` included."""
    ticket: int | None
    """If ready is empty, the worker waits for a message with this ticket; 0: for an empty one. None = it does not."""
    lent: bool = False
    """The reply was late, so these slots were given to the other queues."""

    sent: float = 0.0
    """When it was sent, by the monotonic clock."""
    written: list[tuple[list[Run], list[str]]] = []
    """The runs whose ends were written, by call, each with the ids of its lost jobs."""
    unwritten: list[Run] = []
    refused: list[Run] = []
    """The runs whose message Redis refused, or takes later. Each has another outcome now, which is to be written."""
    started: Fetched | None = None
    """The reply of `start`; None: nothing was asked for, or that failed."""
    error: BaseException | None = None
    """The last failure. The runs in `unwritten`, and the start if `started` is None, have to be sent again."""


class ExchangeSender:
    """Sends exchanges, with as many jobs in a script as Redis can handle quickly.

    `shared`: the sender on which a worker sends the exchanges of several queues, so that exchanges of one moment travel
    together; None = a connection of its own.
    """

    def __init__(self, served: ServedQueue, shared: BatchingSender | None = None) -> None:
        self._served = served
        self._shared = shared is not None
        self._sender = shared or DirectSender(served.runtime.config.url, near=keys.root(served.queue))
        self.batch = BatchLimit(served.runtime.config.batch)
        """How many jobs one script may end or start."""
        self._put_off = PutOff()
        self._sending = asyncio.Lock()
        """Held while an exchange is under way."""
        self.finished = False
        """No other exchange is to be begun: the worker hands back its jobs."""

    async def send(self, exchange: Exchange) -> None:
        """Send an exchange, and note the replies in it.

        Raises nothing that Redis causes, nor a cancellation: `Exchange.error` has it.
        """
        store, worker, runtime = self._served.store, self._served.worker, self._served.runtime
        writes = store.end_runs(worker, exchange.ended)
        calls: list[Call[Any]] = [call for call, _ in writes]
        if hold := exchange.hold:
            cap, lease = runtime.config.payload_cap, runtime.times.lease
            calls.append(store.start(worker, exchange.fetched, hold=hold, lease=lease, cap=cap, ticket=exchange.ticket))
        exchange.sent = time.monotonic()
        if not calls:
            return
        # Decided by the number of ends, not of free slots: `start` asks for all of those even when it gets one job.
        timed = self.batch.worth_timing(len(exchange.ended))
        async with self._sending:
            replies = await self._attempt([clock(), *calls, clock()] if timed else calls)
        if timed:
            self._note_cost(writes, replies)
            replies = replies[1:-1]
        for (_, runs), reply in zip(writes, replies, strict=False):
            self._read(exchange, runs, reply)
        if hold and isinstance(replies[-1], BaseException):
            exchange.error = replies[-1]
        elif hold:
            exchange.started = replies[-1]

    async def finish(self) -> None:
        """Have no other exchange begun, and wait a second at most for the one that is under way."""
        self.finished = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINISH), self._sending:
                pass

    async def close(self) -> None:
        """Cut the connection, unless it is shared."""
        if not self._shared:
            await self._sender.close()

    def _read(self, exchange: Exchange, runs: list[Run], reply: Any) -> None:
        """Note in the exchange the reply to the call that ends these runs."""
        if lacks_memory(runs, reply):
            self._served.runtime.emit(process_events.RedisFailed(kind=FULL))
            delay = self._put_off.refused()
            for run in runs:
                run.put_off(delay, _NO_MEMORY)
            exchange.refused += runs
            return
        if isinstance(reply, BaseException):
            exchange.error = reply
            exchange.unwritten += runs
            return
        if _is_forward(runs):
            self._put_off.accepted()
        if reply.refused:
            refused = [run for run in runs if run.job.id in reply.refused]
            for run in refused:
                run.refuse(reply.refused[run.job.id])
            exchange.refused += refused
            runs = [run for run in runs if run not in refused]
        exchange.written.append((runs, reply.lost))

    async def _attempt(self, calls: list[Call[Any]]) -> list[Any]:
        try:
            return await self._sender.attempt_all(calls)
        except (StoreError, asyncio.CancelledError) as error:
            failed: Any = error
            return [failed] * len(calls)

    def _note_cost(self, writes: list[tuple[Call[NotEnded], list[Run]]], replies: list[Any]) -> None:
        """Note how long Redis was busy with a script, from its time before and after them."""
        if not (isinstance(replies[0], float) and isinstance(replies[-1], float)):
            return
        counts = [len(runs) for _, runs in writes]
        counts += [len(reply.jobs) for reply in replies[-2:-1] if isinstance(reply, Fetched)]
        self.batch.took(max(counts), (replies[-1] - replies[0]) / (len(replies) - 2))


def lacks_memory(ended: Sequence[Run], reply: object) -> bool:
    """Return whether no run of a call of `end_runs` has ended, because Redis has no memory for their messages."""
    return isinstance(reply, StoreError) and reply.kind == FULL and _is_forward(ended)


def _is_forward(ended: Sequence[Run]) -> bool:
    """Return whether the runs of a call of `end_runs` end with messages."""
    return len(ended) > 0 and isinstance(ended[0].outcome, Forwarded)


def events_of(queue: str, worker: str, ended: Sequence[Run], lost: Sequence[str] = ()) -> list[Event]:
    """Return the events for runs that one call of `store.end_runs` has ended: all of them with one kind of outcome.

    `store.end_runs` has the other half, from outcome to call. docs/design.md#outcomes says where an outcome is added.
    `lost` is the call's reply: the ids of runs whose end was not written.
    """
    found = list[Event]()
    if lost:
        found += [_lost(queue, worker, run) for run in ended if run.job.id in lost]
        ended = [run for run in ended if run.job.id not in lost]
    if not ended:
        return found
    match ended[0].outcome:
        case Done():
            ids, tasks = [run.job.id for run in ended], [run.task for run in ended]
            seconds, attempts = [run.took or 0.0 for run in ended], [run.job.attempt for run in ended]
            found.append(
                events.Completed(queue=queue, worker=worker, ids=ids, tasks=tasks, seconds=seconds, attempts=attempts)
            )
        case Requeued(reason=reason):
            ids = [run.job.id for run in ended]
            found.append(events.JobsRequeued(queue=queue, worker=worker, ids=ids, cause="busy", reason=reason))
        case _:
            found += [_end_of(queue, run) for run in ended]
    return found


def _lost(queue: str, worker: str, run: Run) -> Event:
    end = "unknown" if run.repeated else "discarded"
    return events.RunLost(queue=queue, worker=worker, id=run.job.id, task=run.task, attempt=run.job.attempt, end=end)


def _end_of(queue: str, run: Run) -> Event:
    """Return the event for the end of one run, whose outcome has an event of its own."""
    job_id, task, attempt, took = run.job.id, run.task, run.job.attempt, run.took
    match run.outcome:
        case Retried(delay=delay, reason=reason, traceback=trace):
            return events.Retrying(
                queue=queue,
                id=job_id,
                task=task,
                attempt=attempt,
                delay=delay,
                reason=reason,
                seconds=took,
                traceback=trace,
            )
        case Buried(reason=reason, outcome=kind, traceback=trace, began=began):
            return events.JobBuried(
                queue=queue,
                id=job_id,
                task=task,
                attempt=attempt if began else attempt - 1,  # as in the record
                reason=reason,
                outcome=kind,
                seconds=took,
                traceback=trace,
            )
        case Aborted():
            return events.JobAborted(queue=queue, id=job_id, task=task, attempt=attempt, seconds=took)
        case Deferred(due=due, cause=cause):
            return events.JobDeferred(queue=queue, id=job_id, task=task, due=due, cause=cause)
        case Snoozed(reason=reason):
            return events.JobSnoozed(queue=queue, id=job_id, task=task, attempt=attempt, reason=reason, seconds=took)
        case Done() | Requeued() | None:
            raise AssertionError("the runs of a call have one kind of outcome")


class LostReplies:
    """Finds the jobs in a worker's list that it does not know of, and the ends that are written although no reply came.

    If the reply of a `start` is lost, or the message of a hand-over, its jobs stay in the worker's list in Redis, where
    nobody runs them. So the list itself is read: at the start, after each failure, when `start` did not hand out a job
    that it was asked for, and when it or heartbeats count more jobs than are known.

    If the reply to the end of a run is lost, the end is sent again. A repeated end that finds the run gone was written
    the first time, or the lease was lost before. So the record is asked: if the worker has started the job again, or
    the record is as this end would leave it and the job was not started since, the end is written.
    """

    def __init__(self, served: ServedQueue, held: HeldRuns, share: QueueShare) -> None:
        self._served = served
        self._held = held
        self._share = share
        self.suspected = True
        """The list may hold jobs that are not known here. At the start it may."""

    def look_for(self, asked: Sequence[str], reply: Fetched) -> None:
        """Suspect a loss if `start` has not handed out all jobs that it was asked for: some may not have fitted."""
        if asked and not self._held.runs.keys() >= {*asked} - {job_id for job_id, _ in reply.buried}:
            self.suspected = True

    async def written(self, lost: Sequence[Run]) -> list[Run]:
        """Return the runs among these, all reported as lost, whose ends were written before they were sent again.

        The others may be written too: a record that is gone, or that belongs to a newer job or run, does not say.
        """
        repeated = [run for run in lost if run.repeated]
        found = await asyncio.gather(*(self._last_run(run) for run in repeated), return_exceptions=True)
        return [
            run
            for run, last in zip(repeated, found, strict=True)
            if isinstance(last, LastRun) and (self._started_again(run, last) or is_end_of(run, last))
        ]

    def _started_again(self, run: Run, last: LastRun) -> bool:
        """Return whether this worker has started the job again: then the run's end was written."""
        return last.worker == self._served.worker and last.run != run.job.run

    async def _last_run(self, run: Run) -> LastRun:
        return await self._served.runtime.sender.send(self._served.store.last_run(run.job.id))

    async def find(self, *, stopping: bool) -> None:
        """Read the list. Start the jobs that are not known, as far as there are slots, and hand back the others.

        A worker that is `stopping` hands back all of them.

        Raises:
            StoreDown, StoreRefused
        """
        sender, store, worker = self._served.runtime.sender, self._served.store, self._served.worker
        unknown = self._held.unknown(await sender.send(store.held(worker)))
        returning = {*self._held.returning}
        returned = unknown if stopping else [job_id for job_id in unknown if job_id in returning]
        others = [job_id for job_id in unknown if job_id not in returned]
        kept = [job_id for job_id in others if self._share.reserve_one()]
        self._held.fetched += kept
        surplus = [*returned, *others[len(kept) :]]
        self._held.returning.update(surplus)
        if surplus:
            last = await sender.send_all([store.last_run(job_id) for job_id in surplus])
            runs = [(job_id, of.run if of.worker == worker else "") for job_id, of in zip(surplus, last, strict=True)]
            reason = "the worker stops" if stopping else "no slot was free"
            await sender.send(store.requeue(worker, reason, runs=runs))
        self._held.returning.difference_update(returning, surplus)
        self.suspected = False


def is_end_of(run: Run, last: LastRun) -> bool:
    """Whether a record is as the end of this run leaves it. `requeue` deletes `started`, and so does `defer`."""
    if last.run.partition(" ")[2] != run.job.run.partition(" ")[2]:
        return False
    match run.outcome:
        case Done():
            return last.outcome == "done"
        case Buried(outcome=outcome):
            return last.outcome == outcome
        case Aborted():
            return last.outcome == "cancelled"
        case Retried() | Snoozed():
            return last.outcome is None and last.worker is None
        case Deferred() | Requeued() | None:
            return False
