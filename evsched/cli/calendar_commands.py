"""The commands about calendars and windows: days on which recurrences make no jobs, hours in which jobs may start.

A calendar may be read from an iCalendar file (extra `calendars`). Only its events that last whole days count.
Repetitions are written out, because nothing else in evsched reads rules of iCalendar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import App, Parameter
from msgspec import Struct

import evsched
from evsched.cli.command_client import client, client_of, note_if_unknown
from evsched.cli.commands import UsageError
from evsched.cli.options import Json, Queue, Url, whole
from evsched.cli.output import Column, Moment, listing
from evsched.client.client import SyncClient
from evsched.config import DEFAULT_QUEUE
from evsched.errors import ConfigError
from evsched.recurrence.calendars import CALENDAR_NAME, RANGES, Days, format_calendar, merge, parse_calendar
from evsched.recurrence.windows import parse_window
from evsched.store.store import Store

if TYPE_CHECKING:
    from icalendar import Event


_LARGEST: Final = 10_000_000
"""Bytes of a file, at most: it takes some seconds to read."""

_BY_DAYS: Final = {"DAILY", "WEEKLY", "MONTHLY", "YEARLY"}


class WholeDays(Struct, frozen=True):
    """The days of a file between two days."""

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
        raise ConfigError("calendars need icalendar 6 or newer: pip install 'evsched[calendars]'") from error
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


app = App(
    name="calendars",
    help="List, set or remove calendars: days on which recurrences make no jobs.",
    version=evsched.__version__,
)

_Name = Annotated[str, Parameter(help="The name by which recurrences refer to the calendar.")]

_YEARS_MOST = 50


@app.default
@app.command(name="list")
def list_calendars(*, queue: Queue = DEFAULT_QUEUE, json: Json = False, url: Url = None) -> int:
    """List the calendars of a queue: how many days each has, the next of them, and the last.

    Example: evsched calendars --queue reports
    """
    with client_of(url, queue) as redis:
        found, today = redis.send(Store(queue).all_calendars()), _today(redis)
        unknown = note_if_unknown(redis, queue, found)
    rows = [_row(name, text, today) for name, text in sorted(found.items())]
    columns = (Column("name"), Column("days", 3), Column("next", 1), Column("last", 2), Column("note", 4, prose=True))
    shown = ((row["name"], row["days"], row["next"], row["last"], row["note"]) for row in rows)
    listing(json, rows, columns, shown, f"queue {queue} has no calendars")
    return unknown


def _row(name: str, calendar: str, today: date) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "days": None, "next": None, "last": None, "calendar": calendar}
    try:
        days = parse_calendar(calendar)
    except ConfigError as error:
        return {**row, "note": f"not valid: {error}"}
    ahead = next((max(first, today) for first, last in days if last >= today), None)
    row |= {"days": _count(days), "next": ahead, "last": days[-1][1] if days else None}
    return {**row, "note": "" if ahead else "no day is ahead: set it from a newer file"}


def _today(redis: SyncClient) -> date:
    return datetime.fromtimestamp(redis.now()).astimezone().date()


def _count(days: Days) -> int:
    return sum((last - first).days + 1 for first, last in days)


@app.command(name="set")
def set_calendar(
    name: _Name,
    file: Annotated[Path, Parameter(help="An iCalendar file (.ics).")],
    /,
    *,
    years: Annotated[
        int,
        Parameter(converter=whole, help=f"How many years ahead repeated events are written out, 1 to {_YEARS_MOST}."),
    ] = 10,
    queue: Queue = DEFAULT_QUEUE,
    url: Url = None,
) -> None:
    """Create or change a calendar: the whole days of the events in a file, from last year on.

    A change applies at once. Events that do not last whole days are left out.

    Example: evsched calendars set de-holidays holidays.ics
    """
    if not CALENDAR_NAME.fullmatch(name):
        raise UsageError(f"calendar name {name!r}: 1 to 100 of A-Z a-z 0-9 . _ -")
    if not 1 <= years <= _YEARS_MOST:
        raise UsageError(f"--years is {years}: from 1 to {_YEARS_MOST}")
    with client(url) as redis:
        year = _today(redis).year
        found = read_file(file, date(year - 1, 1, 1), date(year + years, 12, 31))
        if not found.days:
            raise UsageError(f"{file} has no event that lasts whole days, from {year - 1} to {year + years}")
        planned = redis.set_calendar(queue, name, format_calendar(found.days))
    said = f"{name} has {_count(found.days)} days from {found.days[0][0]} to {found.days[-1][1]}"
    if found.left_out:
        said += f"; {found.left_out} events that do not last whole days were left out"
    print(said + (f"; {planned} recurrences are planned again" if planned else ""))


@app.command(name="remove")
def remove_calendar(name: _Name, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Delete a calendar that no recurrence refers to.

    Example: evsched calendars remove de-holidays
    """
    with client_of(url, queue) as redis:
        redis.remove_calendar(queue, name)
    print(f"{name} removed")


windows = App(
    name="windows",
    help="List, set or remove named windows: the hours in which jobs may start.",
    version=evsched.__version__,
)


@windows.default
@windows.command(name="list")
def list_windows(*, queue: Queue = DEFAULT_QUEUE, json: Json = False, url: Url = None) -> int:
    """List the named windows of a queue, and when each opens next.

    Example: evsched windows --queue mail
    """
    with client_of(url, queue) as redis:
        found, now = redis.send(Store(queue).windows()), redis.now(queue)
        unknown = note_if_unknown(redis, queue, found)
    rows = [_window_row(name, text, now) for name, text in sorted(found.items())]
    columns = (Column("name"), Column("now", 2), Column("opens", 3), Column("window", 1, prose=True))
    shown = ((row["name"], row["now"], Moment(row["opens"]), row["window"]) for row in rows)
    listing(json, rows, columns, shown, f"queue {queue} has no named windows")
    return unknown


def _window_row(name: str, window: str, now: float) -> dict[str, Any]:
    opens: float | None = None
    try:
        opens = parse_window(window).next_open(now)
        state = "open" if opens == now else "closed" if opens else "does not open again"
    except ConfigError as error:
        state = f"not valid: {error}"
    return {"name": name, "now": state, "opens": opens if state == "closed" else None, "window": window}


@windows.command(name="set")
def set_window(
    name: Annotated[str, Parameter(help="The name by which jobs and recurrences refer to the window.")],
    window: Annotated[
        str, Parameter(help="The hours: 'mon-fri 22:00-06:00 Europe/Berlin; not 2026-12-24..2026-12-26'.")
    ],
    /,
    *,
    queue: Queue = DEFAULT_QUEUE,
    url: Url = None,
) -> None:
    """Create or change a named window. A change applies at once, also to jobs that already wait for the window.

    Example: evsched windows set nights '22:00-06:00 Europe/Berlin'
    """
    with client(url, changes_queue=True) as redis:
        back = redis.set_window(queue, name, window)
    print(f"{name} is {window}" + (f"; {back} jobs that waited for it are checked again" if back else ""))


@windows.command(name="remove")
def remove_window(
    name: Annotated[str, Parameter(help="The name of the window.")], /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None
) -> None:
    """Delete a named window that no recurrence refers to. A job that does goes to the dead-letter set when it is due.

    Example: evsched windows remove nights
    """
    with client_of(url, queue, changes_queue=True) as redis:
        back = redis.remove_window(queue, name)
    print(f"{name} removed" + (f"; {back} jobs that waited for it go to dead" if back else ""))
