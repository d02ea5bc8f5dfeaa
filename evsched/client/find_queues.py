"""Which queues there are, for those who show them all."""

from __future__ import annotations

from evsched.client.operations import Operation, send
from evsched.errors import StoreRefused
from evsched.store import server


def find_queues() -> Operation[list[str]]:
    """Return the names of all queues, sorted.

    While a dispatcher runs, it keeps their set, which is read at once. Without one the keys are read as well, since a
    queue that was made by ZADD alone is in no set yet.

    Raises:
        StoreDown, StoreRefused
    """
    found = set[str]()
    try:
        found.update((yield from send(server.queue_names())))
        if found and (yield from send(server.dispatchers())):
            return sorted(found)
    except StoreRefused:
        pass  # a right is missing, or the key is of another type: the other keys say it too
    cursor = 0
    while True:
        keys = yield from send(server.scan(cursor))
        found.update(keys.queues)
        cursor = keys.next
        if cursor == 0:
            return sorted(found)
