"""Calendars: local days on which recurrences make no jobs. Pure.

A calendar is stored as text, dates and ranges of dates, separated by blanks: `2026-01-01 2026-04-03..2026-04-06`.
`evsched calendars set` writes it from an iCalendar file.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from evsched.errors import ConfigError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

Days = tuple[tuple[date, date], ...]
"""Ranges of days, the first and the last of each included. They are sorted, and neither overlap nor touch."""

CALENDAR_NAME: Final = re.compile(r"[A-Za-z0-9._\-]{1,100}")

RANGES: Final = 5000
"""Ranges of a calendar, at most."""

_YEAR_MOST: Final = 9998
"""The day after the last one must exist too."""

_DAY: Final = timedelta(days=1)


def merge(ranges: Iterable[tuple[date, date]]) -> Days:
    """Return ranges sorted, with adjacent and overlapping ones merged."""
    found = list[tuple[date, date]]()
    for first, last in sorted(ranges):
        if found and first.toordinal() <= found[-1][1].toordinal() + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def last_of(days: Days, day: date) -> date | None:
    """Return the last day of the range that includes a day; None if none does."""
    at = bisect_right(days, day, key=_first) - 1
    return days[at][1] if at >= 0 and day <= days[at][1] else None


def _first(range_: tuple[date, date]) -> date:
    return range_[0]


def local_day(moment: float, zone: ZoneInfo) -> date:
    return datetime.fromtimestamp(moment, zone).date()


def begin_after(day: date, zone: ZoneInfo) -> float:
    """Return when the day after a day begins in a zone, in Unix seconds.

    Where clocks are set at midnight, a day can begin twice, and the day before it be continued in between: this is the
    first begin. A midnight that is skipped is the moment of the change.
    """
    after = day + _DAY
    return datetime(after.year, after.month, after.day, tzinfo=zone).timestamp()


def parse_calendar(text: str) -> Days:
    """Read a calendar as it is stored.

    Raises:
        ConfigError: a part of it is not valid; the message quotes the part.
    """
    parts = text.split()
    if len(parts) > RANGES:
        raise ConfigError(f"it has {len(parts)} ranges of days, more than {RANGES}")
    return merge(map(_range, parts))


def _range(part: str) -> tuple[date, date]:
    begin, _, end = part.partition("..")
    try:
        first, last = date.fromisoformat(begin), date.fromisoformat(end or begin)
    except ValueError:
        raise ConfigError(f"{part[:40]!r} is not a date or a range, such as 2026-12-24..2026-12-26") from None
    if last < first or last.year > _YEAR_MOST:
        raise ConfigError(f"{part!r} ends before it begins, or after the year {_YEAR_MOST}")
    return first, last


def format_calendar(days: Days) -> str:
    return " ".join(f"{first}" if first == last else f"{first}..{last}" for first, last in days)


def names_of(skip: str | bytes | None) -> list[str]:
    """Return the names of the calendars in a recurrence's `skip`, where commas separate them."""
    text = skip.decode(errors="replace") if isinstance(skip, bytes) else skip or ""
    return [name for name in (part.strip() for part in text.split(",")) if name]


def read_days(skip: str | None, calendars: Mapping[str, str]) -> Days:
    """Return the days of all calendars of a recurrence's `skip`.

    Raises:
        ConfigError: one of them is not in `calendars`, or is not valid.
    """
    found = list[tuple[date, date]]()
    for name in names_of(skip):
        if name not in calendars:
            raise ConfigError(f"there is no calendar {name}: evsched calendars set {name} FILE.ics --queue QUEUE")
        try:
            found += _read(calendars[name])
        except ConfigError as error:
            raise ConfigError(f"calendar {name}: {error}") from None
    return merge(found)


_read = lru_cache(64)(parse_calendar)


def just_before(moment: float) -> float:
    """Return the moment after which the given one is the first."""
    return math.nextafter(moment, -math.inf)
