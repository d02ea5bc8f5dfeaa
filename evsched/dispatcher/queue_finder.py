"""The finder: finds queues whose first event nobody heard.

Most queues are found by an event, at once. An event is lost where the subscription has a gap: a link that was cut, a
flood, a Redis that has just come back, or one that tells no events. So the finder looks for itself, in two ways:

* It reads the set of all queues that a dispatcher ever found or a worker ever worked on: after each new subscription,
  and once in a safety cap. Workers and dispatchers write it, not the scripts: in a Redis Cluster a script reaches one
  slot, and this set lies in another than the queues.
* It walks through all keys with SCAN, for queues that were made by ZADD alone: after each new subscription, and in each
  safety cap if Redis tells no events or the set cannot be read. One slice at a time, so that a database of millions
  costs Redis a few per cent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from evsched import events
from evsched.errors import StoreRefused
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect
from evsched.runtime.runtime import Runtime
from evsched.runtime.wakeup import Wakeup
from evsched.store import server
from evsched.store.store import Store

_REST: Final = 0.01
"""Seconds between two slices of a walk: 1,000 keys are 0.3 ms of Redis's time; a million are walked in 10 s."""

_SELDOM: Final = 10
"""Safety caps between two slices when nothing says that a queue was missed: a SWAPDB, for one, tells no event."""


class Finder:
    """Calls `find(queue)` for each queue that is there; `deaf()` says whether Redis tells no events."""

    def __init__(self, runtime: Runtime, find: Callable[[str], object], deaf: Callable[[], bool]) -> None:
        self._runtime = runtime
        self._find = find
        self._deaf = deaf
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("finder", runtime.emit)
        self._known = set[str]()
        """What the set holds, as far as we know."""
        self._unwritten = set[str]()
        self._cursor = 0
        self._walks = 1
        """How many walks are to be ended; 2 = one is under way that began before the last gap."""
        self._read_at = 0.0
        self._slice_at = 0.0

    async def begin(self) -> None:
        """Find the queues that the set names, and those in the first slice of the keys.

        Raises:
            StoreDown, StoreRefused
        """
        await self._read()
        await self._walk()

    @property
    def pulse(self) -> Pulse:
        """The pulse of its loop."""
        return self._reconnect.pulse

    def found(self, queue: str) -> None:
        """Write a queue that somebody found into the set."""
        if queue not in self._known:
            self._unwritten.add(queue)
            self._wakeup.ring()

    def look(self) -> None:
        """Look for all queues: events may have been missed."""
        self._read_at = self._slice_at = 0.0
        self._walks = 2 if self._cursor else 1
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
        """Do what is due; return when the next is, by the monotonic clock.

        Raises:
            StoreDown, StoreRefused
        """
        if self._unwritten:
            await self._write()
        if self._read_at <= time.monotonic():
            await self._read()
        if self._slice_at <= time.monotonic():
            await self._walk()
        return min(self._read_at, self._slice_at)

    async def _write(self) -> None:
        names = sorted(self._unwritten)
        try:
            await self._runtime.sender.send(server.add_queues(names))
        except StoreRefused as error:
            self._runtime.emit(events.RedisFailed(kind=error.kind))
        self._known.update(names)
        self._unwritten.difference_update(names)

    async def _read(self) -> None:
        cap = self._runtime.config.safety_cap
        if self._runtime.config.queues:
            self._read_at = float("inf")
            return
        self._read_at = time.monotonic() + cap
        try:
            names = await self._runtime.sender.send(server.queue_names())
        except StoreRefused as error:
            # Somebody's key of another type, or no right to it: the walks find all, only later.
            self._runtime.emit(events.RedisFailed(kind=error.kind))
            names, blind = list[str](), True
        else:
            self._known, blind = set(names), self._deaf()
        for name in names:
            self._find(name)
        if blind and not self._walks:
            self._walks, self._slice_at = 1, 0.0

    async def _walk(self) -> None:
        """Look at one slice of the keys."""
        found = await self._runtime.sender.send(server.scan(self._cursor))
        self._cursor = found.next
        named = self._runtime.config.queues
        for queue in sorted(found.queues.intersection(named) if named else found.queues):
            self._find(queue)
        await self._lease({(queue, worker) for queue, worker in found.held if not named or queue in named})
        now = time.monotonic()
        if self._cursor == 0:
            self._walks = max(self._walks - 1, 0)
        if self._walks:
            self._slice_at = now + _REST
        elif self._runtime.config.queues:
            self._slice_at = float("inf")  # only their processing lists were looked for
        else:
            self._slice_at = now + _SELDOM * self._runtime.config.safety_cap

    async def _lease(self, lists: set[tuple[str, str]]) -> None:
        """Give a processing list whose worker has no lease one, so that the janitor judges it as any other."""
        for queue in sorted({queue for queue, _ in lists}):
            place = Store(queue)
            leased = {lease.worker for lease in await self._runtime.sender.send(place.survey())}
            for worker in sorted(name for of, name in lists if of == queue and name not in leased):
                await self._runtime.sender.send(place.heartbeat(worker, self._runtime.config.lease, fresh=True))
