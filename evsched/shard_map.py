"""What a process knows of the shards of queues: what Redis says, and what its app declares.

Redis may be away, or may refuse to say it. Then a process serves the shards that it knows of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from evsched import events
from evsched.config import Config
from evsched.errors import StoreError, StoreRefused
from evsched.runtime.runtime import Runtime
from evsched.store import server


async def learn(runtime: Runtime) -> bool:
    """Read how many shards queues have; return False if that is not possible now."""
    try:
        counts = await runtime.sender.send(server.shards())
        grown = more(runtime, counts)
        runtime.shards.grow(counts)
        for queue, (_, count) in grown.items():
            runtime.emit(events.ShardsFound(queue=queue, count=count))
    except StoreError as error:
        runtime.emit(events.RedisFailed(kind=error.kind))
        return isinstance(error, StoreRefused)  # a right is missing: it would be refused again
    return True


def named(runtime: Runtime) -> list[str]:
    """Return the queues that the settings name, with the shards that they have by now; none = all queues."""
    return list(dict.fromkeys(part for queue in runtime.config.queues for part in runtime.shards.all_of(queue)))


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
