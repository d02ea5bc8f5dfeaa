"""A lane: a worker's way from one queue. It takes jobs, has them run, and writes what came of them.

Two loops. One blocks: BLMOVE moves a job into this worker's list the moment it is ready. The other exchanges: in one
round trip it writes the outcomes of the jobs that have ended and starts the next ones, so that under load there is no
blocking call at all, and one batch costs what one job does.

A reply that is lost leaves jobs in the list that the worker does not know of. So after each failure, and when a beat
counts more jobs than are known, the list itself is read, and what is unknown is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any, Final

from evsched import events
from evsched.answers import Take
from evsched.call import Call
from evsched.config import Config
from evsched.errors import StoreError
from evsched.events import Emit
from evsched.executor import Executor
from evsched.job import Aborted, Buried, Deferred, Done, Outcome, Retried
from evsched.outage import Outage
from evsched.pulse import Pulse
from evsched.run import Run
from evsched.sender import Blocking, Commands, Direct, SyncCommands
from evsched.server import unblock
from evsched.slots import Slots
from evsched.store import Store

_Outgoing = tuple[Call[Any], list[tuple[Run, Outcome]] | None]
"""A call, and the runs whose end it writes; None is the start of the next."""


_PROGRESS: Final = 0.25
"""Seconds between two writes of the progress of runs."""

_UNBLOCK: Final = 0.05
"""Seconds between two tries to end a BLMOVE that waits."""


class Lane:
    """One queue's lane of a worker. `run` it, then `drain` it."""

    def __init__(
        self,
        config: Config,
        commands: Commands,
        emit: Emit,
        queue: str,
        worker: str,
        executor: Executor,
        slots: Slots,
        attend: Callable[[], None],
    ) -> None:
        self.store = Store(queue)
        self._config = config
        self._commands = commands
        self._emit = emit
        self._worker = worker
        self._executor = executor
        self._slots = slots
        self._attend = attend
        self._direct = Direct(config.url)
        self._blocking = Blocking(config.url, deadline=config.deadline)
        self._outage = Outage(f"worker, queue {queue}", emit)
        self._taking = Outage(f"worker, taking from {queue}", emit)

        self.held: dict[str, Run] = {}
        """The runs whose end is not written yet."""
        self._running = 0
        self._ended: list[tuple[Run, Outcome]] = []
        self._taken: list[str] = []
        """Ids in the worker's list that are to be started."""
        self._more = True
        """Ready may hold more: ask without blocking. At the start it may."""
        self._behind = False
        """The last start did leave some there, and that was told."""
        self._unsure = True
        """The list may hold what we do not know of."""
        self._surplus = 0
        self._telling: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._hungry = asyncio.Event()
        """Slots are free and ready was empty: block."""
        self._stopping = False
        self._blocked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._news.set()
        slots.freed.append(self.stir)

    @property
    def busy(self) -> bool:
        """It holds jobs."""
        return bool(self.held or self._taken)

    @property
    def running(self) -> int:
        """How many slots its runs are in."""
        return self._running

    @property
    def pulses(self) -> list[Pulse]:
        """The pulses of its two loops."""
        return [self._outage.pulse, self._taking.pulse]

    def wrong(self) -> str | None:
        """Return why it takes or ends no jobs; None = it does."""
        return self._outage.reason or self._taking.reason

    def stir(self) -> None:
        """Let the exchange look again."""
        self._news.set()

    async def run(self) -> None:
        """Take and run jobs until `drain` has ended."""
        try:
            async with asyncio.TaskGroup() as group:
                self._blocked = group.create_task(self._block())
                group.create_task(self._exchange_all())
        finally:
            if self._telling is not None:
                self._telling.cancel()
            await self._blocking.close()
            await self._direct.close()

    # The first loop: block until a job is ready.

    async def _block(self) -> None:
        while not self._stopping:
            await self._hungry.wait()
            if self._stopping:
                break
            async with self._taking:
                self._taking.pulse.expect(self._config.probe + self._config.deadline)
                await self._take_one()

    async def _take_one(self) -> None:
        if self._blocking.client is None:
            await self._blocking.open()
        if self._stopping:
            return
        client = self._blocking.client
        try:
            taken = await self._blocking.send(self.store.take(self._worker, self._config.probe), self._config.probe)
        except StoreError:
            self._unsure = True
            self._news.set()
            # Redis may not have noticed that the connection is gone, and would still serve its BLMOVE.
            await self._commands.send(unblock(client or 0))
            raise
        if taken is None:
            return
        if self._slots.free <= 0 or self._stopping:
            reason = "no slot was free"
            await self._commands.send(self.store.requeue(self._worker, reason, ids=[taken]))
            self._emit(events.Requeued(self.store.queue, self._worker, [taken], "busy", reason))
            self._hungry.clear()
            self._news.set()
            return
        self._taken.append(taken)
        self._hungry.clear()
        self._news.set()

    # The second loop: one round trip for the ended and the next.

    async def _exchange_all(self) -> None:
        while not (self._stopping and not self.held and not self._taken):
            await self._news.wait()
            self._news.clear()
            async with self._outage:
                await self.exchange()
            if self._outage.failures:
                self._unsure = True
                self._news.set()

    async def exchange(self) -> None:
        """Write the outcomes of what has ended, and start what there is room for.

        Raises:
            StoreDown, StoreRefused: what was not written stays, for the next exchange.
        """
        if self._unsure:
            await self._compare()
        limit = self._config.batch
        ended, self._ended = self._ended[:limit], self._ended[limit:]
        taken, self._taken = self._taken, []
        wants = not self._stopping and (taken or self._more)
        reserved = self._slots.reserve() if wants else 0
        calls = self._outcomes(ended)
        if taken or reserved:
            lease, cap = self._config.lease, self._config.payload_cap
            hold = min(self._running + max(reserved, len(taken)), 999)
            calls.append((self.store.start(self._worker, taken, hold=hold, lease=lease, cap=cap), None))
        if calls:
            await self._send(calls, taken, reserved)
        if self._ended or self._taken or (self._more and self._slots.free > 0 and not self._stopping):
            self._news.set()
        elif self._slots.free > 0 and not self._more:
            self._hungry.set()

    async def _send(self, calls: list[_Outgoing], taken: list[str], reserved: int) -> None:
        handed = time.monotonic()
        try:
            answers = await self._direct.attempt_all([call for call, _ in calls])
        except (StoreError, asyncio.CancelledError) as error:
            cut: Any = error
            answers = [cut] * len(calls)
        failed: BaseException | None = None
        for (_, runs), answer in zip(calls, answers, strict=True):
            if isinstance(answer, BaseException):
                failed = answer
                self._ended += runs or []
            elif runs is None:
                reserved -= self._spawn(answer, handed)
                self._seek_left(taken, answer)
                taken = []
            else:
                self._written(runs, answer)
        self._slots.release(reserved)
        if failed is not None:
            self._taken = taken + self._taken
            raise failed

    def _outcomes(self, ended: list[tuple[Run, Outcome]]) -> list[_Outgoing]:
        calls: list[_Outgoing] = []
        verbs = (
            (Done, self.store.complete),
            (Retried, self.store.retry),
            (Buried, self.store.bury),
            (Aborted, self.store.abort),
            (Deferred, self.store.defer),
        )
        for kind, verb in verbs:
            runs = [(run, outcome) for run, outcome in ended if type(outcome) is kind]
            if runs:
                calls.append((verb(self._worker, [(run.job, outcome) for run, outcome in runs]), runs))  # pyright: ignore[reportArgumentType]
        return calls

    async def _compare(self) -> None:
        """Compare the list with what is known; what is not is to be started."""
        listed = await self._commands.send(self.store.held(self._worker))
        known = {*self.held, *self._taken}
        self._taken += [job_id for job_id in dict.fromkeys(listed) if job_id not in known]
        self._unsure = False
        self._more = True

    def _seek_left(self, asked: list[str], take: Take) -> None:
        """Look for what was not handed out: it may still be in the list, since it did not fit in one reply."""
        if asked and not self.held.keys() >= {*asked} - {job_id for job_id, _ in take.buried}:
            self._unsure = True
            self._news.set()

    def _spawn(self, take: Take, handed: float) -> int:
        """Run what was handed out; return how many."""
        if not take.leased and self.held:
            self.lose()
        self._more = take.more
        if take.more != self._behind:
            self._behind = take.more
            self._emit(events.ReadyLeft(self.store.queue) if take.more else events.ReadyTaken(self.store.queue))
        queue, held, create, report = self.store.queue, self.held, self._loop.create_task, self._report
        was_busy = bool(held)
        runs = [Run(queue, job, take.now, handed, report) for job in take.jobs if job.id not in held]
        for run in runs:
            held[run.job.id] = run
            run.work = create(self._run(run))
        self._running += len(runs)
        if runs:
            if not was_busy:
                self._attend()
            self._loop.call_soon(self._started, runs, take.now - handed)
        for job_id, why in take.buried:
            self._emit(events.Buried(queue, job_id, "?", 0, why, "dead"))
        return len(runs)

    def _started(self, runs: list[Run], offset: float) -> None:
        """Tell that runs have begun: each has made its first step by now, before this one of the loop."""
        now = time.monotonic() + offset
        late = [now - run.job.due for run in runs]
        ids, tasks = [run.job.id for run in runs], [run.task for run in runs]
        self._emit(events.Started(self.store.queue, self._worker, ids, tasks, late))

    async def _run(self, run: Run) -> None:
        outcome: Outcome | None = None
        try:
            outcome = await self._executor.run(run)
        finally:
            if not run.abandoned:
                self._running -= 1
            self._slots.release(1)
            if outcome is not None and not run.abandoned:
                self._ended.append((run, outcome))
            self._news.set()

    def _written(self, runs: list[tuple[Run, Outcome]], lost: list[str]) -> None:
        """Forget the runs whose end is written, or is another's to write."""
        queue, done = self.store.queue, list[Run]()
        for run, outcome in runs:
            job_id, attempt = run.job.id, run.job.attempt
            if self.held.get(job_id) is run:
                del self.held[job_id]
            if job_id in lost:
                self._emit(events.RunLost(queue, self._worker, job_id, run.task, attempt))
            elif type(outcome) is Done:
                done.append(run)
            elif type(outcome) is Retried:
                delay, reason = outcome.delay, outcome.reason
                self._emit(events.Retrying(queue, job_id, run.task, attempt, delay, reason, run.took))
            elif type(outcome) is Buried:
                reason, end = outcome.reason, outcome.outcome
                self._emit(events.Buried(queue, job_id, run.task, attempt, reason, end, run.took))
            elif type(outcome) is Aborted:
                self._emit(events.Aborted(queue, job_id, run.task, attempt, run.took))
            elif type(outcome) is Deferred:
                self._emit(events.Deferred(queue, job_id, run.task, outcome.due))
        if done:
            ids, tasks = [run.job.id for run in done], [run.task for run in done]
            self._emit(events.Completed(queue, self._worker, ids, tasks, [run.took or 0.0 for run in done]))

    # What runs say on their way.

    def _report(self) -> None:
        """Have the progress of runs written. For any thread."""
        self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        if self._telling is None or self._telling.done():
            self._telling = self._loop.create_task(self._write_progress())

    async def _write_progress(self) -> None:
        while told := [(run.job, run.progress) for run in self.held.values() if run.progress is not None]:
            for run in self.held.values():
                run.progress = None
            # Redis is away: the next one tells more.
            with contextlib.suppress(StoreError):
                await self._commands.send(self.store.progress(self._worker, told))
            await asyncio.sleep(_PROGRESS)

    # What other threads and the end of the process bring.

    def abort(self, job_id: str) -> bool:
        """Stop a run, since its job was cancelled; return whether that was news. One not started is start's to end."""
        run = self.held.get(job_id)
        if run is None or run.aborted:
            return False
        run.abort()
        return True

    def counted(self, count: int) -> None:
        """Note how many jobs Redis has in the worker's list: more than are known, twice in a row, is a lost reply."""
        self._surplus = self._surplus + 1 if count > len(self.held) + len(self._taken) else 0
        if self._surplus > 1:
            self._surplus, self._unsure = 0, True
            self._news.set()

    def lose(self) -> None:
        """Stop and forget what was held: the lease had ended, and it is others' now."""
        for run in self.held.values():
            run.abandon()
        self.held.clear()
        self._running = 0
        self._ended.clear()
        self._taken.clear()
        self._unsure = True
        self._news.set()
        self._emit(events.LeaseLost(self.store.queue, self._worker))

    def take_no_more(self) -> None:
        """Begin no other take. For any thread; `stop_taking` ends the one that waits."""
        self._stopping = True

    async def stop_taking(self) -> None:
        """Take no more; a BLMOVE that waits ends without a job, or hands its job back."""
        self.take_no_more()
        self._hungry.set()
        self._news.set()
        while not self._blocked.done():
            # Once may be too early: the BLMOVE travels on another connection, and may arrive after this.
            if self._blocking.client is not None:
                with contextlib.suppress(StoreError):
                    await self._commands.send(unblock(self._blocking.client))
            await asyncio.wait([self._blocked], timeout=_UNBLOCK)

    async def hand_back(self) -> int:
        """Put all that is still held back to ready, give up the lease; return how many jobs that were.

        Raises:
            StoreDown, StoreRefused
        """
        for run in self.held.values():
            run.abandon()
        self.held.clear()
        reason, put, rest = f"worker {self._worker} was stopped", 0, "more"
        while rest == "more":
            rest, ids = await self._commands.send(self.store.requeue(self._worker, reason, limit=self._config.batch))
            put += len(ids)
            if ids:
                self._emit(events.Requeued(self.store.queue, self._worker, ids, "stopped", reason))
        return put

    def hand_back_by(self, commands: SyncCommands, reason: str) -> int:
        """Do the same from a thread, for an event loop that is blocked; the process must end then.

        Raises:
            StoreDown, StoreRefused
        """
        self.take_no_more()
        if self._blocking.client is not None:
            commands.send(unblock(self._blocking.client))
        put, rest = 0, "more"
        while rest == "more":
            rest, ids = commands.send(self.store.requeue(self._worker, reason))
            put += len(ids)
        return put
