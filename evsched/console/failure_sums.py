"""The failed jobs that were examined, in columns, and their sums: by error, task or group, in a span of time.

A dead job takes about 100 bytes, most of them its id. A sum of 100,000 jobs takes about 0.1 s, so it is kept until more
were examined.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from math import inf
from typing import Final, Literal

from msgspec import Struct

from evsched.client.history import HOUR
from evsched.store.operator_calls import Match

By = Literal["error", "task", "group"]
"""The ways to group failed jobs. "error": task, class of the exception and line of the user's code."""

Kind = tuple[str, str, str, str]
"""Task, class of the exception, and line of the user's code as `short_location` has it.

Without an exception, the reason without its numbers.
"""

OTHERS: Final[Kind] = ("", "", "", "others")
"""All that exceed `_KINDS`."""

_KINDS: Final = 500
"""Kinds of failures of a queue that are counted apart."""

_SUMS: Final = 8
"""Sums of a queue that are kept."""

_DAY: Final = 24
"""Hours of the chart of all jobs."""

_HALF: Final = HOUR / 2


def kind_of(job: Match) -> Kind:
    pattern = "" if job.error else re.sub(r"\d[\d.,]*", "#", (job.reason or "")[:200])
    return job.task or "", job.error or "", short_location(job.location or ""), pattern


def short_location(location: str) -> str:
    """Return a line of code with the last two parts of its path: each host may have the code in another folder."""
    return "/".join(location.replace("\\", "/").split("/")[-2:])


class DeathSpan(Struct, frozen=True):
    """When jobs died, both ends included; in Unix seconds.

    `start`: that of the chart. `bar`: seconds of one of its `bars`. `parts`: into which the times below divide it.
    """

    start: float
    bar: float
    bars: int
    parts: int
    since: float = -inf
    until: float = inf

    @property
    def whole(self) -> bool:
        """Whether it has all jobs."""
        return self.since == -inf and self.until == inf


def last_day(now: float) -> DeathSpan:
    """Return the span of all jobs, whose chart has the half hours of the last 24 hours, the present hour last."""
    return DeathSpan((now // HOUR + 1 - _DAY) * HOUR, _HALF, 2 * _DAY, 4)


class Failures:
    """Jobs that failed and are counted together, in one queue or in several."""

    def __init__(self, key: Kind, bars: int) -> None:
        self.key = key
        """Their kind; or only their task; or only their group, in the place of the reason."""
        self.dead = 0
        self.retried = 0
        """How many wait for a retry now."""
        self.first, self.last = inf, -inf
        """When jobs died."""
        self.recent = 0
        """How many died within an hour before they were counted."""
        self.bars = [0] * bars
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
        return self.recent >= 2 and self.recent > 2 * before / (_DAY - 1)

    @property
    def growth(self) -> float:
        return self.recent - (sum(self.bars) - self.recent) / (_DAY - 1)


class FailedJobs:
    """The failed jobs of one queue."""

    def __init__(self) -> None:
        self._kinds, self._groups = dict[Kind, int](), dict[str, int]()
        self._newest = dict[int, tuple[bool, float, str, str]]()
        """By kind: as `Failures.newest`, without the queue."""
        self._cells = dict[tuple[int, int], int]()
        """The pairs of a kind and a group that were seen, by their numbers."""
        self._cell, self._died = array("I"), array("d")
        self._ids = list[str]()
        self._waiting = Counter[tuple[int, int]]()
        """Those that wait for a retry, by kind and group."""
        self._sums = dict[tuple[By, DeathSpan], list[Failures]]()
        self._order: list[int] | None = None
        """The dead jobs in the order in which they died; None = not sorted yet."""

    def note(self, job: Match) -> None:
        kind = kind_of(job)
        if kind not in self._kinds and len(self._kinds) >= _KINDS:
            kind = OTHERS
        at, dead = job.at or 0.0, job.place == "dead"
        number, group = self._kinds.setdefault(kind, len(self._kinds)), job.group or ""
        of_group = self._groups.setdefault(group, len(self._groups))
        if dead:
            self._cell.append(self._cells.setdefault((number, of_group), len(self._cells)))
            self._died.append(at)
            self._ids.append(job.id)
        else:
            self._waiting[number, of_group] += 1
        newest = dead, at, job.id, (job.reason or "")[:500]
        self._newest[number] = max(self._newest.get(number, newest), newest)
        self._sums.clear()
        self._order = None

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
        kinds, groups = [*self._kinds], [*self._groups]
        found = dict[Kind, Failures]()

        def sums_of(cell: tuple[int, int]) -> Failures:
            key = _key(by, kinds[cell[0]], groups[cell[1]])
            if key not in found:
                found[key] = Failures(key, span.bars)
            return found[key]

        # By columns: a loop over the jobs would take five times as long.
        cells, moments, places = self._in_span(span)
        start, width, recent = span.start, span.bar, now - HOUR
        of_cell = {number: sums_of(cell) for cell, number in self._cells.items()}
        numbers = [*self._cells]
        for number, count in Counter(cells).items():
            of_kind, of_group = numbers[number]
            of_cell[number].dead += count
            _count(of_cell[number], kinds[of_kind], groups[of_group], count)
        for (number, bar), count in Counter(
            zip(cells, [int((at - start) // width) for at in moments], strict=True)
        ).items():
            if bar >= 0:
                of_cell[number].bars[min(bar, span.bars - 1)] += count
        for number, count in Counter(number for number, at in zip(cells, moments, strict=True) if at > recent).items():
            of_cell[number].recent += count
        for number, at in dict(zip(reversed(cells), reversed(moments), strict=True)).items():
            of_cell[number].first = min(of_cell[number].first, at)
        for number, place in dict(zip(cells, places, strict=True)).items():
            self._note_last(queue, of_cell[number], numbers[number][0], place)
        for cell, count in self._waiting.items() if span.whole else ():
            sums = sums_of(cell)
            _count(sums, kinds[cell[0]], groups[cell[1]], count)
            sums.retried += count
            dead, at, job, reason = self._newest[cell[0]]
            if not dead:
                sums.newest = max(sums.newest, (dead, at, queue, job, reason))
        failed = [sums for sums in found.values() if sums.dead or sums.retried]
        for sums in failed:
            sums.queues.add(queue)
        return failed

    def _in_span(self, span: DeathSpan) -> tuple[list[int], list[float], list[int]]:
        """Return the cells, moments and places of the jobs that died in a span, in the order of their deaths."""
        if self._order is None:
            self._order = sorted(range(len(self._died)), key=self._died.__getitem__)
        moments = [*map(self._died.__getitem__, self._order)]
        first, end = bisect_left(moments, span.since), bisect_right(moments, span.until)
        places = self._order[first:end]
        return [*map(self._cell.__getitem__, places)], moments[first:end], places

    def _note_last(self, queue: str, sums: Failures, kind: int, place: int) -> None:
        """Note the last job of a sum that died."""
        at, job = self._died[place], self._ids[place]
        _, _, newest, reason = self._newest[kind]
        sums.last = max(sums.last, at)
        sums.newest = max(sums.newest, (True, at, queue, job, reason if newest == job else ""))


def _key(by: By, kind: Kind, group: str) -> Kind:
    if by == "error":
        return kind
    return (kind[0], "", "", "") if by == "task" else ("", "", "", group)


def _count(sums: Failures, kind: Kind, group: str, count: int) -> None:
    sums.kinds[kind] += count
    if group:
        sums.groups[group] += count
