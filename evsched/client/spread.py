"""What a client does with a queue that may have shards: it finds the shard that has a job, or asks all of them.

`stores` are those of the queue and its shards (`Shards.all_of`), or the one store of a queue without shards: then each
of these operations does what it would do without this file, at no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evsched.client import operations, sweep
from evsched.client.operations import Operation
from evsched.client.sweep import Filter
from evsched.client.unique import Unique
from evsched.errors import JobMissing, StoreRefused
from evsched.jobs.job import JobStatus, OnConflict
from evsched.shards import NONE, Shards
from evsched.store import server
from evsched.store.clients import Cancelled, New
from evsched.store.matching import Match
from evsched.store.operators import QueueStats, merged
from evsched.store.store import Store
from evsched.transport.call import Call, T

ChangeDead = Callable[[Store, Sequence[str]], Call[list[str]]]
"""Revives or drops dead jobs by their ids: all, or none if one is not dead."""

MakeStore = Callable[[str], Store]
"""Returns the calls of a queue."""


def stores_of(shards: Shards, make: MakeStore, queue: str, job_id: str) -> list[Store]:
    """Return the stores of a queue and its shards, that of the job's home first."""
    home = shards.home(queue, job_id)
    return [make(home), *(make(name) for name in shards.all_of(queue) if name != home)]


def enqueue(
    shards: Shards,
    make: MakeStore,
    queue: str,
    jobs: Sequence[New],
    on_conflict: OnConflict | None,
    unique: Unique | None,
) -> Operation[list[float]]:
    """Put jobs on the schedules of their homes, 1,000 of each in one round trip; return their dues."""
    if not shards.counts.get(queue):
        return (yield from operations.enqueue(make(queue), jobs, on_conflict, unique))
    by_home, dues = dict[str, list[int]](), [0.0] * len(jobs)
    for at, job in enumerate(jobs):
        by_home.setdefault(shards.home(queue, job.id), []).append(at)
    for home, places in by_home.items():
        found = yield from operations.enqueue(make(home), [jobs[at] for at in places], on_conflict, unique)
        for at, due in zip(places, found, strict=True):
            dues[at] = due
    return dues


def of_job(stores: Sequence[Store], operation: Callable[[Store], Operation[T]]) -> Operation[T]:
    """Do an operation about a job where the job is, which is its home unless another client chose another shard.

    Raises:
        JobMissing: none of them has the job; what the home said.
    """
    missing: JobMissing | None = None
    for store in _twice(stores):
        try:
            return (yield from operation(store))
        except JobMissing as error:
            missing = missing or error
    assert missing is not None
    raise missing


def _twice(stores: Sequence[Store]) -> list[Store]:
    """Return the stores in the order in which a job is looked for, up to where it is found.

    Two passes: a job that moves from one shard to another may be missed by one, in which the other was asked first.
    """
    return [*stores, *stores] if len(stores) > 1 else [*stores]


def status(stores: Sequence[Store], job_id: str) -> Operation[JobStatus | None]:
    """Return where a job is and what its record says; None when there is no job of that id."""
    found: JobStatus | None = None
    for store in _twice(stores):
        found = found or (yield from operations.send(store.look(job_id)))
    return found


def cancel(stores: Sequence[Store], job_id: str) -> Operation[Cancelled]:
    """Delete a waiting job, or have its worker stop it. Raises as `of_job`."""
    return (yield from of_job(stores, lambda store: operations.send(store.cancel(job_id))))


def find(stores: Sequence[Store], matching: Filter, place: sweep.Waiting | None) -> Operation[list[Match]]:
    """Return the waiting and dead jobs that match, in no order. Raises as `sweep.find`."""
    found = list[Match]()
    for store in stores:
        found += yield from sweep.find(store, matching, place)
    return found


def change_dead(
    stores_of: Callable[[str], Sequence[Store]],
    ids: Sequence[str],
    change: ChangeDead,
) -> Operation[int]:
    """Revive or drop dead jobs by their ids, wherever they are; return how many. `stores_of`: as above, by the id.

    Raises:
        JobMissing: one of the ids is not dead; then none was changed.
    """
    by_queue = dict[str, tuple[Store, list[str]]]()
    for job_id in ids:
        stores = stores_of(job_id)
        store = stores[0] if len(stores) == 1 else (yield from _with_dead(stores, job_id))
        if store is None:  # the home says so; if the job has died meanwhile, it is changed
            store = stores[0]
            first = store.queue, by_queue.pop(store.queue, (store, list[str]()))
            by_queue = dict([first, *by_queue.items()])
        by_queue.setdefault(store.queue, (store, []))[1].append(job_id)
    changed = 0
    for store, some in by_queue.values():
        changed += len((yield from operations.send(change(store, some))))
    return changed


def _with_dead(stores: Sequence[Store], job_id: str) -> Operation[Store | None]:
    """Return which of the stores has a dead job of this id."""
    for store in stores:
        found = yield from operations.send(store.look(job_id))
        if found is not None and found.place == "dead":
            return store
    return None


def queue_stats(stores: Sequence[Store]) -> Operation[QueueStats]:
    """Return the figures of a queue and its shards, as those of one queue."""
    parts = list[QueueStats]()
    for store in stores:
        parts.append((yield from operations.send(store.queue_stats())))
    return merged(parts)


def read_shards() -> Operation[Shards]:
    """Return how many shards queues have, as Redis says; a Redis that refuses to say it has none."""
    try:
        return Shards((yield from operations.send(server.shards())))
    except StoreRefused:
        return NONE
