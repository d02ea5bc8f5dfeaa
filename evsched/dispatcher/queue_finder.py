"""The finder: finds the queues whose first event was lost.

Most queues are found at once, by their first event. An event is lost when the subscription has a gap: a cut connection,
a flood, a restart of Redis, or a Redis that sends no events. So the finder searches in two ways:

* It reads the set of all queues (`queue_set.py`) after each new subscription, and once in a safety cap. It then adds
  the queues that the set lacks.
* It scans all keys (`key_scan.py`) after each new subscription, and in each safety cap if Redis sends no events or the
  set cannot be read.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Final

from evsched import shard_map
from evsched.dispatcher.key_scan import KeyScan
from evsched.dispatcher.proof import Proof
from evsched.dispatcher.queue_set import QueueSet
from evsched.dispatcher.served_queues import NewQueues
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect
from evsched.runtime.runtime import Runtime
from evsched.runtime.wakeup import Wakeup

_AGAIN: Final = 2.0
"""Seconds, half of them random, until the shards of named queues are read again if their node does not answer."""


_SELDOM: Final = 10
"""Safety caps between two readings of the set by a dispatcher that serves all queues and receives events, if no queue
has shards. Workers write the set as often."""

_READ_ALL: Final = 120
"""Safety caps between two readings of a set of the same size: an hour. Its members may have changed all the same."""


class Finder:
    """Serves each queue that it finds. `proof` knows whether Redis sends events."""

    def __init__(self, runtime: Runtime, proof: Proof, queues: NewQueues) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self._owns = runtime.part.owns
        self._proof = proof
        self._queues = queues
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("finder", runtime.emit)
        self._set = QueueSet(runtime)
        self._scan = KeyScan(runtime, queues)
        self._read_at = 0.0
        self._was_read = 0.0
        self._read_all_at = 0.0
        """When to read the set even if its size is the same."""

    @property
    def pulse(self) -> Pulse:
        """The pulse of its loop."""
        return self._reconnect.pulse

    async def begin(self) -> None:
        """Find the queues in the set, unless the settings name them, and those in the first slice of the keys.

        Raises:
            StoreDown, StoreRefused
        """
        if not self._config.queues:
            await self._read()
        await self._scan.step()

    def found(self, queue: str) -> None:
        """Add a queue to the set, if it is not there."""
        if self._set.add(queue):
            self._wakeup.ring()
        if self._runtime.shards.may_lack(queue):
            self._read_at = 0.0
            self._wakeup.ring()

    def rests(self, queue: str) -> None:
        """Note that a queue is empty."""
        self._set.rest(queue)

    def forget(self, queues: list[str]) -> None:
        """Forget queues that have been empty for long, unless workers served them in the last day."""
        self._set.remove(queues)
        self._wakeup.ring()

    def look(self) -> None:
        """Search for all queues: events may have been missed."""
        self._read_at = self._read_all_at = 0.0
        self._scan.restart()
        self._wakeup.ring()

    async def run(self) -> None:
        """Find queues until cancelled."""
        while True:
            async with self._reconnect:
                at = await self.step()
                if at == float("inf"):
                    self.pulse.rest()
                else:
                    self.pulse.expect(max(0.0, at - time.monotonic()))
                await self._wakeup.sleep(at)

    async def step(self) -> float:
        """Do what is due; return when the next step is, by the monotonic clock.

        Raises:
            StoreDown, StoreRefused
        """
        cap = self._runtime.times.safety_cap
        if not self._relies_on_events():  # perhaps since a moment ago
            self._read_at = min(self._read_at, self._was_read + cap)
        if self._read_at <= time.monotonic():
            await self._read()
        for name in await self._set.write():
            self._queues.serve(name)
        if self._scan.at <= time.monotonic():
            await self._scan.step()
        return min(self._read_at, self._scan.at, time.monotonic() + cap)

    async def _read(self) -> None:
        """Serve the queues in the set; scan the keys too if neither the set nor events can be relied on."""
        self._was_read = now = time.monotonic()
        self._read_at = now + self._runtime.times.safety_cap * (_SELDOM if self._relies_on_events() else 1)
        names, learned = await asyncio.gather(self._read_set(now), shard_map.learn(self._runtime))
        if self._config.queues:
            for name in filter(self._owns, shard_map.named(self._runtime)):
                self._queues.serve(name)
            if not learned:
                self._read_at = min(self._read_at, time.monotonic() + _AGAIN * random.uniform(0.5, 1.0))  # noqa: S311
            return
        for name in filter(self._owns, names or ()):
            self._queues.serve(name)
        if names is None or self._proof.failed:
            self._read_at = min(self._read_at, now + self._runtime.times.safety_cap)
            self._scan.ensure()

    async def _read_set(self, now: float) -> set[str] | None:
        """Return the queues in the set, or none if it has not changed; None if it cannot be read."""
        if now < self._read_all_at and not await self._set.changed():
            return set()
        self._read_all_at = now + _READ_ALL * self._runtime.times.safety_cap
        return await self._set.read()

    def _relies_on_events(self) -> bool:
        """Return whether new queues, and shards, are found by their events: the set is then read only to be sure."""
        return not (self._config.queues or self._runtime.shards.counts or self._proof.failed)
