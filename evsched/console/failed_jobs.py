"""The failures of queues: dead jobs and jobs that wait for a retry, which are read and counted.

The jobs are examined in slices, as a search does, and each slice is a call of some milliseconds. All viewers share the
counts. A queue is counted again from its beginning every few seconds while somebody looks; the last counts
are shown until then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from math import inf
from typing import Final

from evsched.console.failure_sums import FailedJobs, Failures, Kind
from evsched.console.page import MeteredClient
from evsched.console.turns import Turns
from evsched.errors import StoreError, StoreRefused
from evsched.jobs.record import JobStatus
from evsched.store.many_queues import find_slices, read_queue_stats
from evsched.store.operator_calls import FindPart, Match, QueueStats, Slice, condition
from evsched.store.store import Store

_SLICES: Final = {"dead": 200, "schedule": 500}
"""Jobs that a call examines, by place: 3 ms. Few of those on the schedule have failed, and the others cost less."""

_FILTERS: Final = {"dead": condition(), "schedule": condition(failed=True)}

_AGAIN: Final = 5.0
"""Seconds after which a queue is counted again."""

_EXAMINED_AGAIN: Final = 120.0
"""Seconds for which a queue whose figures stay the same, and where no job moves, is not examined again."""

_MOVING: Final = ("backlog", "ready", "processing")

_NEWEST_AGAIN: Final = 30.0
"""Seconds after which the newest job of a row is read again, if it is another one: its traceback is like the last."""

_LOOK: Final = 0.2
"""Seconds for which one reading of the page examines jobs."""

_READ_MOST: Final = 500
"""Jobs that were read and are kept."""


class FailurePass:
    """One pass over a queue and its shards."""

    def __init__(self) -> None:
        self.jobs = FailedJobs()
        self.seen = set[str]()
        """Redis may return an id twice, and a job that is revived may fail again."""
        self.examined = 0
        self.total = 0
        self.at = 0.0
        """When it began, by Redis's clock."""

    def note(self, job: Match) -> None:
        if job.id not in self.seen:
            self.seen.add(job.id)
            self.jobs.note(job)


class QueueCount:
    """How far the count of one queue is."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.ended = -inf
        """When the last pass ended, on the clock of this process."""
        self.problem = ""
        """Why Redis refused to read the queue."""
        self.dead = 0
        """How many are dead now, as the queue itself counts them."""
        self._whole: FailurePass | None = None
        self._going: FailurePass | None = None
        self._left = list[tuple[str, str]]()
        """The places to examine, each with the queue or shard."""
        self._cursor = "0"
        self._ids: Sequence[bytes] = ()
        self._begun = False
        """Whether a slice of this pass was examined."""
        self._mark: object = None
        """The figures of the queue when the last pass began."""
        self._examined = -inf
        """When that was, on the clock of this process."""

    @property
    def shown(self) -> FailurePass:
        """The last pass that has ended, or the first one as far as it is."""
        return self._whole or self._going or FailurePass()

    @property
    def over(self) -> bool:
        """Whether all jobs were examined."""
        return self._whole is not None or bool(self.problem)

    def is_due(self) -> bool:
        return self._going is not None or time.monotonic() - self.ended > _AGAIN

    def is_going(self) -> bool:
        return self._going is not None

    def is_begun(self) -> bool:
        return self._going is not None and self._begun

    async def begin_alone(self, client: MeteredClient) -> None:
        """Begin a pass, or note why Redis refuses to read the queue."""
        stores = client.stores(self.queue)
        try:
            stats = await asyncio.gather(*(client.send(store.queue_stats()) for store in stores))
        except StoreRefused as error:  # this queue only
            self.refuse(error)
            return
        self.problem = ""
        self.begin([*zip(stores, stats, strict=True)])

    def note(self, parts: Sequence[tuple[Store, QueueStats]]) -> None:
        """Note how many jobs are dead now."""
        self.dead = sum(stats.places["dead"] for _, stats in parts)

    def begin(self, parts: Sequence[tuple[Store, QueueStats]]) -> None:
        """Begin a pass over the queue and its shards; it is over if no job can have failed, or nothing has changed."""
        self.note(parts)
        mark = [(stats.places, stats.next_due) for _, stats in parts]
        at_rest = not any(stats.due or stats.places[place] for _, stats in parts for place in _MOVING)
        known = time.monotonic() - self._examined < _EXAMINED_AGAIN and self._whole is not None
        at = max(stats.now for _, stats in parts)
        if known and self._whole is not None and at_rest and mark == self._mark:
            self._whole.at, self.ended = at, time.monotonic()
            return
        self._mark, self._examined, self._begun = mark, time.monotonic(), False
        going = FailurePass()
        going.at = at
        left = [
            (place, store.queue) for place in _SLICES for store, stats in parts if stats.places[place]
        ]  # the dead first
        going.total = sum(stats.places[place] for _, stats in parts for place in _SLICES)
        self._going, self._left, self._cursor, self._ids = going, left, "0", []
        self._end_if_over()

    def next(self) -> tuple[str, FindPart] | None:
        """Return the place and the slice to examine next; None = no pass is under way."""
        if not self._left:
            return None
        place, queue = self._left[0]
        return place, FindPart(queue, self._cursor, self._ids)

    def take(self, part: Slice) -> None:
        """Note the jobs of the slice that was next."""
        going = self._going
        if going is None:
            return
        if not self._ids:
            going.examined = min(going.total, going.examined + _SLICES[self._left[0][0]])
        for job in part.found:
            going.note(job)
        self._begun, self._cursor, self._ids = True, part.cursor, part.left
        if part.cursor == "0" and not part.left:
            self._left.pop(0)
        self._end_if_over()

    def refuse(self, error: StoreError) -> None:
        """Note why Redis refuses to read the queue."""
        self.problem, self._left = str(error), []
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._going is not None and not self._left:
            if not self.problem:
                self._going.seen.clear()
                self._whole = self._going
            self._going = None
        if self._going is None:
            self.ended = time.monotonic()


async def examine(client: MeteredClient, counts: Sequence[QueueCount], calls: int) -> int:
    """Examine the next slice of as many queues as one call for each place can; queues that must begin alone do so."""
    before, by_place = client.commands, dict[str, dict[str, tuple[FindPart, QueueCount]]]()
    alone = [count for count in counts if not count.is_going()][:calls]
    await asyncio.gather(*(count.begin_alone(client) for count in alone))
    for count in counts:
        if (following := count.next()) is not None:
            place, part = following
            by_place.setdefault(place, {})[part.queue] = part, count
    for place, some in by_place.items():
        parts = [part for part, _ in some.values()]
        matching, limit = _FILTERS[place], _SLICES[place]
        read = await find_slices(client.send, client.find_node, place, matching, parts, limit=limit)
        for queue, one in read.items():
            count = some[queue][1]
            count.refuse(one) if isinstance(one, StoreError) else count.take(one)
    return client.commands - before


class FailureCounts:
    """The counts of all queues, which all viewers share."""

    def __init__(self) -> None:
        self._queues = dict[str, QueueCount]()
        self._turns = Turns(examine)
        self._beginning = asyncio.Lock()
        self._tracebacks = dict[tuple[str, Kind], tuple[float, str, JobStatus | None]]()

    async def look(self, client: MeteredClient, queues: Sequence[str]) -> list[QueueCount]:
        """Examine jobs for a short time, and return the counts of the queues."""
        counts = [self._queues.setdefault(queue, QueueCount(queue)) for queue in queues]
        if not self._beginning.locked():
            async with self._beginning:
                await self._begin(client, counts)
        await self._turns.look(client, counts, _LOOK)
        return counts

    async def _begin(self, client: MeteredClient, counts: Sequence[QueueCount]) -> None:
        """Read the figures of all, and begin the passes that are due, with a few calls.

        One whose figures cannot be read begins alone.
        """
        stores = {count.queue: client.stores(count.queue) for count in counts}
        names = [store.queue for some in stores.values() for store in some]
        read = await read_queue_stats(client.send, client.find_node, names)
        for count in counts:
            parts = [(one, stats) for one in stores[count.queue] if isinstance(stats := read[one.queue], QueueStats)]
            if len(parts) < len(stores[count.queue]):
                continue
            count.note(parts)
            if count.is_due() and not count.is_going():
                count.problem = ""
                count.begin(parts)

    async def newest_of(
        self, client: MeteredClient, view: str, shown: Sequence[Failures], again: bool
    ) -> dict[Kind, JobStatus]:
        """Return the newest job of each row of a view, if it still exists.

        `again`: read another one that is the newest now.
        """
        now = time.monotonic()
        wanted = dict[Kind, tuple[str, str]]()
        for one in shown:
            read, known, _ = self._tracebacks.get((view, one.key), (-inf, "", None))
            if known != one.newest[3] and now - read > _NEWEST_AGAIN and (again or not known):
                wanted[one.key] = one.newest[2:4]
        found = await asyncio.gather(*(self._read(client, *one) for one in wanted.values()))
        for key, status in zip(wanted, found, strict=True):
            self._tracebacks.pop((view, key), None)
            self._tracebacks[view, key] = now, wanted[key][1], status
        while len(self._tracebacks) > _READ_MOST:
            del self._tracebacks[next(iter(self._tracebacks))]
        kept = {one.key: self._tracebacks.get((view, one.key)) for one in shown}
        return {key: read[2] for key, read in kept.items() if read is not None and read[2] is not None}

    async def _read(self, client: MeteredClient, queue: str, job: str) -> JobStatus | None:
        try:
            return await client.status(queue, job)
        except StoreRefused:
            return None
