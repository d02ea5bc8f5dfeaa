"""The queues at rest: empty ones, which have no timer, and which no loop looks after until they have a schedule again.

An event ends the rest. If it was lost, a look at many of these queues in one call finds that one has a schedule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from evsched.runtime.runtime import Runtime
from evsched.store import server
from evsched.store.dispatcher_calls import GLANCE_MOST

_AT_REST: Final = 6000
"""Queues at rest that one call looks at: about 1 ms of Redis's time, and 5 ms of this process's."""

_FORGET_AFTER: Final = 3600.0
"""Seconds of rest after which a queue is forgotten, if no worker has served it for a day. Redis knows the time of the
last worker; the rest is counted in memory, so it is short enough for dispatchers that restart each day. The queue's
next event finds it again, as it finds any new queue."""

_NEVER: Final = float("inf")


class RestingQueues:
    """Looks at each queue at rest once in a safety cap. `forget`: receives queues that have been at rest for long."""

    def __init__(self, runtime: Runtime, forget: Callable[[list[str]], None]) -> None:
        self._runtime = runtime
        self._forget = forget
        self._since: dict[str, float] = {}
        """Since when each queue rests (monotonic clock). The one that was looked at longest ago comes first."""
        self._look_at = _NEVER
        """When to look at the next ones."""
        self._urgent = 0
        """How many of them to look at without a pause, because events may have been missed."""

    def __contains__(self, queue: str) -> bool:
        return queue in self._since

    def __iter__(self) -> Iterator[str]:
        return iter(self._since)

    def __len__(self) -> int:
        return len(self._since)

    def add(self, queue: str) -> None:
        """Put an empty queue at rest."""
        now = time.monotonic()
        self._look_at = min(self._look_at, now + self._runtime.config.safety_cap)
        self._since.setdefault(queue, now)

    def discard(self, queue: str) -> None:
        """End the rest of a queue, if it is at rest."""
        self._since.pop(queue, None)

    def look_soon(self) -> None:
        """Look at all of them without a pause."""
        self._urgent = len(self._since)

    def next(self) -> float:
        """Return when to call `look` next, by the monotonic clock."""
        return 0.0 if self._urgent and self._since else self._look_at

    async def look(self) -> list[str]:
        """Look whether one of some queues has a schedule; return the queues to check.

        If one has, its event was lost, and a check of all these finds it. In a cluster no command takes keys of several
        queues, so all are checked there.

        Raises:
            StoreDown, StoreRefused: the next call looks at the same queues.
        """
        cluster = self._runtime.part.node is not None
        most = GLANCE_MOST if cluster else _AT_REST
        queues = list(islice(self._since, most))
        sent = time.monotonic()
        found = False if cluster else await self._runtime.sender.send(server.any_scheduled(queues))
        old, kept = list[str](), list[str]()
        for queue in queues:
            since = self._since.pop(queue, None)
            if since is not None and (found or since >= sent - _FORGET_AFTER):
                self._since[queue] = since
                kept.append(queue)
            elif since is not None:
                old.append(queue)
        if old:
            self._forget(old)
        self._urgent = max(0, self._urgent - len(queues))
        part = min(1.0, most / len(self._since)) if self._since else _NEVER
        self._look_at = sent + part * self._runtime.config.safety_cap
        return kept if found or cluster else []
