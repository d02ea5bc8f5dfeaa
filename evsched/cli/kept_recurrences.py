"""The recurrences of a queue, as commands read them."""

from __future__ import annotations

from typing import Final

from evsched.client.sync_client import SyncClient
from evsched.errors import StoreRefused
from evsched.recurrence.look_ahead import Standing, counted_from, put_ahead, read_standing
from evsched.store.store import Store

_SLICE: Final = 500


def kept(redis: SyncClient, queue: str) -> list[tuple[str, float, dict[str, bytes]]]:
    """Return the recurrences of a queue: name, next planned time, record."""
    store, found = Store(queue), list[tuple[str, float, dict[str, bytes]]]()
    while True:
        rows = redis.send(store.recurrences(len(found), _SLICE))
        found += [(name, at, record_of(redis, store, name)) for name, at in rows]
        if len(rows) < _SLICE:
            return found


def find_standing(redis: SyncClient, queue: str, at: float, fields: dict[str, bytes]) -> Standing:
    """Return how far a recurrence has got: `at` is its score, which was read before the record.

    It asks which of the latest occurrences are still there.
    """
    statuses = (redis.status(queue, job_id) for job_id in counted_from(fields))
    under_way = any(status is not None and status.place not in ("finished", "dead") for status in statuses)
    gone = {job_id for job_id in put_ahead(fields) if redis.status(queue, job_id) is None}  # cancelled
    return read_standing(at, fields, under_way, gone)


def is_retired(at: float, fields: dict[str, bytes]) -> bool:
    """Tell whether a recurrence stands still because the code no longer declares it."""
    return "retired" in fields and at == float("inf")


def waiting_requests(redis: SyncClient, queue: str, name: str, fields: dict[str, bytes]) -> int:
    """Count the requested runs of a recurrence that wait. Most have none, and are not asked."""
    if not {"requested", "paused"} & fields.keys():
        return 0
    try:
        return redis.send(Store(queue).requests(name))
    except StoreRefused as error:
        if error.kind != "wrongtype":
            raise
        return 0


def record_of(redis: SyncClient, store: Store, name: str) -> dict[str, bytes]:
    """Return the record of a recurrence, empty if there is none. If its key is of another type, that is its reason."""
    try:
        return redis.send(store.recurrence(name))
    except StoreRefused as error:
        if error.kind != "wrongtype":
            raise
        return {"reason": b"its key is not a hash"}
