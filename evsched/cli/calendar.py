"""The commands about time: named windows, and what will run in each hour to come."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple

from cyclopts import App, Parameter

import evsched
from evsched.cli import output
from evsched.cli.options import Json, Queue, Url, client
from evsched.cli.recurrences import Zone, in_zone
from evsched.cli.table import Column, Moment, table
from evsched.cli.time_args import parse_time
from evsched.cli.unknown_queues import client_of, note_if_unknown
from evsched.cli.usage import UsageError
from evsched.client.recurrence_operations import find_standing, kept, read_stored
from evsched.config import DEFAULT_QUEUE
from evsched.errors import ConfigError
from evsched.recurrence.look_ahead import Standing, runs_ahead
from evsched.recurrence.recurrence import Declared, Recurrence, read_recurrence
from evsched.recurrence.windows import parse_window
from evsched.recurrence.zones import find_zone
from evsched.store.store import Store

windows = App(
    name="windows",
    help="List, set or remove named windows: the hours in which jobs may start.",
    version=evsched.__version__,
)

_LOOKED_MOST = 200_000
"""The most planned times that a simulation looks at: with a window, each takes 25 us, so all take some 5 s."""


@windows.default
@windows.command(name="list")
def list_windows(*, queue: Queue = DEFAULT_QUEUE, json: Json = False, url: Url = None) -> int:
    """List the named windows of a queue, and when each opens next.

    Example: evsched windows --queue mail
    """
    with client_of(url, queue) as redis:
        found, now = redis.send(Store(queue).windows()), redis.now(queue)
        unknown = note_if_unknown(redis, queue, found)
    rows = [_row(name, text, now) for name, text in sorted(found.items())]
    if json:
        output.as_json(rows)
        return unknown
    columns = (Column("name"), Column("now", 2), Column("opens", 3), Column("window", 1, prose=True))
    shown = [(row["name"], row["now"], Moment(row["opens"]), row["window"]) for row in rows]
    table(columns, shown, f"queue {queue} has no named windows")
    return unknown


def _row(name: str, window: str, now: float) -> dict[str, Any]:
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


def simulate(
    *,
    since: Annotated[str | None, Parameter(name="--from", help="The start: 2030-01-31T09:00. Default: now.")] = None,
    until: Annotated[str | None, Parameter(name="--to", help="The end. Default: a day after the start.")] = None,
    rule: Annotated[
        list[str] | None,
        Parameter(negative="", help="Simulate this rule instead of the recurrences of the queue. You can repeat it."),
    ] = None,
    zone: Zone = None,
    by: Annotated[Literal["hour", "run"], Parameter(help="One line for each hour, or for each run.")] = "hour",
    queue: Queue = DEFAULT_QUEUE,
    json: Json = False,
    url: Url = None,
) -> int:
    """List what the recurrences of a queue will run between two times. Nothing is changed.

    As if each run ended at once. At most 400 days and 200,000 planned times.

    Example: evsched simulate --from 2030-03-31T00:00 --to 2030-04-01T00:00 --by run
    """
    try:
        local = find_zone("UTC" if zone is None else zone)
        first = time.time() if since is None else parse_time(since, zone)
        last = first + 86400 if until is None else parse_time(until, zone)
        if not 0 < last - first <= 400 * 86400:
            raise UsageError("--to: after --from, by 400 days at the most")
        recurrences, unknown = (_given(rule, local.key), 0) if rule else _kept(url, queue)
        runs = _runs(recurrences, first, last)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if json:
        output.as_json([{"due": due, "name": name} for due, name in runs])
        return unknown
    if by == "run":
        columns = (Column("due", 1), Column("name"))
        table(columns, [(in_zone(due, local), name) for due, name in runs], "nothing will run")
        return unknown
    hours = Counter(due // 3600 * 3600 for due, _ in runs)
    shown = list[tuple[str, int, str | None, str]]()
    for hour in sorted(hours):
        names = Counter(name for due, name in runs if due // 3600 * 3600 == hour)
        counts = ", ".join(f"{name} {count}" for name, count in names.most_common(5))
        shown.append((in_zone(hour, local), hours[hour], _clock_is_set(hour, local), counts))
    columns = (Column("hour"), Column("runs", 1), Column("DST", 3), Column("of", 2, prose=True))
    table(columns, shown, "nothing will run")
    return unknown


class _Ahead(NamedTuple):
    """A recurrence, where it stands, and the time at which that was read."""

    recurrence: Recurrence
    standing: Standing
    now: float


def _given(rules: list[str], zone: str) -> list[_Ahead]:
    declared = [Declared(name=f"rule-{n}", rule=rule, zone=zone, payload=b"{}") for n, rule in enumerate(rules, 1)]
    return [_Ahead(read_recurrence(one), Standing(0.0), 0.0) for one in declared]


def _kept(url: str | None, queue: str) -> tuple[list[_Ahead], int]:
    """Return the recurrences of a queue that recur, and the exit code. A line on stderr names each that cannot."""
    ahead = list[_Ahead]()
    with client_of(url, queue) as redis:
        now, found = redis.now(queue), redis.run(kept(Store(queue)))
        for name, at, fields in found:
            if not fields or "retired" in fields or ("paused" in fields and "paused_until" not in fields):
                continue
            try:
                if "reason" in fields:
                    raise ConfigError(fields["reason"].decode(errors="backslashreplace"))
                recurrence = redis.run(read_stored(Store(queue), name, fields))
            except ConfigError as error:
                output.note(f"{name} is left out, since it makes no jobs: {error}")
            else:
                ahead.append(_Ahead(recurrence, redis.run(find_standing(Store(queue), at, fields)), now))
        return ahead, note_if_unknown(redis, queue, found)


def _runs(recurrences: list[_Ahead], first: float, last: float) -> list[tuple[float, str]]:
    """Return the due and the name of each run in a span.

    Raises:
        UsageError: there are too many planned times.
    """
    found, looked = list[tuple[float, str]](), 0
    for recurrence, standing, now in recurrences:
        for one in runs_ahead(recurrence, standing, now, first):
            if one.planned > last:
                break
            looked += 1
            if looked > _LOOKED_MOST:
                raise UsageError(f"more than {_LOOKED_MOST} planned times to look at: choose a shorter span, by --to")
            if one.runs and one.due is not None and one.due <= last:
                found.append((one.due, recurrence.declared.name))
    return sorted(found)


def _clock_is_set(hour: float, zone: Any) -> str | None:
    """Return a note if the clocks are changed on this day."""
    day = datetime.fromtimestamp(hour, zone).replace(hour=0, minute=0, second=0)
    before, after = day.utcoffset(), (day + timedelta(days=1)).utcoffset()
    if before == after or before is None or after is None:
        return None
    return f"clock set {'forward' if after > before else 'back'}"
