"""Finishes the moves of jobs between the shards of a queue that somebody has begun and perhaps does not go on with."""

from __future__ import annotations

from collections.abc import Sequence

from evsched.client.operations import Operation, send, send_and_wait
from evsched.client.spread import MakeStore
from evsched.errors import StoreRefused
from evsched.store.moves import Batch, Vacated
from evsched.store.store import Store
from evsched.transport.call import Call, T


def finish_moves(make: MakeStore, stores: Sequence[Store]) -> Operation[int]:
    """Finish the batches that leave these queues; return how many jobs were on their way."""
    found = 0
    for store in stores:
        if batch := (yield from send(store.depart())).batch:
            yield from finish(make, store, batch)
            found += len(batch.jobs)
    return found


def finish(make: MakeStore, store: Store, batch: Batch) -> Operation[Vacated]:
    """Finish a batch that leaves a queue. Raises as `send_safely`."""
    to = make(batch.to)
    arrival = yield from send_safely(to.arrive(store.queue, batch), to, store)
    return (yield from send(store.vacate(batch, arrival)))


def send_safely(call: Call[T], store: Store, beside: Store, *, on_disk: bool = True) -> Operation[T]:
    """Send a call of one of the two queues of a move, and return when its write is safe: see `Primary.safe`.

    Raises:
        StoreDown: also when no replica confirms the write.
    """
    try:
        primary = yield from send(store.primary())
    except StoreRefused as error:
        if error.kind == "noperm":
            raise
        return (yield from send(call))  # there is no cluster, so both queues are on one server
    wait = primary.safe(store.queue, beside.queue, on_disk=on_disk)
    if wait is None:
        return (yield from send(call))
    value, safe = yield from send_and_wait(call, wait)
    primary.check_safe(store.queue, safe)
    return value
