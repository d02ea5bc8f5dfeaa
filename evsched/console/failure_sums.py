"""The failed jobs that were examined, in columns, and their sums: by error, task or group, in a span of time.

A dead job takes about 100 bytes, most of them its id. A sum of 100,000 jobs takes about 0.1 s, so it is kept until more
were examined.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import Final, Literal

from msgspec import Struct

from evsched.client.history import HOUR
from evsched.store.operator_calls import Match

By = Literal["error", "task", "group"]
"""The ways to group failed jobs. "error": task, class of the exception and line of the user's code."""

Kind = tuple[str, str, str, str]
"""Task, class of the exception, line of the user's code; without an exception, the reason without its numbers."""

OTHERS: Final[Kind] = ("", "", "", "others")
"""All that exceed `_KINDS`."""

_KINDS: Final = 500
"""Kinds of failures of a queue that are counted apart."""

_SUMS: Final = 8
"""Sums of a queue that are kept."""

BARS: Final = 24
"""Bars of a chart."""


def kind_of(job: Match) -> Kind:
    pattern = "" if job.error else re.sub(r"\d[\d.,]*", "#", (job.reason or "")[:200])
    return job.task or "", job.error or "", job.location or "", pattern


class DeathSpan(Struct, frozen=True):
    """When jobs died, both ends included; in Unix seconds. `start`, `end`: those of the chart."""

    start: float
    end: float
    since: float = -inf
    until: float = inf

    @property
    def whole(self) -> bool:
        """Whether it has all jobs."""
        return self.since == -inf and self.until == inf

    @property
    def bar(self) -> float:
        """Seconds of a bar of the chart."""
        return max(1.0, (self.end - self.start) / BARS)


def last_day(now: float) -> DeathSpan:
    """Return the span of all jobs, whose chart has the last 24 hours, the present one last."""
    end = (now // HOUR + 1) * HOUR
    return DeathSpan(end - BARS * HOUR, end)


class Failures:
    """Jobs that failed and are counted together, in one queue or in several."""

    def __init__(self, key: Kind) -> None:
        self.key = key
        """Their kind; or only their task; or only their group, in the place of the reason."""
        self.dead = 0
        self.retried = 0
        """How many wait for a retry now."""
        self.first, self.last = inf, -inf
        """When jobs died."""
        self.recent = 0
        """How many died within an hour before they were counted."""
        self.bars = [0] * BARS
        """How many died, by bars of the chart."""
        self.groups = Counter[str]()
        self.kinds = Counter[Kind]()
        self.queues = set[str]()
        self.newest: tuple[bool, float, str, str, str] = (False, -inf, "", "", "")
        """Whether it is dead; when it died or is due; its queue, id and, if it is known, its reason."""

    def add(self, other: Failures) -> None:
        """Add those of another queue."""
        self.dead += other.dead
        self.retried += other.retried
        self.first, self.last = min(self.first, other.first), max(self.last, other.last)
        self.recent += other.recent
        self.bars = [one + more for one, more in zip(self.bars, other.bars, strict=True)]
        self.groups += other.groups
        self.kinds += other.kinds
        self.queues |= other.queues
        self.newest = max(self.newest, other.newest)

    def grows(self) -> bool:
        """Return whether more than twice as many died in the last hour as in an hour of the day before it."""
        before = sum(self.bars) - self.recent
        return self.recent >= 2 and self.recent > 2 * before / (BARS - 1)

    @property
    def growth(self) -> float:
        return self.recent - (sum(self.bars) - self.recent) / (BARS - 1)


class FailedJobs:
    """The failed jobs of one queue."""

    def __init__(self) -> None:
        self._kinds, self._groups = dict[Kind, int](), dict[str, int]()
        self._newest = dict[int, tuple[bool, float, str, str]]()
        """By kind: as `Failures.newest`, without the queue."""
        self._kind, self._group, self._died = array("H"), array("I"), array("d")
        self._ids = list[str]()
        self._waiting = Counter[tuple[int, int]]()
        """Those that wait for a retry, by kind and group."""
        self._sums = dict[tuple[By, DeathSpan], list[Failures]]()

    def note(self, job: Match) -> None:
        kind = kind_of(job)
        if kind not in self._kinds and len(self._kinds) >= _KINDS:
            kind = OTHERS
        at, dead = job.at or 0.0, job.place == "dead"
        number, group = self._kinds.setdefault(kind, len(self._kinds)), job.group or ""
        of_group = self._groups.setdefault(group, len(self._groups))
        if dead:
            self._kind.append(number)
            self._group.append(of_group)
            self._died.append(at)
            self._ids.append(job.id)
        else:
            self._waiting[number, of_group] += 1
        newest = dead, at, job.id, (job.reason or "")[:500]
        self._newest[number] = max(self._newest.get(number, newest), newest)
        self._sums.clear()

    def __len__(self) -> int:
        return len(self._ids) + self._waiting.total()

    def summed(self, queue: str, by: By, span: DeathSpan, now: float) -> list[Failures]:
        """Return the sums of the jobs that died in a span; and that wait for a retry, if the span has all jobs.

        `now`: when they were counted.
        """
        if (by, span) not in self._sums:
            while len(self._sums) >= _SUMS:
                del self._sums[next(iter(self._sums))]
            self._sums[by, span] = self._sum(queue, by, span, now)
        return self._sums[by, span]

    def _sum(self, queue: str, by: By, span: DeathSpan, now: float) -> list[Failures]:
        kind, group, died = self._kind, self._group, self._died
        kinds, groups = [*self._kinds], [*self._groups]
        picked = range(len(died))
        if not span.whole:
            picked = [at for at in picked if span.since <= died[at] <= span.until]
        width, start, recent = span.bar, span.start, now - HOUR
        cells = Counter((kind[at], group[at], int((died[at] - start) // width), died[at] > recent) for at in picked)
        found = dict[Kind, Failures]()
        of_cell = dict[tuple[int, int], Failures]()

        def sums_of(cell: tuple[int, int]) -> Failures:
            if cell not in of_cell:
                key = _key(by, kinds[cell[0]], groups[cell[1]])
                of_cell[cell] = found.setdefault(key, Failures(key))
            return of_cell[cell]

        for (of_kind, of_group, bar, late), count in cells.items():
            sums = sums_of((of_kind, of_group))
            _count(sums, kinds[of_kind], groups[of_group], count)
            sums.dead += count
            sums.recent += count * late
            if bar >= 0:
                sums.bars[min(bar, BARS - 1)] += count
        self._note_ends(queue, picked, of_cell)
        for cell, count in self._waiting.items() if span.whole else ():
            sums = sums_of(cell)
            _count(sums, kinds[cell[0]], groups[cell[1]], count)
            sums.retried += count
            dead, at, job, reason = self._newest[cell[0]]
            if not dead:
                sums.newest = max(sums.newest, (dead, at, queue, job, reason))
        for sums in found.values():
            sums.queues.add(queue)
        return [*found.values()]

    def _note_ends(self, queue: str, picked: Iterable[int], of_cell: dict[tuple[int, int], Failures]) -> None:
        """Note when the first and the last of each sum died, and which is the last."""
        kind, group, died = self._kind, self._group, self._died
        last = dict[tuple[int, int], int]()
        for at in picked:
            cell, moment = (kind[at], group[at]), died[at]
            if cell not in last or moment > died[last[cell]]:
                last[cell] = at
            sums = of_cell[cell]
            if moment < sums.first:
                sums.first = moment
        for cell, at in last.items():
            sums, newest = of_cell[cell], self._newest[cell[0]]
            reason = newest[3] if newest[2] == self._ids[at] else ""
            sums.last = max(sums.last, died[at])
            sums.newest = max(sums.newest, (True, died[at], queue, self._ids[at], reason))


def _key(by: By, kind: Kind, group: str) -> Kind:
    if by == "error":
        return kind
    return (kind[0], "", "", "") if by == "task" else ("", "", "", group)


def _count(sums: Failures, kind: Kind, group: str, count: int) -> None:
    sums.kinds[kind] += count
    if group:
        sums.groups[group] += count
