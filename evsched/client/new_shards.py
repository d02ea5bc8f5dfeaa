"""What holds for a queue, and must hold for shards that it is given: its pause, and the limits that were set by hand.

Limits that the code declares are divided by the workers when they start.
"""

from __future__ import annotations

from msgspec import Struct, structs

from evsched.client.operations import Operation, send
from evsched.client.spread import MakeStore
from evsched.shards import Shards
from evsched.store.limits import Limits, merged
from evsched.store.store import Store


class Gate(Struct, frozen=True):
    """What is to hold in each shard."""

    shares: dict[str, dict[str, float]]
    """By queue: its part of each limit that was set by hand."""
    paused: bool


def read_limits(store: Store) -> Operation[Limits]:
    """Return the limits of one queue, with those that apps declare."""
    limits = yield from send(store.limits())
    return structs.replace(limits, declared=(yield from send(store.declared_limits())))


def plan(make: MakeStore, queue: str, was: int, count: int) -> Operation[Gate]:
    """Return what is to hold when a queue has `count` shards instead of `was`.

    Raises:
        ConfigError: a limit is too small to be divided among so many.
    """
    found = list[Limits]()
    for name in Shards({queue: was}).all_of(queue):
        found.append((yield from read_limits(make(name))))
    whole, shards = merged(found), Shards({queue: count})
    by_hand = {
        field: value
        for field, value in whole.fields().items()
        if value is not None and (field not in whole.declared or whole.overruled(field))
    }
    return Gate({name: shards.divide(by_hand, name) for name in shards.all_of(queue)}, whole.paused is not None)


def pause(make: MakeStore, gate: Gate) -> Operation[None]:
    """Pause all shards if the queue is paused. It may be done any number of times."""
    for name in gate.shares if gate.paused else ():
        left = 1
        while left:
            _, _, left = yield from send(make(name).pause())


def limit(make: MakeStore, gate: Gate) -> Operation[None]:
    """Set the limits."""
    for name, shares in gate.shares.items():
        if shares:
            yield from send(make(name).limit(shares))
