"""How many rows have come since a page was read: ends of jobs, or acts. An open page announces them by their count.

Each reader goes on where the last one of the same page was, and one XREAD reads all streams. In a cluster, or if a
stream cannot be read so, each has a call of its own.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, Generic, TypeVar

from evsched import keys
from evsched.client.history import HistoryFilter
from evsched.client.operations import node_of
from evsched.client.past_acts import ActFilter
from evsched.console.page import MeteredClient, Visit
from evsched.errors import StoreError, StoreRefused
from evsched.store.acts import AuditEntry, stream_position
from evsched.store.audit_trail import AuditTrail, read_trails
from evsched.store.history_calls import HistoryEntry, read_history
from evsched.store.store import Store

MOST: Final = 1000
"""Rows that are counted: then nothing is read any more."""

_ENTRIES: Final = 200
"""Entries of all streams that one call reads: 1 ms of Redis's time if each has a few jobs."""

_READS: Final = 3
"""Calls of one look: with many streams, the first gets few entries of each, and the next go on with the busy ones."""

_PAGES: Final = 100
"""Pages whose positions are kept. A page that was forgotten reads each stream once more."""

FIRST: Final = "0-0"
"""The position before all entries."""

_LAST: Final = 2**64 - 1
"""The last entry of a millisecond."""


T = TypeVar("T", bound=AuditTrail)


class Newer(ABC, Generic[T]):
    """The rows that match and are newer than those of a page."""

    def __init__(self) -> None:
        self.count = 0
        self.least = False
        """There may be more."""
        self._lock = asyncio.Lock()

    async def look(self, client: MeteredClient, trails: Sequence[T]) -> None:
        """Count the rows that have come."""
        async with self._lock:  # readers for two roles share it
            if self.count >= MOST or not trails:
                return
            known = [trail for trail in trails if self.knows(trail)]
            rest = [trail for trail in trails if not self.knows(trail)]
            if known and await client.run(node_of(keys.root(known[0].queue))) is None:
                try:
                    for _ in range(_READS):
                        known = known and await self.read_all(client, known, max(1, _ENTRIES // len(known)))
                except StoreRefused:
                    rest = [*trails]
            else:
                rest = [*trails]
            await asyncio.gather(*(self._read_one(client, trail) for trail in rest))

    async def _read_one(self, client: MeteredClient, trail: T) -> None:
        try:
            await self.read_one(client, trail)
        except StoreError:
            return  # the page says why, when it is loaded again

    @property
    def words(self) -> str:
        """How many they are; empty if there are none."""
        least = "at least " if self.least or self.count >= MOST else ""
        return f"{least}{self.count:,}" if self.count else ""

    @abstractmethod
    def knows(self, trail: T) -> bool:
        """Return whether the position in a stream is known."""

    @abstractmethod
    async def read_all(self, client: MeteredClient, trails: Sequence[T], limit: int) -> list[T]:
        """Read at most `limit` newer entries of each stream, by one call; return the streams that may have more."""

    @abstractmethod
    async def read_one(self, client: MeteredClient, trail: T) -> None:
        """Read the newer entries of one stream."""


class NewerEnds(Newer[Store]):
    """The ends of jobs. `last`: the newest entry of each history, by its queue.

    `after`: when the newest end was that the page has seen, for histories whose newest entry is not known.
    """

    def __init__(self, matching: HistoryFilter, after: float, last: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._matching, self._after, self._last = matching, after, {**(last or {})}

    def knows(self, trail: Store) -> bool:
        return trail.queue in self._last

    async def read_all(self, client: MeteredClient, trails: Sequence[Store], limit: int) -> list[Store]:
        found = await client.send(read_history({one.queue: self._last[one.queue] for one in trails}, limit, None))
        for queue, entries in found.items():
            self._note(queue, entries)
        return [one for one in trails if len(found.get(one.queue, ())) >= limit]

    async def read_one(self, client: MeteredClient, trail: Store) -> None:
        last = self._last.get(trail.queue)
        read = await client.send(trail.ended("+", last))
        self.least = self.least or (last is not None and read.before is not None)
        self._last.setdefault(trail.queue, FIRST)
        self._note(trail.queue, read.entries[::-1], self._after if last is None else 0.0)

    def _note(self, queue: str, entries: Sequence[HistoryEntry], after: float = 0.0) -> None:
        """Note entries, the oldest first."""
        jobs = (job for entry in entries for job in entry.jobs)
        self.count += sum(job.ended > after and self._matching.matches(job) for job in jobs)
        if entries:
            self._last[queue] = entries[-1].id


class NewerActs(Newer[AuditTrail]):
    """The acts of operators. `after`: Unix seconds; ids of entries are times."""

    def __init__(self, wanted: ActFilter, after: float) -> None:
        super().__init__()
        self._wanted, self._after = wanted, after
        self._last = dict[str, str]()
        self._acts = set[tuple[str, str]]()

    def knows(self, trail: AuditTrail) -> bool:
        return True

    async def read_all(self, client: MeteredClient, trails: Sequence[AuditTrail], limit: int) -> list[AuditTrail]:
        first = f"{stream_position(self._after)}-{_LAST}"
        last = {one.queue: self._last.get(one.queue, first) for one in trails}
        found = await client.send(read_trails(last, limit))
        for queue, (position, entries) in found.items():
            self._last[queue] = position
            self._note(entries)
        return [one for one in trails if one.queue in found and len(found[one.queue][1]) >= limit]

    async def read_one(self, client: MeteredClient, trail: AuditTrail) -> None:
        read = await client.send(trail.acts("+", self._after, _ENTRIES))
        self.least = self.least or read.before is not None
        self._note([entry for entry in read.entries if entry is not None and entry.at > self._after])

    def _note(self, entries: Sequence[AuditEntry | None]) -> None:
        for entry in entries:
            if entry is not None and self._wanted.takes(entry) and self._wanted.is_about(entry):
                self._acts.add((entry.known.id, entry.known.act))
        self.count = len(self._acts)


N = TypeVar("N", bound=Newer[Any])


def mark_of(positions: Mapping[str, str]) -> str:
    """Return a name for the positions of a page. Pages that were read at the same state have the same."""
    return sha256(repr(sorted(positions.items())).encode()).hexdigest()[:12]


def newer_of(visit: Visit, kind: str, key: tuple[str, ...], make: Callable[[], N]) -> N:
    """Return the newer rows of a page, which all its readers share. `key`: its positions and its conditions."""
    pages: dict[tuple[str, ...], N] = visit.console.memory.setdefault(f"newer {kind}", {})
    found = pages.pop(key, None) or make()
    pages[key] = found
    if len(pages) > _PAGES:
        del pages[next(iter(pages))]
    return found


def after(visit: Visit) -> float:
    """Return the newest moment of an open page."""
    try:
        found = float(visit.get("after") or 0)
    except ValueError:
        return 0.0
    return found if math.isfinite(found) else 0.0
