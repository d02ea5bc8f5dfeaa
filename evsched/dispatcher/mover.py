"""The mover: finishes moves of jobs between shards that nobody goes on with.

`evsched queues shard` moves jobs in batches. If it is interrupted, a batch is on its way until the command is repeated.
The janitor notices that, and this loop finishes it: apart from the janitor, because the other shard may be on a node of
the cluster that is away, for which the leases of workers must not wait.
"""

from __future__ import annotations

from typing import Final

from evsched import events
from evsched.errors import StoreError
from evsched.runtime.reconnect import Reconnects
from evsched.runtime.runtime import Runtime
from evsched.runtime.wakeup import Wakeup
from evsched.store.store import Store

ABANDONED: Final = 60.0
"""Seconds after which nobody goes on with a batch: it takes a few milliseconds, or 5 s if Redis is away meanwhile."""


class Mover:
    """Finishes the batches that leave the queues that it is told of."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._queues = dict[str, None]()
        self._wakeup = Wakeup()
        self._failed = Reconnects("mover", runtime.emit)

    def finish(self, queue: str) -> None:
        """Finish the batch that leaves a queue, soon."""
        self._queues[queue] = None
        self._wakeup.ring()

    async def run(self) -> None:
        """Finish batches until cancelled. What fails is tried again when the janitor meets it the next time."""
        while True:
            while self._queues:
                queue = next(iter(self._queues))
                del self._queues[queue]
                try:
                    await self.step(queue)
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
        arrival = await send(Store(batch.to).arrive(queue, batch))
        done = await send(store.vacate(batch, arrival))
        if done.moved or done.back:
            self._runtime.emit(events.MoveFinished(queue=queue, to=batch.to, moved=done.moved, back=done.back))
