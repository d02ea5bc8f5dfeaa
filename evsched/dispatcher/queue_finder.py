"""The queues of a dispatcher: how it finds those whose first event was lost, and how it passes over empty ones.

Most queues are found at once, by their first event. An event is lost when the subscription has a gap: a cut connection,
a flood, a restart of Redis, or a Redis that sends no events. So `QueueFinder` searches in two ways:

* It reads the set of all queues (`QueueSet`) after each new subscription, and every quarter of an hour; once in a
  safety cap if it cannot rely on events. It then adds the queues that the set lacks.
* It scans all keys (`KeyScan`) after each new subscription, and in each safety cap if Redis sends no events or the set
  cannot be read.

`RestingQueues` are empty queues, which have no timer.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from evsched import process_events, shard_map
from evsched.dispatcher.timing import Proof
from evsched.errors import StoreError, StoreRefused
from evsched.runtime.loops import Runtime, Wakeup
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.store import server
from evsched.store.dispatcher_calls import GLANCE_MOST
from evsched.store.store import Store

_AGAIN: Final = 2.0
"""Seconds, half of them random, until the shards of named queues are read again if their node does not answer."""

_READ_ALL: Final = 120
"""Safety caps between two readings of a set of the same size: an hour. Its members may have changed all the same."""


class QueueFinder:
    """Searches for queues, and calls `serve` for each one that it finds. `proof` knows whether Redis sends events."""

    def __init__(self, runtime: Runtime, proof: Proof, serve: Callable[[str], None]) -> None:
        self._runtime = runtime
        self._config = runtime.config
        self._owns = runtime.part.owns
        self._proof = proof
        self._serve = serve
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("finder", runtime.emit)
        self.pulse = self._reconnect.pulse
        self._set = QueueSet(runtime)
        self._scan = KeyScan(runtime, serve)
        self._read_at = 0.0
        self._was_read = 0.0
        self._read_all_at = 0.0
        """When to read the set even if its size is the same."""

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
        """Take the due steps; return when the next step is, by the monotonic clock.

        Raises:
            StoreDown, StoreRefused
        """
        cap = self._runtime.times.safety_cap
        if not self._relies_on_events():  # perhaps since a moment ago
            self._read_at = min(self._read_at, self._was_read + cap)
        if self._read_at <= time.monotonic():
            await self._read()
        for name in await self._set.write():
            self._serve(name)
        if self._scan.at <= time.monotonic():
            await self._scan.step()
        return min(self._read_at, self._scan.at, time.monotonic() + cap)

    async def _read(self) -> None:
        """Serve the queues in the set; scan the keys too if neither the set nor events can be relied on."""
        self._was_read = now = time.monotonic()
        times = self._runtime.times
        self._read_at = now + (times.seldom if self._relies_on_events() else times.safety_cap)
        names, learned = await asyncio.gather(self._read_set(now), shard_map.learn(self._runtime))
        if self._config.queues:
            for name in filter(self._owns, shard_map.named(self._runtime)):
                self._serve(name)
            if not learned:
                self._read_at = min(self._read_at, time.monotonic() + _AGAIN * random.uniform(0.5, 1.0))  # noqa: S311
            return
        for name in filter(self._owns, names or ()):
            self._serve(name)
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


_SLICE: Final = 1000
"""Names that one call reads or writes: about 0.3 ms of Redis's time."""


class QueueSet:
    """Keeps the set of all queues in Redis complete: it may be flushed, deleted or lost.

    Dispatchers and workers write the set, not the scripts: in a Redis Cluster a script reaches only the slot of its
    queue, and this set is in another one. There the set may be down while the queues are not: a dispatcher then does
    without it, and reads it again a safety cap later.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._queues = set(runtime.config.queues)
        """The queues that belong in the set: they were found and are not at rest, or the settings name them."""
        self._written = set[str]()
        """The names in the set when it was last read, and those added since."""
        self._to_add = set(self._queues)
        """The queues that belong in the set and are not in `_written`."""
        self._to_remove = set[str]()

    def add(self, queue: str) -> bool:
        """Have `write` add a queue; return False if it is in the set already."""
        self._queues.add(queue)
        self._to_remove.discard(queue)
        if queue in self._written:
            return False
        self._to_add.add(queue)
        return True

    def rest(self, queue: str) -> None:
        """Do not add this empty queue if the set lacks it."""
        self._queues.discard(queue)
        self._to_add.discard(queue)

    def remove(self, queues: Iterable[str]) -> None:
        """Have `write` remove queues, unless they are added again before that."""
        self._to_remove.update(queues)

    async def write(self) -> list[str]:
        """Add the queues that are missing and forget the queues that are to be removed.

        Return the queues that stay, because they have something, or had workers in the last day. The notes of former
        workers about their apps are deleted with a queue.

        A queue that is added while it is being removed is missing afterwards, so the next `write` adds it. If another
        dispatcher or a worker has added it meanwhile, that one adds it again when it next reads or writes the set.

        Raises:
            StoreRefused: the failure concerns more than the set.
        """
        gone = sorted(self._to_remove)
        self._to_remove.clear()
        self._queues.difference_update(gone)
        self._written.difference_update(gone)
        self._to_add.difference_update(gone)
        names = sorted(self._to_add)
        send, kept = self._runtime.sender.send, set(gone)
        try:
            for first in range(0, len(gone), GLANCE_MOST):
                forgotten = await send(Store(gone[first]).forget(gone[first : first + GLANCE_MOST]))
                if forgotten:
                    await send(server.remove_queues(forgotten))
                    kept.difference_update(forgotten)
            for first in range(0, len(names), _SLICE):
                await send(server.add_queues(names[first : first + _SLICE]))
        except StoreError as error:
            if not server.set_may_wait(error):
                self._to_remove |= kept - self._queues
                raise
            self._runtime.emit(process_events.RedisFailed(kind=error.kind))
        # Failed ones too: the next `read` corrects this, and they are added again.
        self._written.update(names, kept)
        self._to_add.difference_update(names)
        return sorted(kept)

    async def read(self) -> set[str] | None:
        """Return the queues in the set; None if it cannot be read: its node is down, or Redis refuses."""
        names, cursor = set[str](), None
        try:
            while cursor != 0:
                cursor, some = await self._runtime.sender.send(server.some_queue_names(cursor or 0))
                names.update(some)
        except StoreError as error:
            self._runtime.emit(process_events.RedisFailed(kind=error.kind))
            return None
        self._written, self._to_add = names, self._queues - names
        return names

    async def changed(self) -> bool:
        """Return whether to read the set again. If it is large, its size tells, as it takes many calls to read it."""
        if len(self._written) <= _SLICE:
            return True
        try:
            return await self._runtime.sender.send(server.count_queues()) != len(self._written)
        except StoreError:
            return True  # `read` meets the same error and reports it


_PAUSE: Final = 0.01
"""Seconds between two slices: 1,000 keys take 0.3 ms of Redis's time, and a million keys are scanned in 10 s."""


class KeyScan:
    """Scans all keys for queues that only a ZADD has created, in slices that cost Redis a few per cent of its time.

    All keys are scanned once, and later one slice at a time, at long intervals. `at` is when the next slice is due, by
    the monotonic clock.

    A scan also finds the lists of workers that have no lease, and gives them one, so that the janitor judges them like
    any other.
    """

    def __init__(self, runtime: Runtime, serve: Callable[[str], None]) -> None:
        self._runtime = runtime
        self._serve = serve
        self._refused = Reconnects("finder", runtime.emit)
        self._cursor = 0
        self._under_way = False
        """A slice is being read."""
        self._wanted = 1
        """How many scans must still end; 2 = one that began before the last gap in the events, and one more."""
        self.at = 0.0

    def restart(self) -> None:
        """Scan all keys from now on: a scan that is under way has passed some of them."""
        self._wanted = 2 if self._cursor or self._under_way else 1
        self.at = 0.0

    def ensure(self) -> None:
        """Scan all keys, unless a scan is under way."""
        if not self._wanted:
            self._wanted, self.at = 1, 0.0

    async def step(self) -> None:
        """Scan one slice. If a call about one queue alone fails, that is reported, and the other queues are served.

        Raises:
            StoreDown, StoreRefused: the failure concerns all queues.
        """
        self._under_way = True
        try:
            found = await self._runtime.sender.send(server.scan(self._cursor))
        finally:
            self._under_way = False
        self._cursor = found.next
        named = self._runtime.config.queues
        for queue in sorted(found.queues.intersection(named) if named else found.queues):
            self._serve(queue)
        for queue in sorted({queue for queue, _ in found.held if not named or queue in named}):
            reconnect = self._refused.of(queue)
            try:
                await self._lease(Store(queue), [worker for name, worker in found.held if name == queue])
            except StoreError as error:
                reconnect.refused(error)
            else:
                reconnect.passed()
        now = time.monotonic()
        if self._cursor == 0:
            self._wanted = max(self._wanted - 1, 0)
        if self._wanted:
            self.at = now + _PAUSE
        elif named:
            self.at = float("inf")  # the queues are known: the scan was only for their workers' lists
        else:
            self.at = now + self._runtime.times.seldom

    async def _lease(self, store: Store, workers: list[str]) -> None:
        """Give a lease to each of these workers of a queue, which have lists, unless the janitor watches its list.

        Raises:
            StoreDown
            StoreRefused: Redis refused one of them at least, after all were tried.
        """
        survey = await self._runtime.sender.send(store.survey())
        refusal: StoreRefused | None = None
        for worker in sorted({*workers} - {lease.worker for lease in survey.leases} - {*survey.died}):
            try:
                await self._runtime.sender.send(store.heartbeat(worker, self._runtime.times.lease, fresh=True))
            except StoreRefused as error:
                refusal = error  # the key of one worker has the wrong type
        if refusal is not None:
            raise refusal


_AT_REST: Final = 6000
"""Queues at rest that one call looks at: about 1 ms of Redis's time, and 5 ms of this process's."""

_FORGET_AFTER: Final = 3600.0
"""Seconds of rest after which a queue is forgotten, if no worker has served it for a day. Redis knows the time of the
last worker; the rest is counted in memory, so it is short enough for dispatchers that restart each day. The queue's
next event finds it again, as it finds any new queue."""

_NEVER: Final = float("inf")


class RestingQueues:
    """The queues at rest: empty ones, which have no timer, and which no loop looks at until they have a schedule again.

    An event ends the rest. If it was lost, a look at many of these queues in one call, once in a safety cap, finds that
    one has a schedule. `forget`: receives queues that have been at rest for long.
    """

    def __init__(self, runtime: Runtime, forget: Callable[[list[str]], None]) -> None:
        self._runtime = runtime
        self._forget = forget
        self._since: dict[str, float] = {}
        """Since when each queue rests (monotonic clock). The one that was looked at longest ago comes first."""
        self._look_at = _NEVER
        """When to look at the next ones."""
        self._urgent = 0
        """How many of them to look at without a pause, because events may have been missed."""

    def __contains__(self, queue: str) -> bool:
        return queue in self._since

    def __iter__(self) -> Iterator[str]:
        return iter(self._since)

    def __len__(self) -> int:
        return len(self._since)

    def add(self, queue: str) -> None:
        """Put an empty queue at rest."""
        now = time.monotonic()
        self._look_at = min(self._look_at, now + self._runtime.times.safety_cap)
        self._since.setdefault(queue, now)

    def discard(self, queue: str) -> None:
        """End the rest of a queue, if it is at rest."""
        self._since.pop(queue, None)

    def look_soon(self) -> None:
        self._urgent = len(self._since)

    def next(self) -> float:
        """Return when to call `look` next, by the monotonic clock."""
        return 0.0 if self._urgent and self._since else self._look_at

    async def look(self) -> list[str]:
        """Look whether one of some queues has a schedule; return the queues to check.

        If one has, its event was lost, and a check of all these finds it. In a cluster no command takes keys of several
        queues, so all are checked there.

        Raises:
            StoreDown, StoreRefused: the next call looks at the same queues.
        """
        cluster = self._runtime.part.node is not None
        most = GLANCE_MOST if cluster else _AT_REST
        queues = list(islice(self._since, most))
        sent = time.monotonic()
        found = False if cluster else await self._runtime.sender.send(server.any_scheduled(queues))
        old, kept = list[str](), list[str]()
        for queue in queues:
            since = self._since.pop(queue, None)
            if since is not None and (found or since >= sent - _FORGET_AFTER):
                self._since[queue] = since
                kept.append(queue)
            elif since is not None:
                old.append(queue)
        if old:
            self._forget(old)
        self._urgent = max(0, self._urgent - len(queues))
        part = min(1.0, most / len(self._since)) if self._since else _NEVER
        self._look_at = sent + part * self._runtime.times.safety_cap
        return kept if found or cluster else []
