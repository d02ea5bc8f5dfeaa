"""The chart of the history: the ends that its list is about, and no others.

The counts of hours can answer for queues, tasks and outcomes. For any other condition, the ends that were found are
counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Final

from msgspec import Struct

from evsched.client.history import HOUR
from evsched.console.hour_counts import WEEK
from evsched.display import format_duration
from evsched.store.history_calls import EndCount

_DAY: Final = 24
"""Hours that are drawn if the query has no time."""

_FEW: Final = 6
"""Hours: a shorter span is drawn from the ends that were found, in bars of less than an hour."""

_SHORT: Final = 8.0
"""Seconds: the times below a shorter chart have milliseconds, so that they differ."""

_BARS: Final = 60
"""Bars of such a chart."""

Weeks = Mapping[str, list[list[EndCount]]]
"""The counts of each of the last 168 hours by queue, the present one last."""


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
        marks=_marks(hours[0] * HOUR, hours[-1] * HOUR, zone, HOUR),
    )


def of_ends(times: Sequence[tuple[float, bool]], zone: tzinfo) -> EndChart | None:
    """Return the chart of the ends that were found, None if they are too few. `times`: as `PastPage` has them."""
    if len(times) < 2:
        return None
    first, last = times[-1][0], times[0][0]
    width = max((last - first) / _BARS, 0.001)
    ended, dead = [0] * _BARS, [0] * _BARS
    for moment, died in times:
        at = min(int((moment - first) / width), _BARS - 1)
        ended[at] += 1
        dead[at] += died
    return EndChart(
        ended,
        dead,
        format_duration(width),
        f"of the {len(times):,} jobs found",
        _marks(first, first + width * _BARS, zone),
    )


def _marks(first: float, last: float, zone: tzinfo, unit: float = 1.0) -> list[str]:
    """Return five times from the first to the last, each rounded to a multiple of `unit`."""
    long = last - first
    form = (
        "%H:%M:%S.%f"
        if long < _SHORT
        else "%H:%M:%S"
        if long < HOUR
        else "%H:%M"
        if long <= _DAY * HOUR
        else "%d %b %H:%M"
    )
    moments = (
        (round((first + long * part / 4) / unit) * unit if long >= _SHORT else first + long * part / 4)
        for part in range(5)
    )
    marks = [datetime.fromtimestamp(moment, zone).strftime(form) for moment in moments]
    return [mark[:-3] for mark in marks] if long < _SHORT else marks
