"""Operations on the gate of a queue and its shards: pauses and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, TypedDict

from msgspec import structs

from evsched import keys
from evsched.client.operations import Operation, Send, send
from evsched.client.option_values import seconds, unix
from evsched.client.spread import change
from evsched.errors import ConfigError, StoreError
from evsched.jobs import groups
from evsched.jobs.option_checks import invalid
from evsched.shards import Shards
from evsched.store.gate_limits import Limits, field
from evsched.store.gate_limits import check as check_limits
from evsched.store.server import clock
from evsched.store.store import Store

_WHY_MOST: Final = 500
"""Characters of the reason of a pause."""


class LimitOptions(TypedDict, total=False):
    """Limits to set. None removes a limit; the others stay as they are."""

    concurrency: float | None
    """How many jobs may run at the same time, over all workers."""
    rate: float | None
    """How many jobs may start in a second."""
    burst: float | None
    """How many jobs of the rate may start at once."""
    weight: float | None
    """A group's share of the queue."""
    history: float | None
    """How many ended jobs the queue lists."""
    history_age: timedelta | float | None
    """For how long after the last one it lists them: a timedelta, or seconds."""


def pause(stores: Sequence[Store], until: datetime | float | None, why: str) -> Operation[tuple[float, int]]:
    """Pause a queue; return since when it is paused, and how many jobs went back to the backlog.

    `stores`: those of the queue's shards and, last, of the queue itself.

    Raises:
        ConfigError: the moment has passed, or the reason is too long.
        ShardsDown: as `change`.
    """
    end = None if until is None else unix("until", until)

    def pause_one(store: Store) -> Operation[tuple[float, int]]:
        back = 0
        while True:
            since, put, left = yield from send(store.pause(until=end, why=why))
            back += put
            if not left:
                return since, back

    pauses = yield from change(stores, pause_one, "paused", check_pause(stores[-1], end, why))
    return pauses[-1][0], sum(back for _, back in pauses)


def check_pause(store: Store, until: float | None, why: str) -> Operation[None]:
    """Check when a pause is to end, and why it is made.

    Raises:
        ConfigError: the moment has passed, or the reason is too long or not a string.
    """
    if not isinstance(why, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a program may pass anything
        raise invalid("why", why, "a string")
    if len(why) > _WHY_MOST:
        raise ConfigError(f"why has {len(why)} characters: at most {_WHY_MOST}")
    if until is not None and until <= (yield from send(clock(keys.root(store.queue)))):
        raise ConfigError("until has passed: give a moment in the future")


def resume(stores: Sequence[Store]) -> Operation[float | None]:
    """Resume a queue; return since when it was paused, None if it was not.

    Raises:
        ShardsDown: as `change`.
    """
    pauses = yield from change(stores, lambda store: send(store.resume()), "resumed")
    return max((since for since in pauses if since is not None), default=None)


def limit_fields(
    group: str | None, task: str | None, given: Mapping[str, timedelta | float | None]
) -> dict[str, float | None]:
    """Return limits by the fields that `set_limits` takes.

    Raises:
        ConfigError: a value is not valid, or both a group and a task are given.
    """
    if task is not None:
        if group is not None:
            raise ConfigError("give either a group or a task: a limit holds for one of them")
        group = groups.of_task(task)
    found = dict[str, float | None]()
    for name, value in given.items():
        if isinstance(value, timedelta):
            value = seconds(name, value) if name == "history_age" else None
            if value is None:
                raise invalid(name, given[name], "a number")
        found[field(name, group, value)] = value
    return found


def note_setting(store: Store) -> Operation[None]:
    """Have the relays of the ledger copy the settings of a queue, because one was changed."""
    try:
        yield Send(store.note_setting())
    except StoreError:
        pass  # such as a right that is missing: a relay finds the change with its next look at all rows


def set_limits(stores: Sequence[Store], fields: Mapping[str, float | None]) -> Operation[list[Limits]]:
    """Set limits of a queue and its shards, to each its part; return all limits of each, and those of the code.

    `stores`: as above.

    Raises:
        ConfigError: a limit cannot be divided among them; then none is set.
        ShardsDown: as `change`.
    """
    removed = {name: None for name, value in fields.items() if value is None}
    given = {name: value for name, value in fields.items() if value is not None}
    shards = Shards({stores[-1].queue: len(stores) - 1})
    divided = [shards.divide(given, store.queue) if len(stores) > 1 else given for store in stores]
    for part in divided:
        check_limits(part)
    parts = {store.queue: removed | part for store, part in zip(stores, divided, strict=True)}

    def set_one(store: Store) -> Operation[Limits]:
        limits = yield from send(store.limit(parts[store.queue], whole=fields))
        yield from note_setting(store)
        return limits

    if fields:
        found = yield from change(stores, set_one, "given their parts of the new limits")
    else:
        found = list[Limits]()
        for store in stores:
            found.append((yield from send(store.limit())))
    for at, store in enumerate(stores):
        found[at] = structs.replace(found[at], declared=(yield from send(store.declared_limits())))
    return found
