"""The batches of queues, as the pages of a console share them: lists that are read a slice at a time, and rates."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from math import inf
from typing import Final

from msgspec import Struct

from evsched.batches.member import Member
from evsched.batches.pace import Pace
from evsched.console.glances import QueueGlances
from evsched.console.page import MeteredClient
from evsched.console.turns import Turns, step_each
from evsched.errors import StoreRefused
from evsched.store.batch_calls import BatchRecord
from evsched.store.operator_calls import Match

_SLICE: Final = 200
"""Batches that a call reads: 2 ms."""

_MOST: Final = 5000
"""Batches of a queue that are listed, the newest ones."""

_LOOK: Final = 0.12
"""Seconds for which one reading of a page reads batches."""

_AGAIN: Final = 5.0
"""Seconds after which a queue is read again."""

_WATCHED: Final = 200
"""Batches whose last readings are kept."""


class _QueueBatches:
    """The batches whose home is one queue."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.ended = -inf
        self.rows = list[BatchRecord]()
        self.total = 0
        self.problem = ""
        """Why Redis refused to read them."""
        self._going = dict[str, BatchRecord]()
        self._read = 0

    def is_due(self) -> bool:
        return self._read > 0 or time.monotonic() - self.ended > _AGAIN

    def is_begun(self) -> bool:
        return self._read > 0

    async def step(self, client: MeteredClient) -> None:
        try:
            part = await client.send(client.store(self.queue).batch_list(self._read, _SLICE))
            self.problem = ""
        except StoreRefused as error:  # this queue only
            self._going, self._read = {}, 0
            self.problem, self.ended = str(error), time.monotonic()
            return
        self._going |= {record.id: record for record in part.batches}
        self._read, self.total = self._read + part.read, part.total
        if part.read < _SLICE or self._read >= _MOST:
            self.rows, self._going, self._read = [*self._going.values()], {}, 0
            self.ended = time.monotonic()
        elif self.ended == -inf:
            self.rows = [*self._going.values()]


class FirstFailures(Struct):
    """The first failures of a batch, as they were read last."""

    counts: tuple[int, ...]
    at: float
    rows: list[tuple[Member, Match | None]]


class BatchLists:
    """All batches that a console knows, which all viewers share."""

    def __init__(self) -> None:
        self._queues = dict[str, _QueueBatches]()
        self._turns, self._glances = Turns(step_each), QueueGlances()
        self._paces = OrderedDict[tuple[str, str], Pace]()
        self.failures = OrderedDict[tuple[str, str], FirstFailures]()

    async def look(self, client: MeteredClient, queues: Sequence[str]) -> list[BatchRecord]:
        """Read for a short time, and return the batches of some queues."""
        await self._glances.look(client, queues)
        read = self._of(queues)
        await self._turns.look(client, read, _LOOK)
        return [record for one in read for record in one.rows]

    def _of(self, queues: Sequence[str]) -> list[_QueueBatches]:
        homes = self._glances.with_batches(queues)
        return [self._queues.setdefault(queue, _QueueBatches(queue)) for queue in homes]

    def unread(self, queues: Sequence[str]) -> list[tuple[str, str]]:
        """Return the queues that were not read to their end yet, or that Redis refused to read; and why."""
        return [(one.queue, one.problem) for one in self._of(queues) if one.problem or one.ended == -inf]

    def unlisted(self, queues: Sequence[str]) -> int:
        """Return how many batches are left out, since their queues have too many."""
        return sum(max(0, one.total - _MOST) for one in self._of(queues))

    def pace(self, record: BatchRecord) -> Pace:
        """Note a reading of a batch, and return its rate."""
        key = record.queue, record.id
        pace = self._paces.setdefault(key, Pace())
        self._paces.move_to_end(key)
        pace.note(time.monotonic(), record.total - record.open)
        while len(self._paces) > _WATCHED:
            self._paces.popitem(last=False)
        return pace

    def keep_failures(self, key: tuple[str, str], found: FirstFailures) -> None:
        self.failures[key] = found
        while len(self.failures) > _WATCHED:
            self.failures.popitem(last=False)
