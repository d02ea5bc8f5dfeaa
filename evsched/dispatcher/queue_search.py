"""Finds the queues that a loop must look after: one call tells it of many queues, most of which it may leave alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Container

from evsched.dispatcher.served_queues import ServedQueues
from evsched.errors import MOVING, StoreError
from evsched.runtime.runtime import Runtime
from evsched.store.dispatcher_calls import GLANCE_MOST, Seen
from evsched.store.store import Store


class Search:
    """Glances at all served queues once in `interval` seconds, and at new ones soon. `needs(seen)`: it is a find."""

    def __init__(self, runtime: Runtime, served: ServedQueues, interval: float, needs: Callable[[Seen], bool]) -> None:
        self._runtime = runtime
        self._served = served
        self._interval = interval
        self._needs = needs
        self._new = set[str]()
        self._all_at = 0.0

    def add(self, queue: str) -> None:
        """Glance at a queue soon."""
        self._new.add(queue)

    def restart(self) -> None:
        """Glance at all queues soon."""
        self._all_at = 0.0

    def at(self) -> float:
        """Return when to call `find` next, by the monotonic clock."""
        return 0.0 if self._new else self._all_at

    async def find(self, known: Container[str] = ()) -> list[str]:
        """Return the queues that the loop must look after, without those that it is `known` to look after.

        Raises:
            StoreDown, StoreRefused: the next call glances at the same queues again.
        """
        now, new = time.monotonic(), self._new
        whole, self._new = self._all_at <= now, set[str]()
        if whole:
            self._all_at = now + self._interval
        queues = [queue for queue in (self._served.queues if whole else sorted(new)) if queue not in known]
        found = list[str]()
        try:
            for first in range(0, len(queues), GLANCE_MOST):
                found += await self._glance(queues[first : first + GLANCE_MOST])
        except BaseException:
            self._new |= new
            if whole:
                self._all_at = 0.0
            raise
        return found

    async def _glance(self, queues: list[str]) -> list[str]:
        try:
            glance = await self._runtime.sender.send(Store(queues[0]).glance(queues))
        except StoreError as error:
            if error.kind != MOVING:
                raise
            return queues  # the slot of the first moves in a cluster: look at each by itself
        return [queue for queue, seen in glance.seen.items() if self._needs(seen)]
