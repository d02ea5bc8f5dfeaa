"""Which queues there are, for those who show them all."""

from __future__ import annotations

import math

from evsched.client.operations import Operation, nodes, send
from evsched.errors import StoreRefused
from evsched.store import server
from evsched.transport.address import Host


def find_queues(slices: float = math.inf) -> Operation[list[str]]:
    """Return the names of all queues, sorted. `slices`: how many thousand keys of each node are read at most.

    While a dispatcher runs, it keeps their set, which is read at once. Without one the keys are read as well, since a
    queue that was made by ZADD alone is in no set yet. In a cluster each node has dispatchers and keys of its own.

    Raises:
        StoreDown, StoreRefused
    """
    found, served = set[str](), False
    try:
        found.update((yield from send(server.queue_names())))
        served = bool(found)
    except StoreRefused:
        pass  # a right is missing, or the key is of another type: the other keys say it too
    for node in (yield from nodes()):
        if not (served and (yield from _has_dispatcher(node))):
            yield from _scan(node, found, slices)
    return sorted(found)


def _has_dispatcher(node: Host | None) -> Operation[bool]:
    try:
        return bool((yield from send(server.dispatchers().at(node))))
    except StoreRefused:
        return False  # a right is missing


def _scan(node: Host | None, found: set[str], slices: float) -> Operation[None]:
    """Add the queues of which a node has keys."""
    cursor = None
    while cursor != 0 and slices > 0:
        slices -= 1
        keys = yield from send(server.scan(cursor or 0).at(node))
        found.update(keys.queues)
        cursor = keys.next
