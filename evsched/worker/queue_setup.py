"""The setup of a worker's queues: what is written to Redis for each before jobs are fetched from it.

The queue is added to the set of all queues, the recurrences that the app declares are written, and the worker's lease
begins. If Redis refuses that for a queue, it is tried again while the others are served. While Redis's memory is full
it refuses none of this but the set, and a worker starts without that: its jobs free memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Final

from evsched import events
from evsched.errors import NO_ENTRY, JobMissing, StoreError, StoreRefused
from evsched.execution.program import Program
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.runtime.runtime import Runtime
from evsched.store import server
from evsched.store.store import Store

_SELDOM: Final = 10
"""Safety caps between two writes of the set of all queues: an idle worker sends few commands."""


class QueueSetup:
    """Sets up queues for one worker, and waits while Redis is away."""

    def __init__(self, runtime: Runtime, program: Program, worker: str) -> None:
        self._runtime = runtime
        self._program = program
        self._worker = worker
        self._reconnect = Reconnect("worker", runtime.emit)
        self._refused = Reconnects("worker", runtime.emit)
        self._done = set[str]()

    def is_done(self, store: Store) -> bool:
        """Return whether jobs may be fetched from a queue."""
        return store.queue in self._done

    def problem(self, store: Store) -> str | None:
        """Return why a queue is not set up; None = it is, or has not been tried."""
        return None if self.is_done(store) else self._reconnect.reason or self._refused.of(store.queue).reason

    async def until_one(self, stores: Sequence[Store]) -> None:
        """Try each of these queues, until one of them at least is set up."""
        while True:
            wait = min([await self._set_up(store) for store in stores])
            if not wait:
                return
            await asyncio.sleep(wait)

    async def _set_up(self, store: Store) -> float:
        """Set up a queue; return 0, or the seconds after which to try again since Redis refuses it."""
        lease, refused = self._runtime.config.idle_lease, self._refused.of(store.queue)
        while not self.is_done(store):
            async with self._reconnect:
                try:
                    await self._announce(store)
                    await self._declare(store)
                    await self._runtime.sender.send(store.heartbeat(self._worker, lease, fresh=True))
                except StoreRefused as error:
                    if error.kind in NO_ENTRY:
                        raise
                    return refused.failed(error)
                refused.passed()
                self._done.add(store.queue)
        return 0.0

    async def _announce(self, store: Store) -> None:
        """Let dispatchers find the queue: at once by a message, or later in the set of all queues.

        Raises:
            StoreDown, StoreRefused
        """
        await self._runtime.sender.send(store.wake())
        await self._add_to_set(store.queue)

    async def keep_in_set(self) -> None:
        """Keep the queues that are set up in the set of all queues, which may be flushed or lost, until cancelled.

        Dispatchers do the same for the queues that they know, so this is for queues that no dispatcher serves. Redis
        neither writes nor replicates an SADD of what the set contains.
        """
        while True:
            await asyncio.sleep(_SELDOM * self._runtime.config.safety_cap)
            if self._done:
                with contextlib.suppress(StoreError):  # the other loops report it
                    await self._add_to_set(*sorted(self._done))

    async def _add_to_set(self, *queues: str) -> None:
        try:
            await self._runtime.sender.send(server.add_queues(queues))
        except StoreError as error:
            if not server.may_wait(error):
                raise
            self._runtime.emit(events.RedisFailed(kind=error.kind))

    async def _declare(self, store: Store) -> None:
        """Make the app's recurrences in Redis those that it declares; leave those of other apps alone."""
        own = [one for queue, one in self._program.recurrences if queue == store.queue]
        known = await self._runtime.sender.send(store.declared(self._program.owner))
        for one in own:
            done = await self._runtime.sender.send(store.declare(one, self._program.owner))
            if done != "same":
                self._runtime.emit(events.RecurrenceDeclared(queue=store.queue, name=one.name, done=done))
        for name in set(known).difference(one.name for one in own):
            with contextlib.suppress(JobMissing):  # another worker was quicker
                await self._runtime.sender.send(store.remove(name))
                self._runtime.emit(events.RecurrenceDeclared(queue=store.queue, name=name, done="removed"))
