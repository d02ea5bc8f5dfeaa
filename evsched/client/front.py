"""The first jobs of a place, the next to run first; of the dead-letter set, those that died first."""

from __future__ import annotations

from evsched.client import sweep
from evsched.client.operations import Operation, send
from evsched.client.sweep import Waiting
from evsched.store.matching import Match
from evsched.store.store import Store


def front(store: Store, place: Waiting, limit: int) -> Operation[list[Match]]:
    """Return the first `limit` jobs of a place; of the backlog, also those of each group that its own limits hold."""
    if place == "ready":
        ids = yield from send(store.line(limit))
        return (yield from sweep.describe(store, place, [(job, None) for job in ids]))
    found = yield from _described(store, place, (yield from send(store.front(place, limit))))
    if place == "backlog":
        for group in (yield from send(store.throttled())):
            held = yield from send(store.front(place, limit, group=group))
            found += yield from _described(store, f"{place}:{group}", held)
    return found


def _described(store: Store, key: str, scored: list[tuple[str, float]]) -> Operation[list[Match]]:
    """Describe jobs by their ids and scores. The scores of the backlog are no times."""
    in_backlog = key.partition(":")[0] == "backlog"
    return (yield from sweep.describe(store, key, [(job, None if in_backlog else score) for job, score in scored]))
