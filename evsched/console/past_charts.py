"""The charts over time: the one of the history, and the times below all.

The chart of the history is about the ends that its list is about, and no others. The counts of hours can answer for
queues, tasks and outcomes. For any other condition, the ends that were found are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from math import ceil, floor
from typing import Final

from msgspec import Struct

from evsched.client.history import HOUR
from evsched.console.hour_counts import WEEK
from evsched.console.words import length
from evsched.store.history_calls import EndCount

_DAY: Final = 24
"""Hours that are drawn if the query has no time."""

_FEW: Final = 6
"""Hours: a shorter span is drawn from the ends that were found, in bars of less than an hour."""

_SHORT: Final = 8.0
"""Seconds: the times below a shorter chart have milliseconds, so that they differ."""

_PARTS: Final = 6
"""Parts of a chart at most, from one time below it to the next."""

_STEPS: Final = (
    *((step * unit, 10) for unit in (0.001, 0.01, 0.1, 1.0) for step in (1, 2, 5)),
    *((10.0, 10), (15.0, 15), (30.0, 15), (60.0, 12), (120.0, 12), (300.0, 10), (600.0, 10), (900.0, 15), (1800.0, 15)),
    *((hours * HOUR, bars) for hours, bars in ((1, 12), (2, 12), (3, 12), (6, 12), (12, 12), (24, 12), (48, 12))),
)
"""The seconds that such a part may have, and its bars. Longer parts are whole weeks."""

_NOISE: Final = 1e-3
"""A part of a step: Unix seconds are not exact to a millionth."""

_WEEKLY: Final = 14
"""Bars of a part of whole weeks."""

_ROUND: Final = (1, 2, 3, 6, 12, 24, 48)
"""Hours of a part that are easy to count with."""

Weeks = Mapping[str, list[list[EndCount]]]
"""The counts of each of the last 168 hours by queue, the present one last."""


class Axis(Struct, frozen=True):
    """The times below a chart, at even distances. In Unix seconds."""

    start: float
    step: float
    """From one time to the next."""
    parts: int
    bars: int
    """Bars of each part."""

    @property
    def bar(self) -> float:
        """Seconds of a bar."""
        return self.step / self.bars

    @property
    def all_bars(self) -> int:
        return self.parts * self.bars

    def marks(self, zone: tzinfo) -> list[str]:
        """Return the times as texts."""
        return marks(self.start, self.step, self.parts, zone)


def even_axis(first: float, last: float, zone: tzinfo) -> Axis:
    """Return the axis of a span of time: its times are round in a zone, and include the span."""
    offset = datetime.fromtimestamp(first, zone).utcoffset()
    shift = 0.0 if offset is None else offset.total_seconds()
    week = 7 * _DAY * HOUR
    weeks = week * ceil((last - first + 1) / (week * (_PARTS - 1)))
    axes = (
        Axis(
            start := floor((first + shift) / step + _NOISE) * step - shift,
            step,
            max(1, ceil((last - start) / step)),
            bars,
        )
        for step, bars in (*_STEPS, (weeks, _WEEKLY))
    )
    return next(axis for axis in axes if axis.parts <= _PARTS)


class EndChart(Struct, frozen=True):
    """A chart of ends: how many of them, and how many died, in each part of a span."""

    ended: list[int]
    dead: list[int]
    bar: str
    """How long a bar is: hour, 5m 00s."""
    span: str
    """The ends that are drawn, as the end of a heading."""
    marks: list[str]
    """Times below the chart, at equal distances."""


def hours_of(since: float | None, until: float | None, now: float) -> range | None:
    """Return the hours of a span, counted from 1970; None if they are too few, or their counts are not kept."""
    last = int(now // HOUR)
    first = last - _DAY + 1 if since is None and until is None else 0 if since is None else int(since // HOUR)
    if until is not None:
        last = min(last, int(until // HOUR))
    if first <= int(now // HOUR) - WEEK:
        if until is not None or since is None:
            return None
        first = int(now // HOUR) - WEEK + 1
    return range(first, last + 1) if last - first >= _FEW else None


def of_hours(weeks: Weeks, task: str, outcome: str, hours: range, given: bool, now: float, zone: tzinfo) -> EndChart:
    """Return the chart of the counts of hours. `given`: the query has a time."""
    newest = int(now // HOUR)
    parts = [[one for week in weeks.values() for one in week[WEEK - 1 - newest + hour]] for hour in hours]
    parts = [[one for one in part if (not task or one.task == task) and outcome in ("", one.outcome)] for part in parts]
    return EndChart(
        ended=[sum(one.jobs for one in part) for part in parts],
        dead=[sum(one.jobs for one in part if one.outcome == "dead") for part in parts],
        bar="hour",
        span=f"{len(hours)} whole hours" if given else "last 24 hours",
        marks=marks(hours[0] * HOUR, len(hours) * HOUR / parts_of(len(hours)), parts_of(len(hours)), zone),
    )


def of_ends(times: Sequence[tuple[float, bool]], zone: tzinfo) -> EndChart | None:
    """Return the chart of the ends that were found, None if they are too few. `times`: as `PastPage` has them."""
    if len(times) < 2:
        return None
    axis = even_axis(times[-1][0], times[0][0], zone)
    ended, dead = [0] * axis.all_bars, [0] * axis.all_bars
    for moment, died in times:
        at = min(int((moment - axis.start) / axis.bar), axis.all_bars - 1)
        ended[at] += 1
        dead[at] += died
    return EndChart(ended, dead, length(axis.bar), f"of the {len(times):,} jobs found", axis.marks(zone))


def parts_of(hours: int) -> int:
    """Return into how many even parts of whole hours a chart of hours is divided: 1 if there is no such number."""
    found = [parts for parts in (4, 6, 7, 5, 3, 8, 2) if hours % parts == 0]
    return next((parts for parts in found if hours // parts in _ROUND), next(iter(found), 1))


def marks(start: float, step: float, parts: int, zone: tzinfo) -> list[str]:
    """Return the times below a chart, from its start to its end, at even distances of `step` seconds."""
    long = step * parts
    form = "%H:%M"
    if long < _SHORT:
        form = "%H:%M:%S.%f"
    elif step % 60:
        form = "%H:%M:%S"
    elif step % (_DAY * HOUR) == 0 and datetime.fromtimestamp(start, zone).hour == 0:
        form = "%d %b"
    elif long > _DAY * HOUR:
        form = "%d %b %H:%M"
    found = [datetime.fromtimestamp(start + step * part, zone).strftime(form) for part in range(parts + 1)]
    return [mark[:-3] for mark in found] if long < _SHORT else found
