"""How a worker keeps its leases, and how it hears of cancelled jobs and status requests.

`Heartbeat` renews the leases, from a thread and a connection of its own. So a handler that blocks the event loop costs
no lease: the other jobs keep theirs, and nothing starts twice. A process whose loop is blocked by a job past its
timeout and kill grace is ended from there.

`Control` subscribes to the worker's control channels, which bring cancellations, orders and status requests. The
subscription costs nothing while it is silent, so it is not health-checked; heartbeats are the fallback. They report
cancellations too, later. When a heartbeat brings one that was not received here, the connection is dead and is rebuilt.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from evsched import events, keys, process_events
from evsched.errors import StoreDown, StoreError, StoreRefused
from evsched.events import Event
from evsched.runtime.loops import Pulse, Runtime
from evsched.runtime.reconnect import Losses, Reconnect, Reconnects
from evsched.store.store import Store
from evsched.store.worker_calls import Renewed
from evsched.transport.redis_errors import reconnect_delay
from evsched.transport.senders import SyncSender
from evsched.transport.subscription import Subscription
from evsched.worker.consumer import QueueConsumer
from evsched.worker.drain import Drain
from evsched.worker.fetcher import since_boot
from evsched.worker.setup import QueueSetup
from evsched.worker.status_reporter import StatusReporter


class Control:
    """Subscribes to the control channels of one worker."""

    def __init__(
        self,
        runtime: Runtime,
        worker: str,
        consumers: Mapping[str, QueueConsumer],
        status: StatusReporter,
        obey: Callable[[str], None],
    ) -> None:
        self._runtime = runtime
        self._worker = worker
        self._consumers = consumers
        self._status = status
        self._obey = obey
        """Called with `QUIET` or `STOP`."""
        self._receivers = dict[bytes, Callable[[str], object]]()
        """By channel."""
        self._reconnect = Reconnect("worker, control channel", runtime.emit)
        self._losses = Losses()
        self._subscription: Subscription | None = None

    def add(self, queues: Iterable[str]) -> None:
        """Receive the messages of more queues."""
        for queue in queues:
            self._receivers[keys.control(queue, self._worker).encode()] = partial(self._on_control, queue)
            self._receivers[keys.status_requests(queue).encode()] = partial(self._status.requested, queue)
        self.rebuild()

    def _on_control(self, queue: str, message: str) -> None:
        if message in (keys.QUIET, keys.STOP):
            self._obey(message)
        else:
            self._consumers[queue].held.cancel(message)

    async def run(self) -> None:
        """Receive until cancelled."""
        while True:
            self._subscription = Subscription(self._runtime.config.url)
            try:
                async with self._reconnect:
                    await self._subscription.open([], [channel.decode() for channel in self._receivers])
                if not self._reconnect.failures:
                    await self._receive(self._subscription)
            finally:
                await self._subscription.close()

    async def _receive(self, subscription: Subscription) -> None:
        """Receive until the connection is lost. If Redis is down, the next connection reports it."""
        self._losses.opened()
        self._runtime.emit(events.ControlOpened())
        try:
            async for channel, message in subscription.messages():
                self._receivers[channel](message.decode(errors="replace"))
        except StoreError as error:
            self._runtime.emit(process_events.RedisFailed(kind=error.kind))
            await asyncio.sleep(self._losses.wait())

    def rebuild(self) -> None:
        """Replace the connection: it did not bring a message that it should have."""
        if self._subscription is not None:
            self._subscription.cut()


class Heartbeat(threading.Thread):
    """Renews the leases while the worker lives. A lease that Redis refuses to renew costs no other queue its lease.

    Its findings are acted on in the event loop. It reads the worker's state, and ends a process that is stuck, in its
    own thread, because a handler may block the event loop.
    """

    def __init__(
        self,
        runtime: Runtime,
        worker: str,
        consumers: Mapping[str, QueueConsumer],
        setup: QueueSetup,
        control: Control,
        drain: Drain,
    ) -> None:
        super().__init__(name="evsched-heartbeat", daemon=True)
        self._times = times = runtime.times
        self._worker = worker
        self._consumers = consumers
        self._setup = setup
        self._control = control
        self._drain = drain
        self._call_in_loop = call_in_loop = asyncio.get_running_loop().call_soon_threadsafe
        self._stores = list[Store]()
        """In the order in which their leases are renewed."""
        self._sender = SyncSender(runtime.config.url, reply_timeout=times.reply_timeout)

        def emit(event: Event) -> None:
            call_in_loop(runtime.emit, event)

        self._reconnects = Reconnects("heartbeat", emit)
        self.pulse = Pulse("heartbeat")
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set to the error by which the thread has ended."""
        self._wake = threading.Event()
        times.listen(self._wake.set)
        self._renewed_every = times.heartbeat, times.idle_heartbeat
        """The intervals, for the short leases and for the long ones, that fit the leases which were set last."""
        self._stopping = False
        self._soon = False
        """The next heartbeat is due soon: since the last one the worker received jobs, or a lease was not renewed."""
        self._short = False
        """The leases that were set last are the short ones, and have to be renewed soon."""

    def add(self, store: Store) -> None:
        """Renew the lease of one more queue, from the next heartbeat on. For any thread."""
        self._stores.append(store)

    def busy(self) -> bool:
        """Return whether the worker holds jobs. For any thread."""
        return any(consumer.held.busy for consumer in list(self._consumers.values()))

    def attend(self) -> None:
        """Send the next heartbeat soon: the worker holds jobs from now on, or Redis has lost its lease.

        The start has made its lease the short one, and only a heartbeat makes it long again.
        """
        self._soon = True
        self._wake.set()

    def stop(self) -> None:
        """End the thread soon; its leases run on."""
        self._stopping = True
        self._wake.set()

    def run(self) -> None:
        """Renew the leases until stopped."""
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - a thread that ends in silence leaves a worker without a lease
            self._call_in_loop(self.failure.set_exception, error)
        finally:
            self.pulse.rest()
            self._sender.close()

    def _run(self) -> None:
        failures = 0
        last = time.monotonic()
        while not self._stopping:
            rest = last + self._interval() - time.monotonic()
            self.pulse.expect(max(0.0, rest))
            if rest > 0 and self._wake.wait(rest):
                self._wake.clear()
                continue
            if self._stopping:
                break
            self._soon, self._short = False, self.busy()
            every = self._times.heartbeat, self._times.idle_heartbeat
            try:
                self._renew_all()
                failures, self._renewed_every = 0, every
                last = time.monotonic()
            except StoreDown:
                # Not reported: the worker's own loop says that Redis is down.
                self._soon = True  # a lease may still be the short one of a job that has ended
                failures += 1
                if not self._stopping:
                    self._wake.wait(reconnect_delay(failures))
            self._drain.end_if_stuck(self._sender)

    def _renew_all(self) -> None:
        """Renew the lease of each queue, whatever Redis refuses of another.

        Raises:
            StoreDown: the queue that failed comes last the next time, since its node of a cluster may be down alone.
        """
        for store in list(self._stores):
            reconnect = self._reconnects.of(store.queue)
            try:
                self.step(store)
            except StoreRefused as error:
                self._soon = True
                reconnect.failed(error)
            except StoreDown:
                self._stores.remove(store)
                self._stores.append(store)
                raise
            else:
                reconnect.passed()

    def step(self, store: Store) -> None:
        """Renew one lease.

        Raises:
            StoreDown, StoreRefused
        """
        busy = self._times.lease
        lease = busy if self._short else self._times.idle_lease
        announced = self._setup.announced(store.queue)
        sent = since_boot()
        found = self._sender.send(store.heartbeat(self._worker, lease, busy=busy, announced=announced))
        self._short = self._short or found.held > 0  # a job is on its way to the worker, so Redis has set the short one
        self._call_in_loop(self._found, store.queue, found, sent)
        if not found.kept:
            self._sender.send(store.heartbeat(self._worker, lease, busy=busy, fresh=True))

    def _found(self, queue: str, found: Renewed, sent: float) -> None:
        """Act on the reply to a call that was sent then, in seconds since boot. For the event loop."""
        consumer = self._consumers[queue]
        if not found.kept:
            consumer.lose()
        if not found.declared:
            self._setup.declare_again(queue)
        consumer.counted(found, sent)
        if [job_id for job_id in found.stops if consumer.held.cancel(job_id)]:
            self._control.rebuild()  # it should have brought these before

    def _interval(self) -> float:
        short, long = self._renewed_every
        if self._soon or self._short:
            return min(short, self._times.heartbeat)
        return min(long, self._times.idle_heartbeat)
