"""The set of all queues in Redis, which this dispatcher keeps complete: it may be flushed, deleted or lost.

Dispatchers and workers write the set, not the scripts: in a Redis Cluster a script reaches only the slot of its queue,
and this set is in another one. There the set may be down while the queues are not: a dispatcher then does without it,
and reads it again a safety cap later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from evsched import events
from evsched.errors import StoreError
from evsched.runtime.runtime import Runtime
from evsched.store import server
from evsched.store.dispatcher_calls import GLANCE_MOST
from evsched.store.store import Store

_SLICE: Final = 1000
"""Names that one call reads or writes: about 0.3 ms of Redis's time."""


class QueueSet:
    """Reads the set, and adds the queues that this dispatcher knows and the set does not contain."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._queues = set(runtime.config.queues)
        """The queues that belong in the set: they were found and are not at rest, or the settings name them."""
        self._written = set[str]()
        """What the set contained when it was last read, and what was added since."""
        self._to_add = set(self._queues)
        """The queues that belong in the set and are not in `_written`."""
        self._to_remove = set[str]()

    def add(self, queue: str) -> bool:
        """Have `write` add a queue; return False if it is in the set already."""
        self._queues.add(queue)
        self._to_remove.discard(queue)
        if queue in self._written:
            return False
        self._to_add.add(queue)
        return True

    def rest(self, queue: str) -> None:
        """Do not add a queue that the set lacks, because the queue is empty."""
        self._queues.discard(queue)
        self._to_add.discard(queue)

    def remove(self, queues: Iterable[str]) -> None:
        """Have `write` remove queues, unless they are added again before that."""
        self._to_remove.update(queues)

    async def write(self) -> list[str]:
        """Add the queues that are missing and forget the queues that are to be removed.

        Return the queues that stay, because they have something, or had workers in the last day. The notes of former
        workers about their apps are deleted with a queue.

        A queue that is added while it is being removed is missing afterwards, so the next `write` adds it. If another
        dispatcher or a worker has added it meanwhile, that one adds it again when it next reads or writes the set.

        Raises:
            StoreRefused: the failure concerns more than the set.
        """
        gone = sorted(self._to_remove)
        self._to_remove.clear()
        self._queues.difference_update(gone)
        self._written.difference_update(gone)
        self._to_add.difference_update(gone)
        names = sorted(self._to_add)
        send, kept = self._runtime.sender.send, set(gone)
        try:
            for first in range(0, len(gone), GLANCE_MOST):
                forgotten = await send(Store(gone[first]).forget(gone[first : first + GLANCE_MOST]))
                if forgotten:
                    await send(server.remove_queues(forgotten))
                    kept.difference_update(forgotten)
            for first in range(0, len(names), _SLICE):
                await send(server.add_queues(names[first : first + _SLICE]))
        except StoreError as error:
            if not server.set_may_wait(error):
                self._to_remove |= kept - self._queues
                raise
            self._runtime.emit(events.RedisFailed(kind=error.kind))
        # Failed ones too: the next `read` corrects this, and they are added again.
        self._written.update(names, kept)
        self._to_add.difference_update(names)
        return sorted(kept)

    async def read(self) -> set[str] | None:
        """Return the queues in the set; None if it cannot be read: its node is down, or Redis refuses."""
        names, cursor = set[str](), None
        try:
            while cursor != 0:
                cursor, some = await self._runtime.sender.send(server.some_queue_names(cursor or 0))
                names.update(some)
        except StoreError as error:
            self._runtime.emit(events.RedisFailed(kind=error.kind))
            return None
        self._written, self._to_add = names, self._queues - names
        return names

    async def changed(self) -> bool:
        """Return whether to read the set again. If it is large, its size tells, as it takes many calls to read it."""
        if len(self._written) <= _SLICE:
            return True
        try:
            return await self._runtime.sender.send(server.count_queues()) != len(self._written)
        except StoreError:
            return True  # `read` meets the same error and reports it
