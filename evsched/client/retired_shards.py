"""Shards that a queue is not to have any more: what they still hold, and what is removed when they hold nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from evsched.client import new_shards
from evsched.client.operations import Operation, send
from evsched.client.spread import MakeStore
from evsched.client.stray_shards import serving
from evsched.shards import shard
from evsched.store import server


class Held(Struct, frozen=True):
    """What a shard that is to be retired still holds: how many jobs, by place."""

    shard: str
    places: dict[str, int]
    served: bool
    """Whether a worker serves it."""


def retire(make: MakeStore, queue: str, count: int, was: int, strays: Sequence[str] = ()) -> Operation[list[Held]]:
    """Lower the number of shards to `count`, or to the last one that still holds jobs. Return those that hold some."""
    held = yield from _held(make, _names(queue, count, was))
    left = _after(held) if held else count
    if left < was:
        yield from send(server.set_shards(queue, left))
        late = yield from _held(make, _names(queue, left, was))
        if late:  # a program that knows of the shards has used one meanwhile
            left = _after(late)
            yield from send(server.declare_shards(queue, left))
            held += late
    return held + (yield from _held(make, strays))


def close(make: MakeStore, gone: Iterable[str]) -> Operation[None]:
    """Remove the pauses and limits of shards that are gone."""
    for name in gone:
        yield from new_shards.clear(make(name))


def _names(queue: str, first: int, end: int) -> list[str]:
    return [shard(queue, number) for number in range(first, end)]


def _after(held: Sequence[Held]) -> int:
    """Return the number of shards that include these."""
    return int(held[-1].shard.rpartition(":")[2]) + 1


def _held(make: MakeStore, names: Iterable[str]) -> Operation[list[Held]]:
    """Return what these shards hold, those that hold nothing left out."""
    found = list[Held]()
    for store in map(make, names):
        stats = yield from send(store.queue_stats())
        on_their_way = (yield from send(store.survey())).moving is not None
        places = {place: jobs for place, jobs in stats.places.items() if jobs} | ({"moving": 1} if on_their_way else {})
        if places:
            served = bool((yield from serving(store)))
            found.append(Held(store.queue, places, served))
    return found
