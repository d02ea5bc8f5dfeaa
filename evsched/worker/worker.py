"""The worker: a process that fetches jobs from its queues and runs them.

It has a consumer for each queue, one pool of slots, one executor, and a heartbeat in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any

from msgspec import structs

from evsched import keys
from evsched.errors import CannotStart
from evsched.events import Events, WorkerQuiet, WorkerStarted
from evsched.execution.deferral import RedisRunStore
from evsched.execution.executor import Executor
from evsched.execution.precautions import AppSource
from evsched.execution.program import Program
from evsched.runtime.loops import Pulse, Runtime, ended_loop, returned
from evsched.store.many_queues import read_all_queue_stats
from evsched.store.queue import Announced
from evsched.store.store import Store
from evsched.worker.consumer import QueueConsumer
from evsched.worker.drain import Drain
from evsched.worker.heartbeat import Control, Heartbeat
from evsched.worker.loop_watch import LoopWatch
from evsched.worker.notices import Notices
from evsched.worker.setup import QueueSetup
from evsched.worker.slots import Slots
from evsched.worker.status_reporter import StatusReporter


class Worker:
    """Runs the jobs of `queues` with the registered tasks.

    `source`: the app that the process of an isolated job imports. `before`: the announcements of the worker
    process before it, by queue.
    """

    def __init__(
        self,
        runtime: Runtime,
        program: Program,
        queues: list[str],
        *,
        source: AppSource | None = None,
        before: Mapping[str, Announced] | None = None,
    ) -> None:
        config = runtime.config
        self.id = keys.new_id()
        self._runtime = runtime
        self._program = program
        self._executor = Executor(
            program,
            config.concurrency,
            config.process_pool,
            RedisRunStore(runtime, self.id),
            source=source,
            kill_grace=config.kill_grace,
            unknown_task_grace=config.unknown_task_grace,
            emit=runtime.emit,
            worker=self.id,
        )
        self._slots = Slots(config.concurrency)
        self.consumers: dict[str, QueueConsumer] = {}
        self._setup = QueueSetup(runtime, program, self.id, before)
        self._status = StatusReporter(runtime, self.id, self.consumers)
        self._counted = structs.replace(runtime, emit=Events(self._status.on_event, runtime.emit).emit)
        """The runtime of the consumers, whose events are counted."""
        self._control = Control(runtime, self.id, self.consumers, self._status, self._obey)
        self._drain = Drain(runtime, self.id, self.consumers, self._executor.handlers.running)
        self._notices = Notices(runtime, len(queues))
        self._heartbeat = Heartbeat(runtime, self.id, self.consumers, self._setup, self._control, self._drain)
        self._watch = LoopWatch(runtime, self.id, self.consumers)
        self._quieting = set[asyncio.Future[None]]()
        """The ends of fetches, since the worker was asked to fetch no more."""
        self._add(queues)
        self._serving = dict[str, asyncio.Future[Any]]()
        """The loops of the consumers, by queue."""
        self._starting: asyncio.Timeout | None = None
        """The scope of the start, while it lasts."""
        self._end = asyncio.Event()
        """Set when the worker was asked to stop, or a loop has ended."""

    def _add(self, queues: list[str]) -> None:
        for queue in queues:
            self.consumers[queue] = QueueConsumer(
                self._counted,
                queue,
                self.id,
                self._executor,
                self._slots,
                self._heartbeat.attend,
                self._notices,
                self._watch.attend,
            )
            self._heartbeat.add(Store(queue))
            if self._quieting:
                self._go_quiet(queue)
        self._control.add(queues)

    def serve(self, queues: Iterable[str]) -> None:
        """Serve these queues too, from now on: shards that were not known at the start."""
        new = [queue for queue in queues if queue not in self.consumers]
        if not new or self._end.is_set():
            return
        self._add(new)
        if self._serving:  # else `_run` begins with them
            self._serving |= {queue: self._begin(self._serve(queue)) for queue in new}
        # Each shard has a part of its queue's limits, so the other shards get smaller parts.
        whole = self._runtime.shards.whole
        wholes = {whole(queue) for queue in new}
        for queue in [queue for queue in self.consumers if whole(queue) in wholes]:
            self._setup.declare_again(queue)

    async def run(self) -> None:
        """Run until `stop` was called and all runs have ended, or have had their grace.

        Raises:
            CannotStart: the app's lifespan did not begin.
        """
        if self._end.is_set():
            return
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self._executor)
            if await self._start(stack):
                await self._run()
            else:
                await self._drain.hand_back()  # the leases that have begun

    async def _start(self, stack: contextlib.AsyncExitStack) -> bool:
        """Enter the app's lifespan in `stack`, and set up at least one queue; return False if it was stopped meanwhile.

        Raises:
            CannotStart: the lifespan did not begin.
        """
        try:
            async with asyncio.timeout(None) as self._starting:
                try:
                    self._executor.handlers.state = await stack.enter_async_context(self._program.lifespan())
                # Whatever a user's lifespan raises is the user's mistake, and is reported in one line.
                except (Exception, asyncio.CancelledError) as error:
                    starting = asyncio.current_task()
                    if isinstance(error, asyncio.CancelledError) and starting is not None and starting.cancelling():
                        raise  # by `stop`
                    why = f"the app's lifespan did not begin: {type(error).__name__}: {error}"
                    raise CannotStart(why) from None
                await self._setup.until_one(list(self.consumers))
        except TimeoutError:  # by `stop`
            return False
        finally:
            self._starting = None
        slots, tasks = self._runtime.config.concurrency, sorted(self._program.tasks)
        self._runtime.emit(WorkerStarted(worker=self.id, queues=list(self.consumers), slots=slots, tasks=tasks))
        return True

    def _begin(self, loop: Awaitable[None]) -> asyncio.Future[None]:
        """Begin a loop, whose end ends the worker."""
        begun = asyncio.ensure_future(loop)
        begun.add_done_callback(lambda _: self._end.set())
        return begun

    async def _run(self) -> None:
        self._heartbeat.start()
        self._watch.start()
        self._serving = {queue: self._begin(self._serve(queue)) for queue in self.consumers}
        heartbeat = self._begin(self._heartbeat.failure)
        loops = {
            "control": self._begin(self._control.run()),
            "notices": self._begin(self._notices.run()),
            "setup of queues": self._begin(self._setup.keep()),
        }
        try:
            await self._end.wait()
            named = {"heartbeat": heartbeat, **loops} | {f"queue {queue}": one for queue, one in self._serving.items()}
            # A loop ends by itself only by an error of ours, except for a consumer that fetches no more.
            fetches = not any(consumer.demand.closed for consumer in self.consumers.values())
            for name, loop in named.items():
                if loop.done() and (fetches or not returned(loop)):
                    raise ended_loop(name, loop)
            await self._drain.wait([loop for queue, loop in self._serving.items() if self._setup.is_done(queue)])
            self._drain.handing_back = True
            await self._end_threads()
            await self._drain.hand_back()
            await self._drain.clean_up()
        finally:
            await self._end_threads()
            self._status.close()
            tasks = *loops.values(), *self._serving.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._notices.sender.close()

    async def _serve(self, queue: str) -> None:
        await self._setup.until_done(queue)
        await self.consumers[queue].run()

    async def _end_threads(self) -> None:
        # They call into this loop, and the heartbeat would renew the lease that hand_back ends. Each of their calls has
        # a timeout, so they do end.
        for thread in (self._heartbeat, self._watch):
            thread.stop()
            if thread.is_alive():
                await asyncio.to_thread(thread.join)

    @property
    def lingering(self) -> bool:
        """Whether handlers still run that were given up: plain functions, whose threads cannot be ended."""
        return len(self._executor.handlers.running) > 0

    @property
    def pulses(self) -> list[Pulse]:
        """The pulses of its loops, and of its heartbeat."""
        consumers = (pulse for consumer in self.consumers.values() for pulse in consumer.pulses)
        return [self._heartbeat.pulse, *self._notices.pulses, *consumers]

    def problem(self) -> str | None:
        """Return why none of its queues is served; None = one is, or none has been tried."""
        reasons = [consumer.problem() or self._setup.problem(queue) for queue, consumer in self.consumers.items()]
        return reasons[0] if all(reasons) else None

    def busy(self) -> bool:
        """Return whether it holds jobs. For any thread."""
        return self._heartbeat.busy()

    def announced(self, queue: str) -> Announced:
        """Return the description of its app that it has written to Redis. For any thread."""
        return self._setup.announced(queue)

    def stop(self) -> None:
        """Fetch no more, let runs end within the grace, hand back the rest. For the event loop's thread."""
        if self._starting is not None and not self._end.is_set():
            self._starting.reschedule(0.0)
        self._end.set()

    def _obey(self, order: str) -> None:
        """Do what an operator asks for: fetch no more and stay, or end as by SIGTERM."""
        if order == keys.STOP:
            os.kill(os.getpid(), signal.SIGTERM)
        elif not self._quieting and not self._end.is_set():
            for queue in list(self.consumers):
                self._go_quiet(queue)
            self._runtime.emit(WorkerQuiet(worker=self.id, running=len(self._executor.handlers.running)))

    def _go_quiet(self, queue: str) -> None:
        self._quieting.add(asyncio.ensure_future(self.consumers[queue].go_quiet()))

    def fetch_no_more(self) -> None:
        """Begin no other fetch. For any thread, before `stop`."""
        for consumer in list(self.consumers.values()):
            consumer.fetch_no_more()

    def rescue(self) -> bool:
        """Hand back all held jobs and return True, or False if the event loop does so, or could. For any thread."""
        if not self._drain.is_needed():
            return False
        self._heartbeat.stop()
        if self._heartbeat.is_alive():
            # It would renew the leases that end here.
            self._heartbeat.join(2 * self._runtime.times.reply_timeout)
        self._drain.rescue()
        return True

    async def idle(self) -> bool:
        """Return whether nothing runs here, nothing is due that could start, and no dead worker holds jobs. Looks once.

        A worker that has not started, so has declared nothing yet, is not idle. Jobs that other live workers hold do
        not count.

        Raises:
            StoreDown, StoreRefused
        """
        if not self._serving or self.busy():
            return False
        for store in list(map(Store, self.consumers)):
            # The leases first: a job that the janitor requeues after this read is in ready by the next. And again
            # last: Redis may have moved a job to this worker's list, and the reply is still on its way.
            calls = [store.survey(), store.queue_stats(), store.survey()]
            before, stats, after = await self._runtime.sender.send_all(calls)
            if any(lease.held and lease.left <= 0 for lease in before.leases):
                return False
            if any(lease.held for lease in after.leases if lease.worker == self.id):
                return False
            waits = 0 if stats.paused is not None else stats.places["backlog"]
            if waits:
                held = [hold.address for hold in await self._runtime.sender.send(store.held_batches()) if hold.held]
                waits -= sum(await self._runtime.sender.send_all([store.jobs_held(batch) for batch in held]))
            if stats.due or stats.places["ready"] or waits > 0:
                return False
        return True

    async def jobs_wait(self) -> bool:
        """Look once: jobs are ready that no worker has fetched.

        Raises:
            StoreDown, StoreRefused
        """
        sender = self._runtime.sender
        found = await read_all_queue_stats(sender.send, sender.node_of, [*self.consumers])
        return any(stats.places["ready"] for stats in found)
