"""The commands about calendars and windows: days on which recurrences make no jobs, hours in which jobs may start."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

import evsched
from evsched.cli import ics, output
from evsched.cli.options import Json, Queue, Url, client, whole
from evsched.cli.table import Column, Moment, table
from evsched.cli.unknown_queues import client_of, note_if_unknown
from evsched.cli.usage import UsageError
from evsched.client.client import SyncClient
from evsched.config import DEFAULT_QUEUE
from evsched.errors import ConfigError
from evsched.recurrence.calendars import CALENDAR_NAME, Days, format_calendar, parse_calendar
from evsched.recurrence.windows import parse_window
from evsched.store.store import Store

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
    if json:
        output.as_json(rows)
        return unknown
    columns = (Column("name"), Column("days", 3), Column("next", 1), Column("last", 2), Column("note", 4, prose=True))
    shown = [(row["name"], row["days"], row["next"], row["last"], row["note"]) for row in rows]
    table(columns, shown, f"queue {queue} has no calendars")
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
        try:
            found = ics.read_file(file, date(year - 1, 1, 1), date(year + years, 12, 31))
        except ConfigError as error:
            raise UsageError(str(error)) from None
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
    if json:
        output.as_json(rows)
        return unknown
    columns = (Column("name"), Column("now", 2), Column("opens", 3), Column("window", 1, prose=True))
    shown = [(row["name"], row["now"], Moment(row["opens"]), row["window"]) for row in rows]
    table(columns, shown, f"queue {queue} has no named windows")
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
        try:
            back = redis.set_window(queue, name, window)
        except ConfigError as error:
            raise UsageError(str(error)) from None
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
