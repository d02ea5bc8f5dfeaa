"""The set of all queues in Redis, and what this dispatcher knows of it.

Dispatchers and workers write the set, not the scripts: in a Redis Cluster a script reaches only the slot of its queue,
and this set is in another one.
"""

from __future__ import annotations

from evsched import events
from evsched.errors import StoreError, StoreRefused
from evsched.runtime.runtime import Runtime
from evsched.store import server


class QueueSet:
    """Reads the set, and adds the queues that are not in it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._known = set[str]()
        """What the set contained when it was last read, and what was added since."""
        self._missing = set[str]()
        """What is to be added."""

    def add(self, queue: str) -> bool:
        """Have `write` add a queue; return False if it is in the set already."""
        if queue in self._known:
            return False
        self._missing.add(queue)
        return True

    async def write(self) -> None:
        """Add the queues that are missing, if there are any.

        Raises:
            StoreDown, StoreRefused: the failure concerns more than the set.
        """
        if not self._missing:
            return
        names = sorted(self._missing)
        try:
            await self._runtime.sender.send(server.add_queues(names))
        except StoreError as error:
            if not server.may_wait(error):
                raise
            self._runtime.emit(events.RedisFailed(kind=error.kind))
        self._known.update(names)
        self._missing.difference_update(names)

    async def read(self) -> list[str] | None:
        """Return the queues in the set; None if Redis refuses: a right is missing, or the key has another type.

        Raises:
            StoreDown
        """
        try:
            names = await self._runtime.sender.send(server.queue_names())
        except StoreRefused as error:
            self._runtime.emit(events.RedisFailed(kind=error.kind))
            return None
        self._known = set(names)
        return names
