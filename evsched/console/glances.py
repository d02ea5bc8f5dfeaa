"""Which of many queues have recurrences, or jobs on the schedule: a few calls ask for all, for all pages."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from typing import Final

from evsched.console.page import MeteredClient
from evsched.store.dispatcher_calls import Seen
from evsched.store.many_queues import read_glances

_AGAIN: Final = 5.0
"""Seconds for which the answers are kept."""


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
        seen = await read_glances(client.send, client.find_node, queues)
        self._at, self._asked, self._seen = time.monotonic(), frozenset(queues), seen

    def recurring(self, queues: Sequence[str]) -> list[str]:
        """Return the queues that have recurrences."""
        return [queue for queue in queues if (seen := self._seen.get(queue)) is not None and seen.recurs]

    def with_batches(self, queues: Sequence[str]) -> list[str]:
        """Return the queues that are homes of batches."""
        return [queue for queue in queues if (seen := self._seen.get(queue)) is not None and seen.batches]

    def scheduled(self, client: MeteredClient, queues: Sequence[str]) -> list[str]:
        """Return the queues that have jobs on the schedule, or shards, where the jobs may be."""
        return [
            queue
            for queue in queues
            if len(client.stores(queue)) > 1
            or ((seen := self._seen.get(queue)) is not None and seen.nearest is not None)
        ]
