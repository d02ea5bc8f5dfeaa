"""A search among the jobs that have ended, over several queues at once, the newest first and within a short time.

Each queue and each shard has a history of its own. They are read back together, the newest part first, so all that is
newer than a moment has been seen, and the rows of a page have none missing between them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Sequence
from secrets import token_urlsafe
from typing import Final

from msgspec import Struct

from evsched.client.history import HistoryFilter
from evsched.console.ledger_search import LedgerRows
from evsched.console.newer_rows import FIRST
from evsched.console.page import MeteredClient
from evsched.errors import StoreError
from evsched.store.history_calls import PastJob
from evsched.store.store import Store

_TIME: Final = 0.2
"""Seconds for which it looks until the page is full."""

_COUNTING: Final = 0.1
"""Seconds for which it looks at all, to count more than a full page shows."""

_TOGETHER: Final = 8
"""Histories of which a part is read at once."""

_FEW: Final = 10
"""Entries that are read at once of each history, if there are more than `_TOGETHER`; else 50."""

_FIRST_STEP: Final = 64
"""Entries by which the search for a moment goes back first; then twice as many each time."""

_KEPT: Final = 16
"""Searches that are kept to go on with."""

_HELD: Final = 20_000
"""Ends that a search which is kept has found at most."""


class PastPage(Struct, frozen=True):
    """The ends that a search has found."""

    rows: list[PastJob]
    """The rows of the page, the newest first."""
    counts: dict[str, int]
    """How many jobs were found by outcome, with the ones that the page does not show."""
    back_to: float | None
    """All that ended since then was looked at; None = all was."""
    older: tuple[float, int] | None
    """Where the next page begins: its newest moment, and how many ends of this moment are not on it; None = nowhere."""
    unread: dict[str, str]
    """Queues whose history could not be read, and why."""
    newest: dict[str, str]
    """The newest entry of each history whose end was read, by its queue, whether it matches or not."""
    times: list[tuple[float, bool]]
    """When each job ended that was found with the wanted outcome, and whether it died; the newest first."""

    @property
    def found(self) -> int:
        return sum(self.counts.values())


class _Part:
    """The history of one queue or shard, and how far it was read."""

    def __init__(self, store: Store, since: float, until: float, few: bool, written: str | None) -> None:
        self.store, self._since, self._until, self._written = store, since, until, written
        self._count = _FEW if few else 50
        self.before = "+"
        self.at = math.inf
        """All that ended later was read."""
        self.over = False
        self.problem = ""
        self.newest = ""
        self.jobs = list[PastJob]()

    async def seek(self, client: MeteredClient) -> None:
        """Go to the newest entry that is not after `until`. Entries are numbered, in the order of their times."""
        newest = await self._entry_before(client, "+")
        if newest is None or newest[1] <= self._until:
            return
        late, step = newest[0], _FIRST_STEP
        early = late - step
        while early > 0 and (one := await self._entry_before(client, f"{early}-1")) is not None:
            if one[1] <= self._until:
                break
            late, step = one[0], step * 2
            early = late - step
        early = max(early, 0)
        while late - early > _FIRST_STEP // 2:
            middle = (early + late) // 2
            one = await self._entry_before(client, f"{middle}-1")
            if one is None or one[1] <= self._until:
                early = middle
            else:
                late = min(one[0], middle)
        self.before = f"{late}-1"

    async def _entry_before(self, client: MeteredClient, position: str) -> tuple[int, float] | None:
        found = await client.send(self.store.ended(position, count=1))
        if not found.entries:
            return None
        (entry,) = found.entries
        return entry.number, max((job.ended for job in entry.jobs), default=0.0)

    async def read(self, client: MeteredClient, matching: HistoryFilter) -> None:
        """Read a part of it."""
        try:
            if self.before == "+" and not math.isinf(self._until):
                await self.seek(client)
            first = self.before == "+"
            found = await client.send(self.store.ended(self.before, self._written, count=self._count))
        except StoreError as error:
            self.over, self.problem = True, str(error)
            return
        if first:
            self.newest = found.entries[0].id if found.entries else self._written or FIRST
        jobs = [job for entry in found.entries for job in entry.jobs]
        self.jobs += [job for job in jobs if self._since <= job.ended <= self._until and matching.matches(job)]
        self.at = min((job.ended for job in jobs), default=self.at)
        self.over = found.before is None or self.at < self._since
        self.before = found.before or ""


class EndsSearch:
    """A search, which goes on where it was, and keeps what it has found.

    `outcome`: of the rows, "" = any; the counts are of all outcomes, unless rows of the ledger are there, too.
    `span`: since when and until when. `ledger`: the ends that were found there, which are not read from Redis.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        matching: HistoryFilter,
        outcome: str,
        span: tuple[float, float],
        ledger: LedgerRows | None = None,
    ) -> None:
        self._matching, self._outcome, self._ledger = matching, outcome, ledger
        self._rows = LedgerRows([], {}, None) if ledger is None else ledger
        few = len(stores) > _TOGETHER
        self._parts = [_Part(store, *span, few, self._rows.written.get(store.queue)) for store in stores]
        self._begun = False
        self._lock = asyncio.Lock()

    @property
    def held(self) -> int:
        """How many ends it keeps."""
        return sum(len(part.jobs) for part in self._parts)

    async def look(self, client: MeteredClient, skip: int, limit: int) -> PastPage:
        """Go on for a short time, and return the last ends that match.

        `skip`: how many ends of the last moment earlier pages have shown.
        """
        async with self._lock:
            return await self._look(client, skip, limit)

    async def _look(self, client: MeteredClient, skip: int, limit: int) -> PastPage:
        parts, floor = self._parts, -math.inf if self._rows.back_to is None else self._rows.back_to
        begun = time.monotonic()
        together, read = len(parts) if not self._begun else _TOGETHER, False
        self._begun = True
        while True:
            left = sorted((part for part in parts if not part.over and part.at > floor), key=lambda part: -part.at)
            bound = left[0].at if left else floor
            wanted = [job for job in _known(parts, self._rows.jobs, bound) if self._outcome in ("", job.outcome)]
            passed = time.monotonic() - begun
            full = len(wanted) > limit + skip
            if not left or (read and (passed > _TIME or (full and passed > _COUNTING))):
                break
            await asyncio.gather(*(part.read(client, self._matching) for part in left[:together]))
            together, read = _TOGETHER, True
        shown = wanted[skip : skip + limit]
        older = None if bound == -math.inf else (bound, 0)
        if len(wanted) > skip + limit:
            last = shown[-1].ended
            older = last, sum(job.ended == last for job in wanted[: skip + limit])
        return PastPage(
            rows=shown,
            counts=dict(Counter(job.outcome for job in (_known(parts, [], bound) if self._ledger is None else wanted))),
            back_to=None if bound == -math.inf else bound,
            older=older,
            unread={part.store.queue: part.problem for part in parts if part.problem},
            newest={part.store.queue: part.newest for part in parts if part.newest},
            times=[(job.ended, job.outcome == "dead") for job in wanted[skip:]],
        )


async def search_ends(
    client: MeteredClient,
    stores: Sequence[Store],
    matching: HistoryFilter,
    outcome: str,
    span: tuple[float, float],
    *,
    skip: int = 0,
    limit: int = 50,
    ledger: LedgerRows | None = None,
) -> PastPage:
    """Return the last ends that match, as far as a search finds them in its time: see `EndsSearch`."""
    return await EndsSearch(stores, matching, outcome, span, ledger).look(client, skip, limit)


class KeptSearches:
    """The searches that readers may go on with, the last ones."""

    def __init__(self) -> None:
        self._kept = dict[str, tuple[object, EndsSearch]]()

    def find(self, token: str, query: object) -> EndsSearch | None:
        """Return a search that was kept; None if it is no more, or another query has it."""
        asked, search = self._kept.get(token, (None, None))
        return search if asked == query else None

    def keep(self, search: EndsSearch, query: object) -> str:
        """Keep a search; return its token, empty if it has found too many to keep them."""
        for token, (_, known) in [*self._kept.items()]:
            if known is search:
                del self._kept[token]
        if search.held > _HELD:
            return ""
        token = token_urlsafe(12)
        self._kept[token] = query, search
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return token


def _known(parts: Sequence[_Part], rows: Sequence[PastJob], bound: float) -> list[PastJob]:
    """Return the jobs that ended after a moment, the newest first, in the same order each time.

    Those of one moment are in the order of their ids, as they may be in Redis for one page, and in the ledger for the
    next.
    """
    jobs = [job for jobs in (rows, *(part.jobs for part in parts)) for job in jobs if job.ended > bound]
    jobs.sort(key=lambda job: (-job.ended, job.queue, job.id))
    return jobs
