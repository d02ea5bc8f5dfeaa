"""The mover: it finishes moves of jobs between shards that were interrupted.

`evsched queues shard` moves jobs in batches. If it is interrupted, a batch is on its way until the command is repeated.
The janitor notices that, and this loop finishes the batch. It is not the janitor's loop, because the other shard may be
on a node of the cluster that is down, and the leases of workers must not wait for that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from evsched import events, shard_map
from evsched.errors import StoreError, StoreRefused
from evsched.runtime.loops import Runtime, Wakeup
from evsched.runtime.reconnect import Reconnects
from evsched.store.gate_limits import still_reserved, undivided
from evsched.store.moves import Arrival, Batch
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

ABANDONED: Final = 60.0
"""Seconds after which a batch counts as interrupted: it takes a few milliseconds, or 5 s if Redis is down meanwhile."""


class Mover:
    """Finishes the batches that leave some queues, and opens new shards, as the janitor asks."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sender = BatchingSender(runtime.config.url)
        """Not shared, because a call that waits for a replica holds up all later ones."""
        self._queues = dict[tuple[str, Callable[[str], Awaitable[None]]], None]()
        """The queues with work to do, each with the method to call."""
        self._wakeup = Wakeup()
        self._failed = Reconnects("mover", runtime.emit)

    def finish(self, queue: str) -> None:
        """Finish the batch that leaves a queue, soon."""
        self._queues[queue, self.step] = None
        self._wakeup.ring()

    def open_further(self, queue: str) -> None:
        """Let a new shard, and the other new ones of its queue, use more of their limits, soon."""
        self._queues[self._runtime.shards.whole(queue), self.settle] = None
        self._wakeup.ring()

    async def run(self) -> None:
        """Finish batches until cancelled. After a failure, the janitor asks again."""
        while True:
            while self._queues:
                queue, do = next(iter(self._queues))
                del self._queues[queue, do]
                try:
                    await do(queue)
                except StoreError as error:
                    self._failed.of(queue).failed(error)
                else:
                    self._failed.of(queue).passed()
            await self._wakeup.sleep(float("inf"))

    async def step(self, queue: str) -> None:
        """Finish the batch that leaves a queue, if there is one.

        Raises:
            StoreDown, StoreRefused
        """
        store, send = Store(queue), self._runtime.sender.send
        batch = (await send(store.depart())).batch
        if batch is None:
            return
        try:
            arrival = await self._arrive(queue, batch)
        finally:
            await self._sender.close()
        done = await send(store.vacate(batch, arrival))
        if done.moved or done.back:
            self._runtime.emit(events.MoveFinished(queue=queue, to=batch.to, moved=done.moved, back=done.back))

    async def settle(self, queue: str) -> None:
        """Let new shards of a queue use what its older parts do not use, as `evsched/client/new_shards.py` does.

        Nothing happens before the number of shards is written: until then, the older parts have all of the limits.

        Raises:
            StoreDown, StoreRefused
        """
        shards, send_all = self._runtime.shards, self._runtime.sender.send_all
        if shards.may_lack(queue):
            await shard_map.learn(self._runtime)
        if (whole := shards.whole(queue)) not in shards.counts:
            return
        stores = [Store(name) for name in shards.all_of(whole)]
        limits = await send_all([store.limits() for store in stores])
        counts = await send_all([store.in_flight() for store in stores])  # by now no part exceeds these limits further
        by_name = {store.queue: found for store, found in zip(stores, limits, strict=True)}
        lacking = undivided(shards, whole, by_name)
        await send_all([Store(name).limit(fields) for name, fields in lacking.items()])
        if not lacking:
            parts = {name: (found, count) for (name, found), count in zip(by_name.items(), counts, strict=True)}
            await send_all([Store(name).reserve(reserved) for name, reserved in still_reserved(parts).items()])

    async def _arrive(self, queue: str, batch: Batch) -> Arrival:
        """Have a batch arrive, and return when that is safe, as `evsched/client/reshard.py` does."""
        to, sender = Store(batch.to), self._sender
        arrive = to.arrive(queue, batch)
        try:
            primary = await sender.send(to.primary())
        except StoreRefused as error:
            if error.kind == "noperm":
                raise
            return await sender.send(arrive)
        wait = primary.safe(batch.to, queue, on_disk=True)
        if wait is None:
            return await sender.send(arrive)
        arrival, safe = await sender.send_and_wait(arrive, wait)
        primary.check_safe(batch.to, safe)
        return arrival
