"""Facts that all processes of one Redis share: how many shards queues have, and the lease.

Redis may be down, or may refuse to say it. Then a process goes on with its last values.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import structs

from evsched import process_events
from evsched.config import Config
from evsched.errors import WRONG_TYPE, StoreError, StoreRefused
from evsched.runtime.loops import Runtime
from evsched.store import server
from evsched.transport.address import Host

_SELDOM: Final = 10
"""Safety caps between two reads of the facts, at most: an idle process sends few commands."""

_AGAIN: Final = 2.0
"""Seconds, half of them random, between two tries while they cannot be read."""

_PAUSE: Final = 0.01
"""Seconds between two slices of a scan for shards."""


async def learn(runtime: Runtime) -> bool:
    """Read how many shards queues have, and the lease; return False if one of them cannot be read now."""
    return all(await asyncio.gather(_learn_shards(runtime), learn_lease(runtime)))


async def _learn_shards(runtime: Runtime) -> bool:
    try:
        counts = await runtime.sender.send(server.shards())
        runtime.shards.learned = True
        grown = more(runtime, counts)
        runtime.shards.grow(counts)
        for queue, (_, count) in grown.items():
            runtime.emit(process_events.ShardsFound(queue=queue, count=count))
    except StoreError as error:
        runtime.emit(process_events.RedisFailed(kind=error.kind))
        if isinstance(error, StoreRefused):  # a right is missing: it would be refused again
            runtime.shards.learned = True
            return True
        if runtime.shards.learned is None:
            runtime.shards.learned = False
            runtime.emit(process_events.ShardsUnknown(reason=str(error)))
        return False
    return True


async def learn_lease(runtime: Runtime) -> bool:
    """Use the lease that Redis has; if it has none that is valid, write the one that was read last, or this process's.

    Return False if it cannot be read now.
    """
    times, given = runtime.times, runtime.config.lease
    first, mine = times.read is None, times.read or times.lease
    try:
        found = await _stored_lease(runtime)
        if found is None:
            await runtime.sender.send(server.set_lease(mine))
            found = mine
    except StoreError as error:
        runtime.emit(process_events.RedisFailed(kind=error.kind))
        return isinstance(error, StoreRefused)  # a right is missing: it would be refused again
    times.read = found
    if first and given is not None and given != found:
        runtime.emit(process_events.LeaseDiffers(given=given, lease=found))
    if first or found != times.lease:
        times.follow(found)
        if not first:
            runtime.emit(process_events.LeaseChanged(lease=found))
    return True


async def _stored_lease(runtime: Runtime) -> float | None:
    try:
        return await runtime.sender.send(server.lease())
    except StoreRefused as error:
        if error.kind != WRONG_TYPE:
            raise
        return None


async def follow_lease(runtime: Runtime) -> None:
    """Read the lease again from time to time, until cancelled."""
    known = runtime.times.read is not None
    while True:
        await asyncio.sleep(until_next_read(runtime, known=known))
        known = await learn_lease(runtime)


def until_next_read(runtime: Runtime, *, known: bool) -> float:
    """Return the seconds until a process reads the facts again. `known`: the last read succeeded."""
    return (_SELDOM * runtime.times.safety_cap if known else _AGAIN) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret


async def find(runtime: Runtime, node: Host, found: Callable[[], None]) -> None:
    """Find the shards of the named queues whose keys a node of a cluster has, as long as the numbers are not known.

    `found()` is called after each slice of the keys that has new ones.
    """
    cursor = None
    try:
        while cursor != 0 and not runtime.shards.learned:
            keys = await runtime.sender.send(server.scan(cursor or 0).at(node))
            if runtime.shards.find(runtime.config.queues, keys.queues):
                found()
            cursor = keys.next
            await asyncio.sleep(_PAUSE)
    except StoreError as error:
        runtime.emit(process_events.RedisFailed(kind=error.kind))


def named(runtime: Runtime) -> list[str]:
    """Return the queues that the settings name, with the shards that they have by now; none = all queues.

    While the numbers cannot be read, these are the shards that were found.
    """
    shards = runtime.shards
    names = [part for queue in runtime.config.queues for part in shards.all_of(queue)]
    return list(dict.fromkeys(names if shards.learned else [*names, *sorted(shards.found)]))


def more(runtime: Runtime, counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the queues that have fewer shards than these: how many they have, and how many they are to have."""
    had = {name: runtime.shards.counts.get(name, 0) for name in counts}
    return {name: (had[name], count) for name, count in counts.items() if count > had[name]}


def spread(runtime: Runtime, queues: Sequence[str]) -> Config:
    """Return the settings of a process that serves these queues and their shards, which share the queue's weight."""
    names, weights = list[str](), dict[str, float]()
    for queue in queues:
        of_queue = runtime.shards.all_of(queue)
        names += of_queue
        weight = runtime.config.weights.get(queue, 1.0) / len(of_queue)
        weights |= {name: weight for name in of_queue if weight != 1.0}
    return structs.replace(runtime.config, queues=tuple(dict.fromkeys(names)), weights=weights)
