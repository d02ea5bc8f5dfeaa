"""The consumer: a worker's part that serves one queue. It starts jobs, has them run, and writes their outcomes.

Two loops. One blocks (`fetcher.py`). The other exchanges: in one round trip it writes the outcomes of the jobs that
have ended and starts the next ones, so that under load there is no blocking call at all, and one batch costs what one
job does.

A lost reply leaves jobs in the worker's list that the worker does not know of. So after each failure, and when a
heartbeat counts more jobs than are known, the list itself is read, and jobs that are unknown are started.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from evsched import events
from evsched.errors import StoreError
from evsched.jobs.job import Buried, Outcome, Returned, shorten
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect
from evsched.runtime.runtime import Runtime
from evsched.store.batch_size import Batch
from evsched.store.replies import Fetched
from evsched.store.server import clock
from evsched.store.store import Store
from evsched.transport.call import Call
from evsched.transport.senders import DirectSender, SyncSender
from evsched.worker.executor import Executor
from evsched.worker.fetcher import Fetcher
from evsched.worker.notes import Notes
from evsched.worker.outcomes import Ended, events_of
from evsched.worker.run import Delivery, Run
from evsched.worker.slots import Slots
from evsched.worker.verdict import TIMED_OUT, Failed, judge

_Outgoing = tuple[Call[Any], Ended | None]
"""A call, and the runs whose end it writes; None is the start of the next."""

_WIDEST: Final = 999
"""Jobs that one start may hand out."""


class QueueConsumer:
    """Serves one queue for a worker. `run` it, then `drain` it."""

    def __init__(
        self,
        runtime: Runtime,
        queue: str,
        worker: str,
        executor: Executor,
        slots: Slots,
        attend: Callable[[], None],
    ) -> None:
        self.store = Store(queue)
        self._config, self._sender, self._emit = runtime.config, runtime.sender, runtime.emit
        config, sender, emit = runtime.config, runtime.sender, runtime.emit
        self._worker = worker
        self._executor = executor
        self._share = slots.join(config.weights.get(queue, 1.0), self.stir)
        self._attend = attend
        self._direct = DirectSender(config.url)
        self._reconnect = Reconnect(f"worker, queue {queue}", emit)

        self.held: dict[str, Run] = {}
        """The runs whose end is not written yet."""
        self._running = 0
        self._ended: Ended = []
        self._cancelled = set[str]()
        """Ids that were cancelled while an exchange was on its way, which may bring their runs."""
        self._fetched: list[str] = []
        """Ids in the worker's list that are to be started; each has a slot."""
        self._more = True
        """Ready may hold more: ask without blocking. At the start it may."""
        self._behind = False
        """The last start did leave some there, and that was told."""
        self._unsure = True
        """The list may hold what we do not know of."""
        self._surplus = 0
        self._width = _WIDEST
        """How many to fetch at the most: fewer after some of them found no process of the pool free."""
        self._batch = Batch(config.batch)
        """How many jobs one script writes the end of, or starts."""
        self._waits = False
        """None was: fetch no more until one is."""
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._closed = False
        """It fetches no more."""
        self._stopping = False
        """And ends with the last that it holds."""
        self._fetcher = Fetcher(
            runtime,
            self.store,
            worker,
            self._share,
            fetched=self._on_fetched,
            unsure=self._is_unsure,
        )
        self._notes = Notes(sender, self.store, worker, self.held)
        self._news.set()
        executor.freed.append(self._freed)

    @property
    def busy(self) -> bool:
        """It holds jobs."""
        return bool(self.held or self._fetched)

    @property
    def running(self) -> int:
        """How many slots its runs are in."""
        return self._running

    @property
    def pulses(self) -> list[Pulse]:
        """The pulses of its two loops."""
        return [self._reconnect.pulse, self._fetcher.reconnect.pulse]

    def wrong(self) -> str | None:
        """Return why it takes or ends no jobs; None = it does."""
        return self._reconnect.reason or self._fetcher.reconnect.reason

    def stir(self) -> None:
        """Let the exchange look again."""
        self._news.set()

    async def run(self) -> None:
        """Fetch and run jobs until `stop_fetching` was called and what is held has ended."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._fetcher.run())
                group.create_task(self._exchange_all())
        finally:
            self._notes.close()
            await self._fetcher.close()
            await self._direct.close()

    def _on_fetched(self, job_id: str | None) -> None:
        if job_id is not None:
            self._fetched.append(job_id)
        self._more = True  # where one was there may be more, and one without a slot waits for this queue's turn
        self._news.set()

    def _is_unsure(self) -> None:
        self._unsure = True
        self._news.set()

    def _freed(self) -> None:
        self._waits = False
        if self._more:
            self._news.set()

    async def _exchange_all(self) -> None:
        while not (self._stopping and not self.held and not self._fetched):
            await self._news.wait()
            self._news.clear()
            async with self._reconnect:
                await self.exchange()
            if self._reconnect.failures:
                self._share.want(False)  # the others need not leave room for what cannot come
                self._is_unsure()

    async def exchange(self) -> None:
        """Write the outcomes of what has ended, and start what there is room for.

        Raises:
            StoreDown, StoreRefused: what was not written stays, for the next exchange.
        """
        if self._unsure:
            await self._compare()
        await self._notes.settle()
        limit = self._batch.limit
        ended, self._ended = self._ended[:limit], self._ended[limit:]
        if any(type(outcome) is Returned for _, outcome in ended):
            self._narrow()
        if ended and self._fetcher.full:
            self._more = True  # these ends may let others pass the gate, and no BLMOVE would bring them
        fetched, self._fetched = self._fetched, []
        room = self._reserve()
        calls: list[_Outgoing] = [*self.store.end_runs(self._worker, ended)]
        if fetched or room:
            lease, cap = self._config.lease, self._config.payload_cap
            hold = min(self._running + len(fetched) + room, _WIDEST)
            calls.append((self.store.start(self._worker, fetched, hold=hold, lease=lease, cap=cap), None))
        if calls:
            if self._batch.worth_timing(len(ended)):  # the room says little: one job that came alone asks for all
                calls = [(clock(), []), *calls, (clock(), [])]
            await self._send(calls, fetched, room)
        if self._ended or self._fetched:
            self._news.set()
        self._plan()

    def _reserve(self) -> int:
        """Take the free slots that are this queue's; return how many."""
        wants = self._more and not self._closed and not self._waits and not self._executor.lock.closed
        self._share.want(wants)
        return self._share.reserve(min(self._width, self._batch.limit)) if wants else 0

    def _plan(self) -> None:
        """Say what is to be done next: ask again, block, or wait for a slot."""
        if not self._more:
            self._share.want(False)
        elif self._share.wants and self._share.turns > 0:
            self._news.set()  # else it is stirred when it may take a slot
        self._fetcher.feed(hungry=not self._more and not self._closed and self._share.may_block)

    def _narrow(self) -> None:
        """Jobs came back that found no process of the pool free: fetch no more than can begin."""
        self._width = max(1, self._executor.free_processes)
        self._waits = self._executor.free_processes == 0
        self._more = True

    async def _send(self, calls: list[_Outgoing], fetched: list[str], room: int) -> None:
        handed = time.monotonic()
        self._cancelled.clear()
        try:
            answers = await self._direct.attempt_all([call for call, _ in calls])
        except (StoreError, asyncio.CancelledError) as error:
            cut: Any = error
            answers = [cut] * len(calls)
        self._note_length(calls, answers)
        failed: BaseException | None = None
        for (_, runs), answer in zip(calls, answers, strict=True):
            if isinstance(answer, BaseException):
                failed = answer
                self._ended += runs or []
            elif runs is None:
                room += len(fetched) - self._spawn(answer, handed)
                self._seek_left(fetched, answer)
                fetched = []
            else:
                self._written(runs, answer)
        self._share.release(room)
        if failed is not None:
            self._fetched = fetched + self._fetched
            raise failed

    def _note_length(self, calls: list[_Outgoing], answers: list[Any]) -> None:
        """Tell how long Redis was busy with a script, when its TIME stands before and behind them."""
        if isinstance(answers[0], float) and isinstance(answers[-1], float):
            counts = [
                len(answer.jobs) if isinstance(answer, Fetched) else len(runs or ())
                for (_, runs), answer in zip(calls, answers, strict=True)
            ]
            self._batch.took(max(counts), (answers[-1] - answers[0]) / (len(calls) - 2))

    async def _compare(self) -> None:
        """Compare the list with what is known; what is not is to be started, as far as there are slots."""
        listed = await self._sender.send(self.store.held(self._worker))
        known = {*self.held, *self._fetched}
        unknown = [job_id for job_id in dict.fromkeys(listed) if job_id not in known]
        kept = [job_id for job_id in unknown if self._share.reserve_one()]
        self._fetched += kept
        if len(kept) < len(unknown):
            reason = "no slot was free"
            await self._sender.send(self.store.requeue(self._worker, reason, ids=unknown[len(kept) :]))
        self._unsure = False
        self._more = True

    def _seek_left(self, asked: list[str], reply: Fetched) -> None:
        """Look for what was not handed out: it may still be in the list, since it did not fit in one reply."""
        if asked and not self.held.keys() >= {*asked} - {job_id for job_id, _ in reply.buried}:
            self._unsure = True
            self._news.set()

    def _spawn(self, reply: Fetched, handed: float) -> int:
        """Run what was handed out; return how many."""
        if not reply.leased and self.held:
            self.lose()
        self._more = reply.more
        if reply.more != self._behind:
            self._behind = reply.more
            self._emit(
                events.ReadyLeft(queue=self.store.queue) if reply.more else events.ReadyDrained(queue=self.store.queue)
            )
        queue, held, create, report = self.store.queue, self.held, self._loop.create_task, self._notes.progressed
        was_busy = bool(held)
        # By id: one that Redis names twice is one run.
        delivery = Delivery(queue, reply.now, handed)
        found = {job.id: Run(job, delivery, report) for job in reply.jobs if job.id not in held}
        runs = list(found.values())
        for run in runs:
            held[run.job.id] = run
            run.work = create(self._run(run))
            if run.job.id in self._cancelled:
                run.stop("cancelled")
        self._running += len(runs)
        if runs:
            self._width = min(2 * self._width, _WIDEST)
            self._notes.handed_out()
            if not was_busy:
                self._attend()
            self._loop.call_soon(self._started, runs, reply.now - handed)
        for job_id, why in reply.buried:
            self._emit(events.JobBuried(queue=queue, id=job_id, reason=why))
        return len(runs)

    def _started(self, runs: list[Run], offset: float) -> None:
        """Tell that runs have begun: each has made its first step by now, before this one of the loop.

        But for those that wait for something before they begin, and those that came back.
        """
        begun = list[Run]()
        for run in runs:
            if run.began or (run.work is not None and run.work.done()):
                if type(run.outcome) is not Returned:
                    begun.append(run)
            else:
                run.on_begin = partial(self._started_late, offset)
        self._tell_started(begun, offset)

    def _started_late(self, offset: float, run: Run) -> None:
        self._tell_started([run], offset)

    def _tell_started(self, runs: list[Run], offset: float) -> None:
        if runs:
            # By when each began: one that blocked the loop in its first step would make this later than it was.
            now = time.monotonic()
            late = [(run.began or now) + offset - run.job.due for run in runs]
            ids, tasks = [run.job.id for run in runs], [run.task for run in runs]
            attempts = [run.job.attempt for run in runs]
            self._emit(
                events.Started(
                    queue=self.store.queue, worker=self._worker, ids=ids, tasks=tasks, lateness=late, attempts=attempts
                )
            )

    async def _run(self, run: Run) -> None:
        outcome: Outcome | None = None
        try:
            outcome = await self._executor.run(run)
            run.outcome = outcome
        except asyncio.CancelledError:
            raise
        # A run without an outcome would keep its slot for ever.
        except BaseException as error:  # noqa: BLE001
            why = f"its run came to no outcome, which is a bug of evsched: {type(error).__name__}: {error}"
            outcome = Buried(shorten(why), run.reply)
        finally:
            if run.stop_reason != "lost":
                self._running -= 1
            self._share.end(time.monotonic() - run.delivery.received)
            if outcome is not None and run.stop_reason != "lost":
                self._ended.append((run, outcome))
            self._news.set()

    def _written(self, runs: Ended, lost: list[str]) -> None:
        """Forget runs whose end is written; those in `lost` were not this worker's any more."""
        for run, _ in runs:
            if self.held.get(run.job.id) is run:
                del self.held[run.job.id]
        for event in events_of(self.store.queue, self._worker, runs, lost):
            self._emit(event)

    # What other threads and the end of the process bring.

    def abort(self, job_id: str) -> bool:
        """Stop a run, since its job was cancelled; return whether that was news. One not started is start's to end."""
        run = self.held.get(job_id)
        if run is None:
            self._cancelled.add(job_id)
        if run is None or run.stop_reason in ("cancelled", "lost"):
            return False
        run.stop("cancelled")
        return True

    def counted(self, count: int) -> None:
        """Note how many jobs Redis has in the worker's list: more than are known, twice in a row, is a lost reply."""
        self._surplus = self._surplus + 1 if count > len(self.held) + len(self._fetched) else 0
        if self._surplus > 1:
            self._surplus, self._unsure = 0, True
            self._news.set()

    def lose(self) -> None:
        """Stop and forget what was held: the lease had ended, and it is others' now."""
        for run in self.held.values():
            run.stop("lost")
        self.held.clear()
        self._running = 0
        self._ended.clear()
        self._share.release(len(self._fetched))
        self._fetched.clear()
        self._unsure = True
        self._news.set()
        self._emit(events.LeaseLost(queue=self.store.queue, worker=self._worker))

    def fetch_no_more(self) -> None:
        """Begin no other take. For any thread; `stop_fetching` ends the one that waits."""
        self._closed = True
        self._fetcher.fetch_no_more()

    async def stop_fetching(self) -> None:
        """Take no more; a BLMOVE that waits ends without a job, or hands its job back."""
        self.fetch_no_more()
        self._stopping = True
        self._news.set()
        await self._fetcher.stop()

    def cut_short(self, reason: str, stuck: Run | None = None) -> list[tuple[Call[list[str]], Ended]]:
        """Return what ends the runs that may not be handed back, when the worker ends before they do.

        One that has begun the only attempt of its job is given up, and a `stuck` one has failed.
        """
        ended = list[tuple[Run, Outcome]]()
        for run in list(self.held.values()):
            if run.prepared is not None and (run is stuck or run.in_only_attempt):
                why = f"{TIMED_OUT} and did not yield" if run is stuck else reason
                ended.append((run, judge(run.job, run.prepared, Failed(why))))
        return self.store.end_runs(self._worker, ended)

    async def hand_back(self) -> int:
        """Put all that is still held back to ready, give up the lease; return how many jobs that were.

        Raises:
            StoreDown, StoreRefused
        """
        reason, put, rest = f"worker {self._worker} was stopped", 0, "more"
        calls = self.store.end_runs(self._worker, self._ended) + self.cut_short(reason + " while it ran")
        for run in self.held.values():
            run.stop("lost")
        for call, runs in calls:
            self._written(runs, await self._sender.send(call))
        self.held.clear()
        while rest == "more":
            rest, ids = await self._sender.send(self.store.requeue(self._worker, reason, limit=self._config.batch))
            put += len(ids)
            if ids:
                self._emit(
                    events.Requeued(
                        queue=self.store.queue, worker=self._worker, ids=ids, cause="stopped", reason=reason
                    )
                )
        return put

    def hand_back_by(self, sender: SyncSender, reason: str, stuck: Run | None = None) -> int:
        """Do the same from a thread, for an event loop that is blocked; the process must end then.

        Raises:
            StoreDown, StoreRefused
        """
        self.fetch_no_more()
        self._fetcher.unblock_by(sender)
        for call, _ in self.store.end_runs(self._worker, self._ended) + self.cut_short(reason, stuck):
            sender.send(call)
        put, rest = 0, "more"
        while rest == "more":
            rest, ids = sender.send(self.store.requeue(self._worker, reason))
            put += len(ids)
        return put
