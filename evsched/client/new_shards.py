"""The policy of a queue with shards when their number changes: its pause, and its limits.

Each shard gets its new part, of the limits that were set by hand and of the declared ones. A new shard gets
exactly this: it may have been a shard before, and have something else. The jobs of batches that are paused wait in it,
too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, structs

from evsched import keys
from evsched.client.operations import Operation, send
from evsched.errors import ConfigError
from evsched.shards import Shards
from evsched.store import server
from evsched.store.batch_pauses import HOLD_WITHIN
from evsched.store.gate_limits import (
    DeclaredLimit,
    Limits,
    Reserved,
    merged,
    own,
    paused_as,
    still_reserved,
    undivided,
)
from evsched.store.store import Store


class Gates(Struct, frozen=True):
    """The pauses and limits to set in each part of a queue, by its name."""

    queue: str
    count: int
    new: dict[str, Limits]
    """The shards that it did not have before."""
    old: dict[str, Limits]
    """The others, whose pauses stay as they are."""
    wholes: dict[str, float] = {}
    """The limits of the whole queue, by their fields."""


def read_limits(store: Store) -> Operation[Limits]:
    """Return the limits of one queue, with the limits that apps declare."""
    limits = yield from send(store.limits())
    return structs.replace(limits, declared=(yield from send(store.declared_limits())))


def plan(queue: str, was: int, count: int, redeclares: str | None = None) -> Operation[Gates]:
    """Return the policy when a queue has `count` shards instead of `was`.

    `redeclares`: the app whose workers are about to declare its limits; the present ones may be too small to divide.

    Raises:
        ConfigError: a limit is too small to be divided.
    """
    before = dict[str, Limits]()
    for name in Shards({queue: was}).all_of(queue):
        before[name] = yield from read_limits(Store(name))
    whole, shards = merged([*before.values()]), Shards({queue: count})
    declared = {field: limit.value if limit.whole is None else limit.whole for field, limit in whole.declared.items()}
    for field in [field for field, limit in whole.declared.items() if limit.app == redeclares]:
        try:
            shards.divide({field: declared[field]}, queue)
        except ConfigError:
            del declared[field]
    found = Gates(queue, count, {}, {}, {field: value for field, value in whole.fields().items() if value is not None})
    for name in shards.all_of(queue):
        part = _part(whole, declared, shards, name)
        if name in before:
            found.old[name] = _with(part, before[name], whole)
        else:
            found.new[name] = paused_as(whole, part)
    return found


def _part(whole: Limits, declared: Mapping[str, float], shards: Shards, name: str) -> Limits:
    """Return the part of the limits of a queue that is to hold in one of its parts."""
    shares = shards.divide(declared, name)
    found = Limits(
        declared={
            field: DeclaredLimit(
                share, whole.declared[field].app, None if share == declared[field] else declared[field]
            )
            for field, share in shares.items()
        }
    )
    fields = whole.fields()
    in_force = {
        field: declared[field] if field in declared and not whole.overruled(field) else value
        for field, value in fields.items()
        if value is not None and (field in declared or field not in whole.declared or whole.overruled(field))
    }
    for field, share in shards.divide(in_force, name).items():
        found.add(field, share)
    return found


def _with(part: Limits, before: Limits, whole: Limits) -> Limits:
    """Add the limits that only this part has, and the limits that cannot be divided."""
    alone = own(before, whole)
    declared = {field: limit for field, limit in before.declared.items() if field not in part.declared}
    found = structs.replace(paused_as(before, part), declared=part.declared | declared)
    kept = {field for field in declared if field in whole.declared and not whole.overruled(field)}
    for field, value in before.fields().items():
        if value is not None and (field in kept or field in alone.fields()):
            found.add(field, value)
    return found


def open_new(gates: Gates) -> Operation[None]:
    """Have the pause and the limits hold for the new shards, before programs know of them.

    All of their concurrency is reserved until `settle`, since older parts still have the limits of before. It may be
    done any number of times; it ends when somebody else has written the number, and so has done it.
    """
    for name, limits in gates.new.items():
        if (yield from send(server.shards())).get(gates.queue, 0) >= gates.count:
            return
        yield from hold(Store(name), limits, gates.wholes)
        yield from _hold_batches(Store(gates.queue), [Store(name)], exactly=True)


def settle(queue: str, count: int) -> Operation[bool]:
    """Let new shards use the room that older parts of the queue leave; return whether that is all of their limits.

    If a change of the number was interrupted, it first gives the older parts their limits. While jobs that began
    before run in the older parts beyond these, dispatchers go on (`evsched/dispatcher/janitor.py`).
    """
    shards, parts = Shards({queue: count}), dict[str, tuple[Limits, dict[str, int]]]()
    # A batch may have been paused, or resumed, since the shards were made and before their number was written.
    yield from _hold_batches(Store(queue), [Store(name) for name in shards.all_of(queue) if name != queue])
    for name in shards.all_of(queue):
        limits = yield from send(Store(name).limits())
        parts[name] = limits, (yield from send(Store(name).in_flight()))
    if lacking := undivided(shards, queue, {name: limits for name, (limits, _) in parts.items()}):
        for name, limits in lacking.items():
            yield from send(Store(name).limit(limits))
        return (yield from settle(queue, count))
    reserved = still_reserved(parts)
    for name, of_part in reserved.items():
        yield from send(Store(name).reserve(of_part))
    return not any(reserved.values())


def divide_again(gates: Gates) -> Operation[None]:
    for name, limits in gates.old.items():
        yield from hold(Store(name), limits)


def hold(store: Store, limits: Limits, wholes: Mapping[str, float] | None = None) -> Operation[None]:
    """Have a queue have this pause and these limits, and no others.

    `wholes`: the queue is a new shard, and all of its concurrency is reserved.
    """
    present = yield from read_limits(store)
    reserved = {
        field: Reserved((value or 0.0) if field.partition(":")[0] == "concurrency" else 0.0, wholes[field])
        for field, value in limits.fields().items()
        if wholes and field in wholes
    }
    if reserved != present.reserved and (wholes is not None or not limits.fields()):
        yield from send(store.reserve(reserved))
    if reserved:
        # Jobs that are ready have passed the gate without a limit: they were scheduled before the number was written.
        yield from _pause(store, limits)
        present = structs.replace(present, paused=present.paused or 0.0)
    if gone := [field for field in present.declared if field not in limits.declared]:
        yield from send(store.forget_declared(gone))
    if limits.declared:
        yield from send(store.note_declared(limits.declared))
    fields = {field: value for field, value in limits.fields().items() if value is not None}
    removed = {field: None for field, value in present.fields().items() if value is not None and field not in fields}
    if fields or removed:
        yield from send(store.limit(removed | fields))
    if limits.paused is None and present.paused is not None:
        yield from send(store.resume())
    if limits.paused is not None:
        yield from _pause(store, limits)


def _hold_batches(store: Store, shards: Sequence[Store], *, exactly: bool = False) -> Operation[None]:
    """Hold the jobs of batches in shards as in the queue itself; `exactly`: and no others."""
    held = yield from send(store.held_batches())
    known = {hold.address for hold in held}
    for shard in shards:
        others = (yield from send(shard.held_batches())) if exactly else []
        holds = [*held, *(hold._replace(held="-") for hold in others if hold.address not in known)]
        if holds:
            now = yield from send(server.clock(keys.root(shard.queue)))
            yield from send(shard.batch_hold(now + HOLD_WITHIN, holds))


def _pause(store: Store, limits: Limits) -> Operation[None]:
    left = 1
    while left:
        pause = store.at(limits.paused).pause(until=limits.paused_until, why=limits.paused_why or "")
        _, _, left = yield from send(pause)
