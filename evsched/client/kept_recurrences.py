"""Operations that read the recurrences of a queue as their records have them, whatever these hold."""

from __future__ import annotations

from typing import Final

from evsched.client.operations import Operation, send
from evsched.errors import StoreRefused
from evsched.recurrence.look_ahead import Standing, counted_from, put_ahead, read_standing
from evsched.store.store import Store

_SLICE: Final = 500


def kept(store: Store, most: int | None = None) -> Operation[list[tuple[str, float, dict[str, bytes]]]]:
    """Return the recurrences of a queue, at `most` so many: name, next planned time, record."""
    found = list[tuple[str, float, dict[str, bytes]]]()
    while most is None or len(found) < most:
        size = _SLICE if most is None else min(_SLICE, most - len(found))
        rows = yield from send(store.recurrences(len(found), size))
        for name, at in rows:
            found.append((name, at, (yield from read_record(store, name))))
        if len(rows) < size:
            break
    return found


def read_record(store: Store, name: str) -> Operation[dict[str, bytes]]:
    """Return the record of a recurrence, empty if there is none. If its key is of another type, that is its reason."""
    try:
        return (yield from send(store.recurrence(name)))
    except StoreRefused as error:
        if error.kind != "wrongtype":
            raise
        return {"reason": b"its key is not a hash"}


def find_standing(store: Store, at: float, fields: dict[str, bytes]) -> Operation[Standing]:
    """Return how far a recurrence has got: `at` is its score, which was read before the record.

    It asks which of the latest occurrences are still there.
    """
    under_way = False
    for job_id in counted_from(fields):
        status = yield from send(store.look(job_id))
        if status is not None and status.place not in ("finished", "dead"):
            under_way = True
            break
    gone = set[str]()
    for job_id in put_ahead(fields):
        if (yield from send(store.look(job_id))) is None:  # cancelled
            gone.add(job_id)
    return read_standing(at, fields, under_way, gone)


def is_retired(at: float, fields: dict[str, bytes]) -> bool:
    """Tell whether a recurrence stands still because the code no longer declares it."""
    return "retired" in fields and at == float("inf")


def waiting_requests(store: Store, name: str, fields: dict[str, bytes]) -> Operation[int]:
    """Count the requested runs of a recurrence that wait. Most have none, and are not asked."""
    if not {"requested", "paused"} & fields.keys():
        return 0
    try:
        return (yield from send(store.requests(name)))
    except StoreRefused as error:
        if error.kind != "wrongtype":
            raise
        return 0
