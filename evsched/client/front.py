"""The first jobs of a place, the next to run first; of the dead-letter set, those that died first.

Shards are served side by side, so the jobs at the same rank of their backlogs, or ready lists, run at about the same
time, whatever their scores: those count within a shard.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from evsched.client import sweep
from evsched.client.operations import Operation, send
from evsched.client.sweep import Waiting
from evsched.store.operator_calls import Match
from evsched.store.store import Store


class _Entry(Struct, frozen=True):
    """A job in a place. `key`: the place, or a group's own backlog. `at`: None = the score is no time."""

    store: Store
    key: str
    id: str
    at: float | None
    rank: int


def front(stores: Sequence[Store], place: Waiting, limit: int) -> Operation[list[Match]]:
    """Return the first `limit` jobs of a place of a queue, and of its shards.

    Of the backlog, also those of each group that its own limits hold: after the others, in any number if the queue has
    no shards.
    """
    entries = list[_Entry]()
    for store in stores:
        entries += yield from _entries(store, place, limit)
    if len(stores) > 1:
        entries = sorted(entries, key=_order)[:limit]
    return (yield from _described(entries))


def _order(entry: _Entry) -> tuple[bool, float]:
    return (":" in entry.key, entry.rank if entry.at is None else entry.at)


def _entries(store: Store, place: Waiting, limit: int) -> Operation[list[_Entry]]:
    """Return the first jobs of a place of one queue."""
    if place == "ready":
        ids = yield from send(store.line(limit))
        return [_Entry(store, place, job, None, rank) for rank, job in enumerate(ids)]
    found = yield from send(store.front(place, limit))
    if place != "backlog":
        return [_Entry(store, place, job, at, rank) for rank, (job, at) in enumerate(found)]
    entries = [_Entry(store, place, job, None, rank) for rank, (job, _) in enumerate(found)]
    for group in (yield from send(store.throttled())):
        held = yield from send(store.front(place, limit, group=group))
        entries += [_Entry(store, f"{place}:{group}", job, None, rank) for rank, (job, _) in enumerate(held)]
    return entries


def _described(entries: Sequence[_Entry]) -> Operation[list[Match]]:
    """Return what is known of jobs, in this order."""
    by_key = dict[tuple[str, str], list[int]]()
    for at, entry in enumerate(entries):
        by_key.setdefault((entry.store.queue, entry.key), []).append(at)
    found = dict[int, Match]()
    for places in by_key.values():
        first = entries[places[0]]
        jobs = [(entries[at].id, entries[at].at) for at in places]
        described = yield from sweep.describe(first.store, first.key, jobs)
        found.update(zip(places, described, strict=True))
    return [found[at] for at in range(len(entries))]
