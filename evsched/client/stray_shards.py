"""Shards of a queue beyond their number, which no worker serves any more.

They are there after the number was lowered, if a program still names the larger one. A queue with such a name is one of
its own if a worker serves it that does not serve the queue itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from evsched.client.operations import Operation, find_queues, send
from evsched.client.spread import MakeStore
from evsched.shards import Shards
from evsched.store.store import Store


def stray_shards(make: MakeStore, shards: Shards, queue: str) -> Operation[list[str]]:
    """Return the names of the shards that a queue has beyond their number, whether they hold jobs or not."""
    if queue not in shards.counts:
        return []
    return (yield from not_of_their_own(make, queue, shards.beyond(queue, (yield from find_queues()))))


def not_of_their_own(make: MakeStore, queue: str, names: Sequence[str]) -> Operation[list[str]]:
    """Return those of the names that no worker serves which does not serve the queue."""
    found, ours = list[str](), (yield from serving(make(queue))) if names else set[str]()
    for name in names:
        if not (yield from serving(make(name))) - ours:
            found.append(name)
    return found


def serving(store: Store) -> Operation[set[str]]:
    """Return the workers of a queue whose leases have not ended, and the parents that stand by."""
    survey = yield from send(store.survey())
    now = (yield from send(store.queue_stats())).now
    parents = yield from send(store.parents())
    alive = {lease.worker for lease in survey.leases if lease.left > 0}
    return alive | {name for name, ends in parents if ends > now}
