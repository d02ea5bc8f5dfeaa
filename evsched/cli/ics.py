"""Reads the whole days of an iCalendar file: public holidays, a company's shutdown. Needs the extra `calendars`.

Only events that last whole days count. Repetitions are written out, because nothing else in evsched reads rules of
iCalendar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from evsched.errors import ConfigError
from evsched.recurrence.calendars import RANGES, Days, merge

if TYPE_CHECKING:
    from icalendar import Event

_LARGEST: Final = 10_000_000
"""Bytes of a file, at most: it takes some seconds to read."""

_BY_DAYS: Final = {"DAILY", "WEEKLY", "MONTHLY", "YEARLY"}


class WholeDays(Struct, frozen=True):
    """What a file has between two days."""

    days: Days
    left_out: int
    """How many events do not last whole days."""


def read_file(path: Path, first: date, last: date) -> WholeDays:
    """Return the days from `first` to `last` that events of a file cover.

    Raises:
        ConfigError: the file cannot be read, has too many days, or a part of it is not valid.
    """
    try:
        from icalendar import Calendar
    except ImportError as error:
        raise ConfigError(
            "calendars need icalendar 6 or newer: pip install '.[calendars]' in a checkout of evsched"
        ) from error
    try:
        if path.stat().st_size > _LARGEST:
            raise ConfigError(f"{path} has more than {_LARGEST // 1_000_000} MB")
        calendars = Calendar.from_ical(path.read_bytes(), multiple=True)
        events: list[Any] = [event for calendar in calendars for event in calendar.walk("VEVENT")]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"{path} is not an iCalendar file: {error}") from None
    return _days_of(path, events, first, last)


def _days_of(path: Path, events: list[Event], first: date, last: date) -> WholeDays:
    ranges, left_out = list[tuple[date, date]](), 0
    moved = set(_moved(events))
    for event in events:
        if str(event.get("STATUS", "")).upper() == "CANCELLED":
            continue
        try:
            span = _whole_days(event)
            if span is None:
                left_out += 1
                continue
            begin, length = span
            for day in _begins(event, begin, first - length, last):
                end = day + length - timedelta(days=1)
                if day <= last and end >= first and ("RECURRENCE-ID" in event or (_uid(event), day) not in moved):
                    ranges.append((max(day, first), min(end, last)))
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigError(f"{path}: event {str(event.get('SUMMARY', ''))!r}: {error}") from None
    days = merge(ranges)
    if len(days) > RANGES:
        raise ConfigError(f"{path} has {len(days)} ranges of days, more than {RANGES}: give fewer --years")
    return WholeDays(days, left_out)


def _moved(events: Iterable[Event]) -> Iterator[tuple[str, date]]:
    """Yield the repetitions that an event of their own replaces."""
    for event in events:
        original: Any = getattr(event.get("RECURRENCE-ID"), "dt", None)
        if isinstance(original, date):
            yield _uid(event), _day(original)


def _uid(event: Event) -> str:
    return str(event.get("UID", ""))


def _day(moment: date | datetime) -> date:
    return moment.date() if isinstance(moment, datetime) else moment


def _whole_days(event: Event) -> tuple[date, timedelta] | None:
    """Return the first day of an event and how many it has; None if it does not last whole days.

    Some programs write whole days as times from midnight to midnight.
    """
    begin, end = event.start, event.end
    length = _day(end) - _day(begin)
    if isinstance(begin, datetime) and isinstance(end, datetime):
        midnights = begin.time() == end.time() == time()
        return (begin.date(), length) if midnights and length else None
    return _day(begin), max(length, timedelta(days=1))


def _begins(event: Event, begin: date, first: date, last: date) -> set[date]:
    """Return the days on which an event begins, those of its repetitions between `first` and `last`."""
    from dateutil.rrule import rrulestr  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

    found = {begin, *(_day(day) for day, _ in event.rdates)}
    for rule in event.rrules:
        if not _BY_DAYS.issuperset(rule.get("FREQ", ())):
            raise ValueError("it repeats more than once a day")
        limited: Any = rule.copy()
        if "UNTIL" in limited:  # as a day, since the rule begins on one
            limited["UNTIL"] = [_day(until) for until in limited["UNTIL"]]
        text = limited.to_ical().decode()
        repeated: Any = rrulestr(text, dtstart=datetime.combine(begin, time()))
        midnights = repeated.between(datetime.combine(first, time()), datetime.combine(last, time()), inc=True)
        found.update(midnight.date() for midnight in midnights)
    return found - {_day(day) for day in event.exdates}
