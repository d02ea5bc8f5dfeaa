"""Notices: the messages that bring jobs to idle workers, or tell of ready ones. One connection for each server.

A worker that serves many queues, or shards, sends the exchanges of all on one connection too.

A connection that is silent for `probe_interval` seconds is tested, and whether Redis still knows that the worker waits:
after a FLUSHALL it does not. While a dispatcher is idle too, its canaries reach the workers that wait, so that they
test nothing. After a FLUSHALL, when a connection is back, and when the slot of a queue has moved to another node of a
cluster, the worker asks for jobs in each of the queues.

`ShardWindows` is for queues with shards too: their named windows are kept in the queue itself, and jobs wait for them
in the shards.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from evsched import keys, process_events
from evsched.errors import StoreError, StoreRefused
from evsched.execution.run import Run
from evsched.jobs.job import Deferred
from evsched.runtime.loops import Pulse, Runtime
from evsched.runtime.reconnect import Losses, Reconnect
from evsched.store.store import Store
from evsched.transport.address import Host
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import topology
from evsched.transport.subscription import Subscription
from evsched.worker.exchange import ServedQueue
from evsched.worker.fetcher import Fetcher

_FEW: Final = 8
"""Queues for which a worker has connections of their own, one for each. Opening hundreds of them takes a busy machine
many seconds after the loss of a server, with TLS above all."""


class _Link:
    """The subscription to one server, for the fetchers in `waits`, by channel."""

    def __init__(self, runtime: Runtime, node: Host | None, waits: Mapping[bytes, Fetcher]) -> None:
        self._runtime = runtime
        self._node = node
        self.waits = waits
        self.reconnect = Reconnect("worker, notices", runtime.emit)
        self._losses = Losses()
        self._heard = 0.0
        """When a message arrived last, by the monotonic clock."""
        self.task: asyncio.Future[Any] = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            subscription = Subscription(self._runtime.config.url, node=self._node)
            try:
                async with self.reconnect:
                    await subscription.open([], [], [channel.decode() for channel in self.waits])
                if not self.reconnect.failures:
                    await self._receive(subscription)
            finally:
                for wait in self.waits.values():
                    wait.closed(self.reconnect.reason or "the subscription was lost")
                await subscription.close()

    async def _receive(self, subscription: Subscription) -> None:
        """Receive until the connection is lost. If Redis is down, the next connection reports it."""
        self._losses.opened()
        self._heard = time.monotonic()
        for wait in self.waits.values():
            wait.opened()
        probe = asyncio.ensure_future(self._probe(subscription))
        try:
            async for channel, message in subscription.messages():
                self._heard = time.monotonic()
                if message != keys.CANARY:
                    await self.waits[channel].on_notice(message)
        except StoreError as error:
            self._runtime.emit(process_events.RedisFailed(kind=error.kind))
        finally:
            probe.cancel()
        await asyncio.sleep(self._losses.wait())

    async def _probe(self, subscription: Subscription) -> None:
        """Test a connection that is silent, and close it if it is dead."""
        times = self._runtime.times
        while True:
            await asyncio.sleep(self._heard + times.probe_interval - time.monotonic())
            if time.monotonic() - self._heard < times.probe_interval:
                continue
            answered = asyncio.Event()
            subscription.ping(answered.set)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(times.reply_timeout):
                    await answered.wait()
            if not answered.is_set():
                subscription.cut()
                return
            self._heard = time.monotonic()
            with contextlib.suppress(StoreError):  # the consumers report it
                await self._find_loss()

    async def _find_loss(self) -> None:
        """Ask for jobs in all queues if Redis has lost a waiting worker, as after a FLUSHALL."""
        waiting = [wait for wait in self.waits.values() if wait.waiting]
        if waiting and not await waiting[0].is_kept() and waiting[0].waiting:
            for wait in waiting:
                wait.missed()


class Notices:
    """The connections that a worker has once: for messages, and for the exchanges of the queues that share it.

    Each queue shares the latter if the worker has many `queues`, and a queue with shards always.
    """

    def __init__(self, runtime: Runtime, queues: int) -> None:
        self._runtime = runtime
        self._many = queues > _FEW
        self.sender = BatchingSender(runtime.config.url)
        """Sends the exchanges, so that exchanges of one moment travel together."""
        self._waits: dict[str, Fetcher] = {}
        """By queue."""
        self._cluster = topology(runtime.config.url)
        self._links: dict[Host | None, _Link] = {}
        self._reconnect = Reconnect("worker, notices", runtime.emit)
        self._changed = asyncio.Event()
        """The topology may have changed, or a subscription has ended."""

    def join(self, wait: Fetcher) -> Fetcher:
        """Add the wait for the jobs of a queue; return it."""
        self._waits[wait.queue] = wait
        self._changed.set()
        return wait

    def share(self, queue: str) -> bool:
        """Return whether a queue sends its exchanges with those of others."""
        shards = self._runtime.shards
        return self._many or shards.counts.get(shards.whole(queue), 0) > 0

    @property
    def pulses(self) -> list[Pulse]:
        return [self._reconnect.pulse, *(link.reconnect.pulse for link in self._links.values())]

    async def run(self) -> None:
        """Receive until cancelled, from the servers that have the queues.

        Raises:
            Exception: that a subscription has ended with; a fault of evsched.
        """
        loop = asyncio.get_running_loop()

        def ring() -> None:
            loop.call_soon_threadsafe(self._changed.set)

        end = (lambda: None) if self._cluster is None else self._cluster.listen(ring)
        try:
            while True:
                self._changed.clear()
                async with self._reconnect:
                    await self._adapt()
                if not self._reconnect.failures:
                    await self._changed.wait()
                for link in self._links.values():
                    if link.task.done():
                        link.task.result()
        finally:
            end()
            await self._stop(list(self._links))

    async def _adapt(self) -> None:
        """Subscribe at each server to the channels of its queues, as the slots of a cluster are now.

        Raises:
            StoreDown, StoreRefused: the servers cannot be found, or nobody owns the slot of a queue.
        """
        await self._runtime.sender.nodes()
        wanted = defaultdict[Host | None, dict[bytes, Fetcher]](dict)
        failed: StoreError | None = None
        for wait in self._waits.values():
            try:
                node = await self._runtime.sender.node_of(wait.channel)
            except StoreError as error:
                failed = error
            else:
                wanted[node][wait.channel.encode()] = wait
        changed = [node for node, link in self._links.items() if wanted.get(node) != link.waits]
        for link in [self._links[node] for node in changed]:
            if link.reconnect.failures:
                link.reconnect.passed()  # other nodes have its queues now: this one is not waited for any more
        await self._stop(changed)
        for node, waits in wanted.items():
            if node not in self._links:
                link = self._links[node] = _Link(self._runtime, node, waits)
                link.task.add_done_callback(lambda _: self._changed.set())
        if failed is not None:
            raise failed

    async def _stop(self, nodes: list[Host | None]) -> None:
        links = [self._links.pop(node) for node in nodes]
        for link in links:
            link.task.cancel()
        await asyncio.gather(*(link.task for link in links), return_exceptions=True)


_LAST: Final = 1.0
"""Seconds for the last comparison when the worker stops."""


class ShardWindows:
    """Compares the windows by which a worker has deferred jobs. Does nothing if the queue is not a shard.

    A program that changes a window first writes it, and then reopens the jobs that wait for it, in each shard. A job
    that is deferred by the old window after its shard was reopened would wait too long. So after each deferral the
    window is read once more, and the shard is reopened if the window has changed.
    """

    def __init__(self, served: ServedQueue) -> None:
        self._served = served
        whole = served.runtime.shards.whole(served.queue)
        self._keeper = None if whole == served.queue else Store(whole)
        self._used = set[tuple[str, str]]()
        """Name and text of the windows that are to be compared."""
        self._comparing: asyncio.Future[None] | None = None
        self._reconnect = Reconnect("worker, windows", served.runtime.emit, served.queue)

    def note(self, ended: Iterable[Run]) -> None:
        """Note the windows of runs whose ends are written, and compare them: apart, since their node may hang."""
        if self._keeper is None:
            return
        outcomes = (run.outcome for run in ended)
        self._used.update((one.window, one.text) for one in outcomes if isinstance(one, Deferred) and one.elsewhere)
        if self._used and (self._comparing is None or self._comparing.done()):
            if self._comparing is not None:
                self._comparing.result()  # a fault of evsched ends the worker
            self._comparing = asyncio.ensure_future(self._compare_all(self._keeper))

    async def close(self) -> None:
        """Compare the other windows, within a second."""
        if self._comparing is not None:
            await asyncio.wait([self._comparing], timeout=_LAST)
            self._comparing.cancel()

    async def _compare_all(self, keeper: Store) -> None:
        while self._used:
            async with self._reconnect:
                await self._compare(keeper, next(iter(self._used)))

    async def _compare(self, keeper: Store, used: tuple[str, str]) -> None:
        """Reopen the jobs of a window if it has changed since it was read.

        Raises:
            StoreDown
        """
        name, text = used
        with contextlib.suppress(StoreRefused):  # a key of the wrong type, which the next run of such a job reports
            if await self._served.runtime.sender.send(keeper.window(name)) != text:
                await self._reopen(name)
        self._used.discard(used)

    async def _reopen(self, name: str) -> None:
        left = 1
        while left:
            _, left = await self._served.runtime.sender.send(self._served.store.reopen(name))
