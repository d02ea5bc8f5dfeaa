"""What a process knows of the shards of queues: what Redis says, and what its app declares.

Redis may be away, or may refuse to say it. Then a process serves the shards that it knows of.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from evsched import events
from evsched.config import Config
from evsched.errors import StoreError
from evsched.runtime.runtime import Runtime
from evsched.store import server


async def learn(runtime: Runtime) -> None:
    """Read how many shards queues have."""
    try:
        runtime.shards.grow(await runtime.sender.send(server.shards()))
    except StoreError as error:
        runtime.emit(events.RedisFailed(kind=error.kind))


def more(runtime: Runtime, counts: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the queues that have fewer shards than these: how many they have, and how many they are to have."""
    had = {name: runtime.shards.counts.get(name, 0) for name in counts}
    return {name: (had[name], count) for name, count in counts.items() if count > had[name]}


async def declare(runtime: Runtime, queue: str, count: int) -> bool:
    """Write that a queue has at least so many shards; return whether it had fewer before."""
    runtime.shards.grow({queue: count})
    try:
        return await runtime.sender.send(server.declare_shards(queue, count))
    except StoreError as error:
        if not server.set_may_wait(error):
            raise
        runtime.emit(events.RedisFailed(kind=error.kind))
        return False


def spread(runtime: Runtime, queues: Sequence[str]) -> Config:
    """Return the settings of a process that serves these queues and their shards, which share the queue's weight."""
    names, weights = list[str](), dict[str, float]()
    for queue in queues:
        of_queue = runtime.shards.all_of(queue)
        names += of_queue
        weight = runtime.config.weights.get(queue, 1.0) / len(of_queue)
        weights |= {name: weight for name in of_queue if weight != 1.0}
    return structs.replace(runtime.config, queues=tuple(dict.fromkeys(names)), weights=weights)
