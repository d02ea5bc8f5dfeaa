"""The recurrences of a queue, as commands read them."""

from __future__ import annotations

from typing import Final

from evsched.client.sync_client import SyncClient
from evsched.errors import StoreRefused
from evsched.store.store import Store

_SLICE: Final = 500


def kept(redis: SyncClient, queue: str) -> list[tuple[str, float, dict[str, bytes]]]:
    """Return the recurrences of a queue: name, next planned time, record."""
    store, found = Store(queue), list[tuple[str, float, dict[str, bytes]]]()
    while True:
        rows = redis.send(store.recurrences(len(found), _SLICE))
        found += [(name, at, _record(redis, store, name)) for name, at in rows]
        if len(rows) < _SLICE:
            return found


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


def _record(redis: SyncClient, store: Store, name: str) -> dict[str, bytes]:
    try:
        return redis.send(store.recurrence(name))
    except StoreRefused as error:
        if error.kind != "wrongtype":
            raise
        return {"reason": b"its key is not a hash"}
