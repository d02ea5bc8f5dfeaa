"""Which of many queues have recurrences, or jobs on the schedule: one call for 250, so that no page asks each."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from typing import Final

from evsched import keys
from evsched.client.operations import node_of
from evsched.console.page import MeteredClient
from evsched.errors import StoreRefused
from evsched.store.dispatcher_calls import Seen
from evsched.transport.address import Host

_AGAIN: Final = 5.0
"""Seconds for which the answers are kept."""

_AT_ONCE: Final = 250
"""Queues of one call: 2 ms."""

_UNKNOWN: Final = Seen(nearest=0.0, gated=True, workers=True, recurs=True, chores=True)
"""A queue that cannot be looked at so: it may have anything."""


class QueueGlances:
    """The results of the last glance at each queue."""

    def __init__(self) -> None:
        self._at = -inf
        self._asked = frozenset[str]()
        self._seen = dict[str, Seen]()

    async def look(self, client: MeteredClient, queues: Sequence[str]) -> None:
        """Look again if it is time to, or if a queue is new."""
        if time.monotonic() - self._at < _AGAIN and self._asked.issuperset(queues):
            return
        by_node = dict[Host | None, list[str]]()
        for queue in queues:
            by_node.setdefault(await client.run(node_of(keys.root(queue))), []).append(queue)
        seen = dict[str, Seen]()
        for names in by_node.values():
            for at in range(0, len(names), _AT_ONCE):
                some = names[at : at + _AT_ONCE]
                try:
                    seen |= (await client.send(client.store(some[0]).glance(some))).seen
                except StoreRefused:
                    seen |= dict.fromkeys(some, _UNKNOWN)
        self._at, self._asked, self._seen = time.monotonic(), frozenset(queues), seen

    def recurring(self, queues: Sequence[str]) -> list[str]:
        """Return the queues that have recurrences."""
        return [queue for queue in queues if (seen := self._seen.get(queue)) is not None and seen.recurs]

    def scheduled(self, client: MeteredClient, queues: Sequence[str]) -> list[str]:
        """Return the queues that have jobs on the schedule, or shards, where the jobs may be."""
        return [
            queue
            for queue in queues
            if len(client.stores(queue)) > 1
            or ((seen := self._seen.get(queue)) is not None and seen.nearest is not None)
        ]
