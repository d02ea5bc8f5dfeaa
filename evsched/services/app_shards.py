"""The shards of a worker's queues: it writes the numbers that its app declares to Redis, and serves the shards there.

The node that has the numbers may not answer when the worker starts. Then the worker serves the shards that it knows,
and reads and writes the numbers as soon as that node answers. Later it reads them seldom: a number changes by a deploy,
or by a command that says which workers to restart.
"""

from __future__ import annotations

import asyncio

from msgspec import structs

from evsched import shard_map
from evsched.app import App
from evsched.client import new_shards
from evsched.errors import CannotStart, ConfigError, StoreError
from evsched.process_events import RedisFailed
from evsched.runtime.loops import Runtime
from evsched.shards import Shards
from evsched.store import server
from evsched.worker.worker import Worker


class AppShards:
    """Keeps the shards of one worker's queues."""

    def __init__(self, runtime: Runtime, app: App) -> None:
        self._runtime = runtime
        self._app = app
        self._undeclared = dict(app.shards.counts)
        """How many shards queues are to have by the app, until Redis has at least as many."""

    async def declare(self) -> None:
        """Write how many shards the app declares, where that is more. `keep` writes the rest later.

        The pause and the limits of the queue hold for the new ones.

        Raises:
            CannotStart: a limit is too small to be divided among that many.
        """
        self._check_limits()
        for queue, count in list(self._undeclared.items()):
            try:
                await self._declare(queue, count)
            except ConfigError as error:
                raise CannotStart(str(error)) from None
            except StoreError as error:
                # The node does not answer, memory is full, or a right is missing: the shards are served all the same.
                self._runtime.shards.grow({queue: count})
                self._runtime.emit(RedisFailed(kind=error.kind))
                if not server.set_may_wait(error):
                    del self._undeclared[queue]
            else:
                del self._undeclared[queue]

    async def _declare(self, queue: str, count: int) -> None:
        client = self._app.client
        was = (await self._runtime.sender.send(server.shards())).get(queue, 0)
        if was < count:
            await client.run(new_shards.settle(queue, was))
            gates = await client.run(new_shards.plan(queue, was, count, self._app.program.owner))
            await client.run(new_shards.open_new(gates))
            if await self._runtime.sender.send(server.declare_shards(queue, count)):
                await client.run(new_shards.divide_again(gates))
                await client.run(new_shards.settle(queue, count))
        self._runtime.shards.grow({queue: count})

    def _check_limits(self) -> None:
        """Refuse limits of the code that cannot be divided among the shards, before these are written.

        Raises:
            CannotStart
        """
        shards = Shards(self._runtime.shards.counts)
        shards.grow(self._app.shards.counts)
        program = structs.replace(self._app.program, shards=shards)
        try:
            for queue in self._runtime.config.queues or self._app.queues:
                for name in shards.all_of(queue):
                    program.limits_in(name)
        except ConfigError as error:
            raise CannotStart(str(error)) from None

    async def keep(self, worker: Worker, *, learned: bool) -> None:
        """Have the worker serve shards that are learned of while it runs, until cancelled. Raises as `declare`.

        `learned`: the numbers could be read at the start.
        """
        while True:
            known = learned and not self._undeclared
            await asyncio.sleep(shard_map.until_next_read(self._runtime, known=known))
            learned = await shard_map.learn(self._runtime)
            await self.declare()
            worker.serve(shard_map.spread(self._runtime, self._runtime.config.queues or self._app.queues).queues)
