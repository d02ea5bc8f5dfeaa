"""The worker: a process that takes jobs from its queues and runs them.

It has a consumer for each queue, one pool of slots, one executor, and a heartbeat in a thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import socket
from itertools import compress
from typing import Any, Final

from msgspec import structs

from evsched import events, forks
from evsched.errors import CannotStart, StoreError, StoreRefused
from evsched.events import Events
from evsched.runtime.loops import ended_loop, returned
from evsched.runtime.pulse import Pulse
from evsched.runtime.runtime import Runtime
from evsched.runtime.shutdown import FORCED
from evsched.store.store import Store
from evsched.transport.senders import SyncSender
from evsched.worker.consumer import QueueConsumer
from evsched.worker.control import Control
from evsched.worker.executor import Executor
from evsched.worker.heartbeat import Heartbeat
from evsched.worker.isolation import RunIsolated
from evsched.worker.opening import Opening
from evsched.worker.program import Program
from evsched.worker.run import Run
from evsched.worker.run_store import RedisRunStore
from evsched.worker.slots import Slots
from evsched.worker.status_reporter import StatusReporter

_PUT_BACK: Final = 5.0
"""Seconds in which what runs past the grace is handed back; some answers of Redis are enough."""


def new_id() -> str:
    """Return an id for a worker: where it runs, for people; random, since hosts and containers share names and pids."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:60]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


class Worker:
    """Runs the jobs of `queues` with the registered tasks. `run_isolated` runs one in a process of its own."""

    def __init__(
        self,
        runtime: Runtime,
        program: Program,
        queues: list[str],
        *,
        run_isolated: RunIsolated | None = None,
    ) -> None:
        self.id = new_id()
        self._config, self._sender, self._emit = runtime.config, runtime.sender, runtime.emit
        config, sender, emit = runtime.config, runtime.sender, runtime.emit
        self._program = program
        self._executor = Executor(
            program,
            config.concurrency,
            config.process_pool,
            RedisRunStore(runtime, self.id),
            run_isolated=run_isolated,
            kill_grace=config.kill_grace,
            emit=emit,
        )
        slots = Slots(config.concurrency)
        self._opening = Opening(runtime, program, self.id)
        self._stop = asyncio.Event()
        self._starting: asyncio.Task[Any] | None = None
        """The task of `run`, until the worker has started: it can be cancelled."""
        self._came_round = False
        """The event loop has come to hand back what did not end within the grace."""
        self._heartbeat = Heartbeat(
            config,
            self.id,
            [Store(queue) for queue in queues],
            emit=self._tell,
            busy=self.busy,
            lost=self._lost,
            counted=self._counted,
            stops=self._stops,
            watch=self._watch,
            ended=self._ended,
        )
        self._status_reporter = StatusReporter(
            self.id, config.concurrency, queues, sender, lambda queue: self.consumers[queue].held.values()
        )
        told = Events(self._status_reporter.on_event, emit).emit
        shared = structs.replace(runtime, emit=told)
        self.consumers = {
            queue: QueueConsumer(shared, queue, self.id, self._executor, slots, self._heartbeat.attend)
            for queue in queues
        }
        self._fetches_no_more = False
        self._heartbeat_ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._control = Control(config, self.id, queues, emit, self._abort, self._status_reporter.requested)
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Run until `stop` was called and what ran has ended, or has had its grace.

        Raises:
            CannotStart: the app's lifespan did not begin.
        """
        async with contextlib.AsyncExitStack() as stack:
            if await self._start(stack):
                await self._run()

    async def _start(self, stack: contextlib.AsyncExitStack) -> bool:
        """Begin the lifespan and the leases, waiting for Redis; return whether that was not stopped."""
        task = self._starting = asyncio.current_task()
        try:
            if self._stop.is_set():
                return False
            try:
                self._executor.handlers.state = await stack.enter_async_context(self._program.lifespan())
            # Whatever a user's lifespan does before anything runs is the user's mistake, told in one line.
            except Exception as error:  # noqa: BLE001
                raise CannotStart(f"the app's lifespan did not begin: {type(error).__name__}: {error}") from None
            await self._opening.open_one([consumer.store for consumer in self.consumers.values()])
            return True
        except asyncio.CancelledError:
            if not self._stop.is_set() or (task is not None and task.uncancel()):
                raise
            await self._hand_back()  # the leases that have begun
            return False
        finally:
            self._starting = None

    async def _run(self) -> None:
        self._heartbeat.start()
        self._emit(
            events.WorkerStarted(
                worker=self.id,
                queues=list(self.consumers),
                slots=self._config.concurrency,
                tasks=sorted(self._program.tasks),
            )
        )
        running: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._serve(consumer)) for consumer in self.consumers.values()
        ]
        control = asyncio.ensure_future(self._control.run())
        stopping: asyncio.Future[Any] = asyncio.ensure_future(self._stop.wait())
        try:
            loops = {"heartbeat": self._heartbeat_ended, "control": control}
            loops |= {f"queue {queue}": loop for queue, loop in zip(self.consumers, running, strict=True)}
            await asyncio.wait([stopping, *loops.values()], return_when=asyncio.FIRST_COMPLETED)
            # A loop ends by itself only by an error of ours, but for a consumer that fetches no more.
            for name, loop in loops.items():
                if loop.done() and not (self._fetches_no_more and returned(loop)):
                    raise ended_loop(name, loop)
            await self._drain(running)
        finally:
            await self._end_heartbeat()
            self._status_reporter.close()
            for loop in (stopping, control, *running):
                loop.cancel()
            await asyncio.gather(stopping, control, *running, return_exceptions=True)

    async def _serve(self, consumer: QueueConsumer) -> None:
        await self._opening.open_one([consumer.store])
        await consumer.run()

    @property
    def lingering(self) -> bool:
        """Handlers go on that were given up: plain functions, whose threads cannot be ended."""
        return len(self._executor.handlers.running) > 0

    @property
    def pulses(self) -> list[Pulse]:
        """The pulses of its loops, and of its heartbeat."""
        return [self._heartbeat.pulse, *(pulse for consumer in self.consumers.values() for pulse in consumer.pulses)]

    def wrong(self) -> str | None:
        """Return why none of its queues is served; None = one is, or none has been tried."""
        reasons = [consumer.wrong() or self._opening.wrong(consumer.store) for consumer in self.consumers.values()]
        return reasons[0] if all(reasons) else None

    def busy(self) -> bool:
        """Tell whether it holds jobs. For any thread."""
        return any(consumer.busy for consumer in list(self.consumers.values()))

    def stop(self) -> None:
        """Take no more, let what runs end within the grace, hand back the rest. For the event loop's thread."""
        self._stop.set()
        if self._starting is not None:
            self._starting.cancel()

    def fetch_no_more(self) -> None:
        """Begin no other take. For any thread, before `stop`."""
        self._fetches_no_more = True
        for consumer in list(self.consumers.values()):
            consumer.fetch_no_more()

    def rescue(self) -> bool:
        """Hand back what is held, if the event loop does not come round to it; return whether. For any thread."""
        if self._came_round:
            return False
        self._heartbeat.stop()
        if self._heartbeat.is_alive():
            self._heartbeat.join(2 * self._config.reply_timeout)  # it would begin anew the leases that end here
        sender = SyncSender(self._config.url, reply_timeout=self._config.reply_timeout)
        running = [run.job.id for run in self._executor.handlers.running]
        back = self._hand_back_by(sender, f"worker {self.id} was stopped, and a job blocked it")
        self._emit(events.WorkerBlocked(worker=self.id, running=running, handed_back=back))
        return True

    async def idle(self) -> bool:
        """Look once: nothing runs here, and nothing is due in the queues that could start.

        Raises:
            StoreDown, StoreRefused
        """
        if self.busy():
            return False
        for consumer in self.consumers.values():
            queue_stats = await self._sender.send(consumer.store.queue_stats())
            waits = 0 if queue_stats.paused is not None else queue_stats.places["backlog"]
            if queue_stats.due or queue_stats.places["ready"] or waits:
                return False
        return True

    async def jobs_wait(self) -> bool:
        """Look once: jobs are ready that nobody has taken.

        Raises:
            StoreDown, StoreRefused
        """
        calls = [consumer.store.queue_stats() for consumer in self.consumers.values()]
        return any(queue_stats.places["ready"] for queue_stats in await self._sender.send_all(calls))

    async def _drain(self, running: list[asyncio.Future[Any]]) -> None:
        held = sum(len(consumer.held) for consumer in self.consumers.values())
        self._emit(events.WorkerDraining(worker=self.id, running=held, shutdown_grace=self._config.shutdown_grace))
        opened = [self._opening.opened(consumer.store) for consumer in self.consumers.values()]
        quiet = [asyncio.ensure_future(consumer.stop_fetching()) for consumer in self.consumers.values()]
        await asyncio.wait([*quiet, *compress(running, opened)], timeout=self._config.shutdown_grace)
        for consumer in quiet:
            consumer.cancel()
        self._came_round = True
        await self._end_heartbeat()
        await self._hand_back()

    async def _hand_back(self) -> None:
        back = 0
        try:
            async with asyncio.timeout(_PUT_BACK):
                for consumer in self.consumers.values():
                    with contextlib.suppress(StoreRefused):  # the other queues have theirs back
                        back += await consumer.hand_back()
        except (StoreError, TimeoutError):
            # Redis is away: the janitor puts back what is left, when the lease ends.
            pass
        self._emit(events.WorkerStopped(worker=self.id, handed_back=back))

    def _abort(self, queue: str, job_id: str) -> None:
        self.consumers[queue].abort(job_id)

    async def _end_heartbeat(self) -> None:
        # Its thread calls into this loop, and would begin anew the lease that hand_back ends. Each of its calls has a
        # deadline, so it does end.
        self._heartbeat.stop()
        if self._heartbeat.is_alive():
            await asyncio.to_thread(self._heartbeat.join)

    # Called from the heartbeat's thread.

    def _tell(self, event: events.Event) -> None:
        self._loop.call_soon_threadsafe(self._emit, event)

    def _lost(self, queue: str) -> None:
        self._loop.call_soon_threadsafe(self.consumers[queue].lose)

    def _ended(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._heartbeat_ended.set_exception, error)

    def _counted(self, queue: str, count: int) -> None:
        self._loop.call_soon_threadsafe(self.consumers[queue].counted, count)

    def _stops(self, queue: str, ids: list[str]) -> None:
        self._loop.call_soon_threadsafe(self._told_late, queue, ids)

    def _told_late(self, queue: str, ids: list[str]) -> None:
        news = [job_id for job_id in ids if self.consumers[queue].abort(job_id)]
        if news:
            self._control.renew()

    def _watch(self, sender: SyncSender) -> None:
        stuck = self._executor.handlers.running.stuck(self._config.kill_grace)
        if stuck is None:
            return
        self._emit(
            events.WorkerStuck(
                worker=self.id, queue=stuck.delivery.queue, id=stuck.job.id, task=stuck.task, attempt=stuck.job.attempt
            )
        )
        reason = f"worker {self.id} ended: job {stuck.job.id} outlived its timeout and did not yield"
        self._hand_back_by(sender, reason, stuck)
        forks.end_children(0.5)
        os._exit(FORCED)

    def _hand_back_by(self, sender: SyncSender, reason: str, stuck: Run | None = None) -> int:
        back = 0
        # What is not handed back waits for the lease to end.
        with contextlib.suppress(StoreError):
            for consumer in list(self.consumers.values()):
                with contextlib.suppress(StoreRefused):
                    back += consumer.hand_back_by(sender, reason, stuck)
        return back
