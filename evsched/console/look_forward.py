"""The jobs that will run in a span of time: the planned times of recurrences, and the single jobs on the schedule.

The times are computed here, as if each run ended at once, and are kept for a minute. Recurrences with the same rule
share them. Times of very dense rules are computed up to a number, and counted on evenly from there. Single jobs are
counted by Redis, by when they are due.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo
from itertools import islice
from math import ceil, floor, inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from evsched.console.page import MeteredClient
from evsched.console.rosters import ALONE, Key, RosterRow
from evsched.console.turns import Turns, step_each
from evsched.errors import ConfigError, StoreRefused
from evsched.jobs.record import number
from evsched.recurrence.calendars import just_before
from evsched.recurrence.cron import parse_rule
from evsched.recurrence.look_ahead import counted_from, put_ahead, read_standing, runs_ahead
from evsched.recurrence.recurrence import Recurrence, read_declared, read_recurrence
from evsched.recurrence.windows import read_window

_KEPT: Final = 60.0
"""Seconds for which times and counts are kept."""

_WORK: Final = 0.08
"""Seconds for which one reading of the page computes times."""

_LOOK: Final = 0.08
"""Seconds for which it counts single jobs."""

_BREATH: Final = 0.01
"""Seconds of computing after which other requests have their turn."""

_MOST: Final = 1000
"""Times of a rule that are computed; it goes on evenly from there. Each takes some 25 us."""

_MOST_ALONE: Final = 300
"""The same for a recurrence with a window or the like, whose times take longer."""

_PEAKS: Final = 10
"""Queues whose fullest second is looked for: those with the fullest steps."""

_PEAKS_AT_ONCE: Final = 4
"""The same of one reading."""

_PARTS: Final = 60
"""Into how many parts the fullest span is divided, to find the fullest second."""


class ChartSpan(Struct, frozen=True):
    """A span of time that the page can show. Lengths in seconds."""

    name: str
    short: str
    words: str
    step: float
    """The length of a bar of the chart."""
    steps: int

    @property
    def length(self) -> float:
        return self.step * self.steps


SPANS: Final = {
    span.name: span
    for span in (
        ChartSpan("1h", "1 h", "hour", 60.0, 60),
        ChartSpan("6h", "6 h", "6 hours", 300.0, 72),
        ChartSpan("24h", "24 h", "24 hours", 900.0, 96),
        ChartSpan("7d", "7 days", "7 days", 3600.0, 168),
    )
}


class Planned(Struct, frozen=True):
    """The times at which a recurrence runs within a span."""

    times: list[float]
    """The first ones, at most `_MOST`."""
    counts: list[int]
    """How many are in each step of the span."""
    exact: bool = True
    """Whether the times are known to the second: not if each is put off by up to the spread."""

    @property
    def total(self) -> int:
        return sum(self.counts)


_NOTHING: Final = Planned([], [])


def runs(row: RosterRow) -> bool:
    """Return whether a recurrence makes jobs, now or after its pause."""
    held = "paused" in row.fields and row.paused_until is None
    return not row.reason and not held and row.state[1] not in ("stopped", "over")


class Simulation:
    """The times of all recurrences within a span, computed little by little."""

    def __init__(self, span: ChartSpan, now: float) -> None:
        self.span = span
        self.start = float(ceil(now))
        self.now = now
        self.planned = dict[Key, Planned]()
        self.over = False
        """Whether all that were known have been computed."""
        self.begun = time.monotonic()
        self._stored = dict[str, tuple[dict[str, str], dict[str, str]]]()

    async def work(self, client: MeteredClient, rows: Sequence[RosterRow]) -> None:
        """Compute for a short time."""
        until, breath = time.monotonic() + _WORK, time.monotonic() + _BREATH
        for row in rows:
            key = row.key
            if key in self.planned:
                continue
            if (now := time.monotonic()) > until:
                return
            if now > breath:
                await asyncio.sleep(0)
                breath = time.monotonic() + _BREATH
            try:
                self.planned[key] = await self._of(client, row, key)
            except (ConfigError, StoreRefused):  # its own page says why
                self.planned[key] = _NOTHING
        self.over = True

    async def _of(self, client: MeteredClient, row: RosterRow, key: Key) -> Planned:
        if key[2] == ALONE:
            recurrence = await self._parse(client, row)
            standing = read_standing(row.score, row.fields, bool(counted_from(row.fields)))
            ahead = runs_ahead(recurrence, standing, self.now, self.start)
            return self._count((one.due for one in ahead if one.runs and one.due is not None), 0.0, _MOST_ALONE)
        rule = parse_rule(row.text("rule"), row.zone)
        found = self._count(rule.walk(just_before(self.start)), rule.every, _MOST)
        return replace(found, exact=not key[2])

    def _count(self, times: Iterator[float], every: float, most: int) -> Planned:
        """Count times by the steps of the span.

        `every`: the seconds between them, 0 = they are not even. `most`: how many are computed.
        """
        first, end, counts = list[float](), self.start + self.span.length, [0] * self.span.steps
        for at in times:
            if at >= end:
                break
            if len(first) == most:
                gap = every or (first[-1] - first[0]) / (len(first) - 1) or inf
                for step in range(int((first[-1] - self.start) // self.span.step), self.span.steps):
                    begins = max(self.start + step * self.span.step, first[-1])
                    ends = self.start + (step + 1) * self.span.step
                    counts[step] += floor((ends - first[-1]) / gap) - floor((begins - first[-1]) / gap)
                break
            first.append(at)
            counts[min(int((at - self.start) // self.span.step), self.span.steps - 1)] += 1
        return Planned(first, counts)

    async def _parse(self, client: MeteredClient, row: RosterRow) -> Recurrence:
        """Parse a recurrence, with the calendars and windows of its queue, which are read once.

        Raises:
            ConfigError: it is not valid.
        """
        if row.queue not in self._stored:
            store = client.store(row.queue)
            self._stored[row.queue] = await client.send(store.all_calendars()), await client.send(store.windows())
        calendars, windows = self._stored[row.queue]
        declared = read_declared(row.name, {**row.fields, "payload": b'{"task":""}'})
        found = read_recurrence(declared, calendars, windows)
        return replace(found, window=read_window(windows[declared.window])) if declared.window in windows else found


class _QueueForecast:
    """How many single jobs of a queue are due when."""

    def __init__(self, queue: str, span: ChartSpan) -> None:
        self.queue, self.span = queue, span
        self.ended = -inf
        self.start = 0.0
        self.counts = list[int]()
        """In each step; those of recurrences, which are on the schedule already, too."""
        self.peak: tuple[int, float] | None = None
        """How many are due in the fullest second of the fullest step, and when; None = not known."""

    @property
    def most(self) -> int:
        return max(self.counts, default=0)

    def is_due(self) -> bool:
        return time.monotonic() - self.ended > _KEPT

    def is_begun(self) -> bool:
        return False

    async def step(self, client: MeteredClient) -> None:
        try:
            self.start, self.counts = await self._counts(client, None, self.span.step, self.span.steps)
        except StoreRefused:  # this queue only
            self.counts = []
        self.peak, self.ended = None, time.monotonic()

    async def _counts(
        self, client: MeteredClient, start: float | None, step: float, steps: int
    ) -> tuple[float, list[int]]:
        stores = client.stores(self.queue)
        parts = await asyncio.gather(*(client.send(store.forecast(start, step, steps)) for store in stores))
        return parts[0][0], [sum(counts) for counts in zip(*(part[1] for part in parts), strict=True)]

    async def find_peak(self, client: MeteredClient) -> None:
        """Find the fullest second, in two calls for each shard at most."""
        start, step, jobs = self.start + self.counts.index(self.most) * self.span.step, self.span.step, self.most
        while step > 1 and jobs > 1:
            steps = min(_PARTS, round(step))
            step = step / steps
            _, counts = await self._counts(client, start, step, steps)
            jobs = max(counts)
            start += counts.index(jobs) * step
        self.peak = jobs, start


class BusyMoment(Struct, frozen=True):
    """A second in which much is due."""

    at: float
    jobs: int
    singles: int
    names: list[tuple[str, str]]
    """Queue and name of some of the recurrences."""
    recurrences: int


class LookForward:
    """The planned times and the counts of single jobs, for all viewers of a console."""

    def __init__(self) -> None:
        self._shown = dict[str, Simulation]()
        self._next = dict[str, Simulation]()
        self._forecasts = dict[tuple[str, str], _QueueForecast]()
        self._turns = Turns(step_each)
        self._lock = asyncio.Lock()

    async def simulate(
        self, client: MeteredClient, span: ChartSpan, rows: Sequence[RosterRow], now: float
    ) -> Simulation:
        """Compute for a short time, and return the times that are kept, or as many as are computed so far."""
        wanted = [row for row in rows if runs(row) or "paused" in row.fields]
        if not self._lock.locked():
            async with self._lock:
                shown = self._shown.get(span.name)
                if shown is None or time.monotonic() - shown.begun > _KEPT:
                    going = self._next.setdefault(span.name, Simulation(span, now))
                else:
                    going = shown
                await going.work(client, wanted)
                if shown is None or going.over:
                    self._shown[span.name] = going
                if going.over:
                    self._next.pop(span.name, None)
        return self._shown.get(span.name) or Simulation(span, now)

    async def forecast(self, client: MeteredClient, span: ChartSpan, queues: Sequence[str]) -> list[_QueueForecast]:
        """Count single jobs for a short time, and return the counts of the queues."""
        wanted = [self._forecasts.setdefault((queue, span.name), _QueueForecast(queue, span)) for queue in queues]
        await self._turns.look(client, wanted, _LOOK)
        full = [one for one in sorted(wanted, key=lambda one: -one.most)[:_PEAKS] if one.most > 1 and one.peak is None]
        for one in full[:_PEAKS_AT_ONCE]:
            await one.find_peak(client)
        return wanted


def single_jobs(
    forecasts: Sequence[_QueueForecast], rows: Sequence[RosterRow], start: float, span: ChartSpan
) -> list[int]:
    """Return how many single jobs are due in each step: without the occurrences that are on the schedule already."""
    found = [0] * span.steps
    for one in forecasts:
        shift = round((one.start - start) / span.step) if one.counts else 0
        for step, jobs in enumerate(one.counts):
            if 0 <= step + shift < span.steps:
                found[step + shift] += jobs
    for (_, at), jobs in on_schedule(rows).items():
        step = int((at - start) // span.step)
        if 0 <= step < span.steps:
            found[step] = max(0, found[step] - jobs)
    return found


def on_schedule(rows: Sequence[RosterRow]) -> Counter[tuple[str, int]]:
    """Count the occurrences that were put on the schedule, by queue and second."""
    found = Counter[tuple[str, int]]()
    for row in rows:
        if "ahead" in row.fields:
            moments = (number(job.rpartition("@")[2].encode()) for job in put_ahead(row.fields))
            found.update((row.queue, int(at)) for at in moments if at is not None)
    return found


def moments(
    simulation: Simulation, rows: Sequence[RosterRow], forecasts: Sequence[_QueueForecast], limit: int
) -> list[BusyMoment]:
    """Return the seconds in which most is due at once, the fullest first."""
    sharing = dict[Key, list[RosterRow]]()
    for row in rows:
        sharing.setdefault(row.key, []).append(row)
    jobs = Counter[int]()
    for key, alike in sharing.items():
        planned = simulation.planned.get(key, _NOTHING)
        for at in planned.times if planned.exact else ():
            jobs[int(at)] += len(alike)
    singles, put = Counter[int](), on_schedule(rows)
    for one in forecasts:
        if one.peak is not None:
            peak, at = one.peak
            singles[int(at)] += max(0, peak - put[one.queue, int(at)])
    full = sorted(jobs | singles, key=lambda at: (-jobs[at] - singles[at], at))[:limit]
    found = list[BusyMoment]()
    for at in full:
        keys = (key for key in sharing if _has(simulation.planned.get(key, _NOTHING), at))
        named = [(row.queue, row.name) for key in islice(keys, 3) for row in sharing[key][:3]][:3]
        found.append(BusyMoment(float(at), jobs[at] + singles[at], singles[at], named, jobs[at]))
    return [one for one in found if one.jobs > 1]


def _has(planned: Planned, at: int) -> bool:
    place = bisect_right(planned.times, at + 0.999)
    return planned.exact and place > 0 and planned.times[place - 1] >= at


def axis(simulation: Simulation, zone: tzinfo) -> list[str]:
    """Return seven times along a chart, in a zone."""
    shape = "%a %d" if simulation.span.length > 86400 else "%H:%M"
    return [
        datetime.fromtimestamp(simulation.start + simulation.span.length * part / 6, zone).strftime(shape)
        for part in range(7)
    ]
