"""The setup of a worker's queues: what is written to Redis for each before jobs are fetched from it.

The queue is added to the set of all queues, the recurrences and limits that the app declares are written, and the
worker's lease begins. If that fails for a queue, because Redis refuses it or its node of a cluster is down, it is tried
again while the others are served. The set may be on another node, so a queue is served without it. While Redis's memory
is full it refuses none of this but the set, and a worker starts without that: its jobs free memory. If a heartbeat
finds that Redis has lost what was declared, it is written again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from evsched import events
from evsched.errors import StoreError
from evsched.execution.program import Program
from evsched.jobs.retry import write_policy
from evsched.runtime.reconnect import Reconnects
from evsched.runtime.runtime import Runtime
from evsched.store import server
from evsched.store.queue import Announced
from evsched.store.store import Store
from evsched.transport.call import Call
from evsched.worker.declarations import Declarations

_SELDOM: Final = 10
"""Safety caps between two writes of the set of all queues: an idle worker sends few commands."""


class QueueSetup:
    """Sets up queues for one worker, and waits while Redis is down."""

    def __init__(
        self, runtime: Runtime, program: Program, worker: str, before: Mapping[str, Announced] | None = None
    ) -> None:
        self._runtime = runtime
        self._declarations = Declarations(runtime, program, before)
        self._worker = worker
        self._policies = {name: write_policy(task.retry) for name, task in program.tasks.items()}
        self._digest = program.digest
        self._reconnects = Reconnects("worker", runtime.emit)
        self._done = set[str]()
        self._undeclared = set[str]()
        """The queues of which Redis has lost what was declared."""
        self._lost = asyncio.Event()

    def is_done(self, store: Store) -> bool:
        """Return whether jobs may be fetched from a queue."""
        return store.queue in self._done

    def problem(self, store: Store) -> str | None:
        """Return why a queue is not set up; None = it is, or has not been tried."""
        return None if self.is_done(store) else self._reconnects.of(store.queue).reason

    async def until_one(self, stores: Sequence[Store]) -> None:
        """Try each of these queues, and go on until one of them at least is set up. None waits for another."""
        waits = await asyncio.gather(*map(self._set_up, stores))
        if not all(waits):
            return
        trying = [asyncio.ensure_future(self.until_done(*one)) for one in zip(stores, waits, strict=True)]
        try:
            done, _ = await asyncio.wait(trying, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in trying:
                task.cancel()
            await asyncio.gather(*trying, return_exceptions=True)

    async def until_done(self, store: Store, wait: float = 0.0) -> None:
        """Try a queue until it is set up, for the first time after `wait` seconds."""
        while not self.is_done(store):
            await asyncio.sleep(wait)
            wait = await self._set_up(store)

    async def _set_up(self, store: Store) -> float:
        """Try to set up a queue; return 0, or the seconds after which to try again."""
        if self.is_done(store):
            return 0.0
        lease, announced = self._runtime.config.idle_lease, self._announced(store.queue)
        wait = await self._write(store, store.heartbeat(self._worker, lease, fresh=True, announced=announced))
        if not wait:
            self._done.add(store.queue)
        return wait

    async def _write(self, store: Store, *last: Call[Any]) -> float:
        """Announce the queue, write what the app declares, and send the last call; return as `_set_up` does."""
        reconnect = self._reconnects.of(store.queue)
        try:
            await self._announce(store)
            await self._declarations.write(store)
            await self._describe_tasks(store)
            await self._runtime.sender.send_all(last)
        except StoreError as error:
            return reconnect.failed(error)
        reconnect.passed()
        return 0.0

    async def _announce(self, store: Store) -> None:
        """Let dispatchers find the queue: at once by a message, or later in the set of all queues.

        Raises:
            StoreDown, StoreRefused
        """
        await self._runtime.sender.send(store.wake())
        await self._try(server.add_queues([store.queue]), server.set_may_wait)

    async def _describe_tasks(self, store: Store) -> None:
        """Write the retry policies of the tasks, for clients that make recurrences of them without their code.

        Also write the names of the tasks, for workers that do not know one of them. Both come after the declarations:
        if `forget` deletes the policies, it deletes the revision too, and a heartbeat tells that this was lost.

        Raises:
            StoreDown, StoreRefused
        """
        if self._policies:
            await self._try(store.set_policies(self._policies), server.may_wait)
            await self._try(store.set_program(self._digest, sorted(self._policies)), server.may_wait)

    def announced(self, queue: str) -> Announced:
        """Return what is written of the app; nothing is if the queue is not set up. For any thread."""
        return self._announced(queue) if queue in self._done else Announced()

    def _announced(self, queue: str) -> Announced:
        return Announced(*self._declarations.declared(queue), self._digest, self._declarations.known(queue))

    def declare_again(self, queue: str) -> None:
        """Have `keep` declare again what the app declares in a queue."""
        self._undeclared.add(queue)
        self._lost.set()

    async def keep(self) -> None:
        """Write again what Redis has lost, until cancelled.

        The queues that are set up are kept in the set of all queues. Dispatchers do the same for the queues that they
        know, so this is for queues that no dispatcher serves. Redis neither writes nor replicates an SADD of what the
        set contains.
        """
        seldom = _SELDOM * self._runtime.config.safety_cap
        wait = seldom
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._lost.wait()
            self._lost.clear()
            if self._done:
                with contextlib.suppress(StoreError):  # the other loops report it
                    await self._try(server.add_queues(sorted(self._done)), server.set_may_wait)
            with contextlib.suppress(StoreError):
                await self._restore_shards()
            waits = [await self._declare_lost(queue) for queue in sorted(self._undeclared)]
            wait = min(filter(None, waits), default=seldom)

    async def _restore_shards(self) -> None:
        shards = self._runtime.shards
        for whole in {shards.whole(queue) for queue in self._undeclared}:
            if count := shards.counts.get(whole, 0):
                await self._try(server.restore_shards(whole, count), server.set_may_wait)

    async def _declare_lost(self, queue: str) -> float:
        """Write again what the app declares in a queue; return 0, or the wait as `_set_up`."""
        wait = await self._write(Store(queue))
        if not wait:
            self._undeclared.discard(queue)
        return wait

    async def _try(self, call: Call[Any], may_wait: Callable[[StoreError], bool]) -> None:
        """Write what a worker can do without."""
        try:
            await self._runtime.sender.send(call)
        except StoreError as error:
            if not may_wait(error):
                raise
            self._runtime.emit(events.RedisFailed(kind=error.kind))
