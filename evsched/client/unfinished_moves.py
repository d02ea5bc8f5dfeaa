"""Finishes the moves of jobs between the shards of a queue that somebody has begun and perhaps does not go on with."""

from __future__ import annotations

from collections.abc import Sequence

from evsched.client.operations import Operation, send
from evsched.client.spread import MakeStore
from evsched.store.moves import Batch, Vacated
from evsched.store.store import Store


def finish_moves(make: MakeStore, stores: Sequence[Store]) -> Operation[int]:
    """Finish the batches that leave these queues; return how many jobs were on their way."""
    found = 0
    for store in stores:
        if batch := (yield from send(store.depart())).batch:
            yield from finish(make, store, batch)
            found += len(batch.jobs)
    return found


def finish(make: MakeStore, store: Store, batch: Batch) -> Operation[Vacated]:
    """Finish a batch that leaves a queue."""
    arrival = yield from send(make(batch.to).arrive(store.queue, batch))
    return (yield from send(store.vacate(batch, arrival)))
