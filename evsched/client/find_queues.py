"""Which queues there are, for commands that show them all."""

from __future__ import annotations

from typing import Protocol, TypeVar

from evsched.errors import StoreRefused
from evsched.store import server
from evsched.transport.call import Call

T = TypeVar("T")


class Sends(Protocol):
    """Sends one call, and waits for its reply."""

    def send(self, call: Call[T]) -> T: ...


def find_queues(sender: Sends) -> list[str]:
    """Return the names of all queues, sorted.

    While a dispatcher runs, it keeps their set, which is read at once. Without one the keys are read as well, since a
    queue that was made by ZADD alone is in no set yet.

    Raises:
        StoreDown, StoreRefused
    """
    found = set[str]()
    try:
        found.update(sender.send(server.queue_names()))
        if found and sender.send(server.dispatchers()):
            return sorted(found)
    except StoreRefused:
        pass  # a right is missing, or the key is of another type: the other keys say it too
    cursor = 0
    while True:
        keys = sender.send(server.scan(cursor))
        found.update(keys.queues)
        cursor = keys.next
        if cursor == 0:
            return sorted(found)
