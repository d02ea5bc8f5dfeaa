"""The commands about recurrences and windows: list, look ahead, make, pause, remove; and what will run, by the hour."""

from __future__ import annotations

import math
import time
from collections import Counter
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from evsched.cli import output
from evsched.cli.jobs import argument
from evsched.cli.root import Json, Queue, Url, UsageError, client
from evsched.cli.when import parse_time
from evsched.client import Options, SyncClient, new_job
from evsched.config import DEFAULT_QUEUE
from evsched.errors import ConfigError, JobMissing
from evsched.recurrence import Declared, Misfire, Overlap, Recurrence, parse_rule, read_declared, read_recurrence
from evsched.store import Store
from evsched.windows import WINDOW_NAME, parse_window

app = App(name="recurrences", help="What recurs: list, next, add, pause, resume, remove.")
windows = App(name="windows", help="Named windows, in which jobs may start: list, set, remove.")

Name = Annotated[str, Parameter(help="The recurrence's name.")]
Zone = Annotated[str, Parameter(help="An IANA zone, such as Europe/Berlin.")]

_SLICE = 500
_KEPT = 35 * 86400.0
"""Seconds for which a window may have kept an occurrence that a simulation still sees."""


def _all(redis: SyncClient, queue: str) -> list[tuple[str, float, dict[str, bytes]]]:
    store, found = Store(queue), list[tuple[str, float, dict[str, bytes]]]()
    while True:
        rows = redis.send(store.recurrences(len(found), _SLICE))
        found += [(name, at, redis.send(store.recurrence(name))) for name, at in rows]
        if len(rows) < _SLICE:
            return found


def _text(fields: dict[str, bytes], name: str) -> str | None:
    return fields[name].decode(errors="backslashreplace") if name in fields else None


def _number(fields: dict[str, bytes], name: str) -> float | None:
    return float(fields[name]) if name in fields else None


@app.default
@app.command(name="list")
def list_recurrences(*, queue: Queue = DEFAULT_QUEUE, json: Json = False, url: Url = None) -> None:
    """List the recurrences of a queue: rule, next time, and what came of them."""
    rows = list[dict[str, Any]]()
    with client(url) as redis:
        for name, at, fields in _all(redis, queue):
            rows.append(
                {
                    "name": name,
                    "rule": _text(fields, "rule"),
                    "zone": _text(fields, "zone"),
                    "next": at if 0 < at < float("inf") else None,
                    "paused": _number(fields, "paused"),
                    "runs": int(_number(fields, "runs") or 0),
                    "missed": int(_number(fields, "missed") or 0),
                    "last_outcome": _text(fields, "last_outcome"),
                    "last_finished": _number(fields, "last_finished"),
                    "last_lateness": _number(fields, "last_lateness"),
                    "declared_by": _text(fields, "owner"),
                    "reason": _text(fields, "reason"),
                }
            )
    if json:
        output.as_json(rows)
        return
    shown = list[tuple[object, ...]]()
    for row in rows:
        stands = "paused" if row["paused"] else output.moment(row["next"]) or "over, or about to begin"
        state = row["reason"] or stands
        late = "" if row["last_lateness"] is None else f"{row['last_lateness'] * 1e3:.0f} ms"
        last = f"{row['last_outcome']} {output.moment(row['last_finished'])}" if row["last_outcome"] else ""
        shown.append((row["name"], row["rule"], row["zone"] or "UTC", state, row["runs"], row["missed"], last, late))
    columns = ("name", "rule", "zone", "next on the schedule", "runs", "missed", "last", "late")
    output.table(columns, shown, f"queue {queue} has no recurrences")


@app.command(name="next")
def next_times(
    name: Name,
    /,
    *,
    count: Annotated[int, Parameter(name=["--count", "-n"], help="How many.")] = 5,
    queue: Queue = DEFAULT_QUEUE,
    json: Json = False,
    url: Url = None,
) -> None:
    """Say in words when it recurs, and list the next times in its zone and here."""
    with client(url) as redis:
        fields = redis.send(Store(queue).recurrence(name))
        if not fields:
            raise JobMissing(f"{name} is no recurrence of queue {queue}")
        now = redis.now()
    recurrence = read_recurrence(read_declared(name, fields))
    found = list[dict[str, Any]]()
    for planned in recurrence.walk(now):
        if len(found) >= max(count, 1):
            break
        one = recurrence.occurrence(planned)
        found.append({"planned": planned, "due": None if one is None else one.due})
    if json:
        output.as_json({"words": recurrence.rule.words(), "times": found})
        return
    print(recurrence.rule.words() + (f"; window {recurrence.window.text}" if recurrence.window else ""))
    zone = recurrence.rule.zone
    shown = [
        (
            _in_zone(one["planned"], zone),
            output.moment(one["planned"]),
            output.moment(one["due"]) or "never: no opening",
        )
        for one in found
    ]
    output.table((f"in {zone.key}", "here", "due"), shown, "it does not recur any more")


def _in_zone(moment: float, zone: Any) -> str:
    return datetime.fromtimestamp(moment, zone).isoformat(" ", "seconds")


@app.command
def add(
    name: Name,
    task: Annotated[str, Parameter(help="The task's name.")],
    arguments: Annotated[list[str] | None, Parameter(help="Its arguments, each as JSON.", negative="")] = None,
    /,
    *,
    rule: Annotated[str, Parameter(help="Cron, @daily and the like, or 'every 90' (seconds).")],
    zone: Zone = "UTC",
    start: Annotated[str | None, Parameter(help="Not before: ISO 8601 or Unix seconds.")] = None,
    end: Annotated[str | None, Parameter(help="Not after.")] = None,
    count: Annotated[int | None, Parameter(help="How many in all.")] = None,
    spread: Annotated[float, Parameter(help="Move each by a stable part of so many seconds.")] = 0.0,
    misfire: Annotated[Misfire, Parameter(help="What of missed ones.")] = "once",
    overlap: Annotated[Overlap, Parameter(help="What of one that falls due while the one before runs.")] = "skip",
    window: Annotated[str | None, Parameter(help="When it may start; or the name of a window.")] = None,
    priority: Annotated[int | None, Parameter(help="0 to 9, higher first.")] = None,
    group: Annotated[str | None, Parameter(help="A group that gets a fair share.")] = None,
    queue: Queue = DEFAULT_QUEUE,
    url: Url = None,
) -> None:
    """Make a recurrence, or change the one of that name."""
    try:
        options = Options(priority=priority, group=group, window=window)
        declared = Declared(
            name=name,
            rule=rule,
            payload=new_job(task, [argument(text) for text in arguments or ()], {}, options).payload,
            zone=zone,
            priority=priority,
            group=group,
            start=None if start is None else parse_time(start),
            end=None if end is None else parse_time(end),
            count=count,
            spread=spread,
            misfire=misfire,
            overlap=overlap,
            window=window,
        )
        read_recurrence(declared)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    with client(url) as redis:
        print(f"{name} {redis.declare(queue, declared)}")


@app.command
def pause(name: Name, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Let it not recur until `resume`. The times that pass meanwhile are not missed."""
    with client(url) as redis:
        redis.send(Store(queue).hold(name, True))
    print(f"{name} is paused")


@app.command
def resume(name: Name, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Let it recur again, from now on."""
    with client(url) as redis:
        redis.send(Store(queue).hold(name, False))
    print(f"{name} goes on")


@app.command
def remove(name: Name, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Delete it, with what it has on the schedule. One that the code declares is made again by the next worker."""
    with client(url) as redis:
        redis.remove(queue, name)
    print(f"{name} removed")


@windows.default
@windows.command(name="list")
def list_windows(*, queue: Queue = DEFAULT_QUEUE, json: Json = False, url: Url = None) -> None:
    """List the named windows of a queue, and when each opens next."""
    with client(url) as redis:
        found, now = redis.send(Store(queue).windows()), redis.now()
    if json:
        output.as_json(found)
        return
    shown = list[tuple[str, str, str]]()
    for name, text in sorted(found.items()):
        try:
            opens = parse_window(text).next_open(now)
            state = "open" if opens == now else f"opens {output.moment(opens)}" if opens else "does not open again"
        except ConfigError as error:
            state = str(error)
        shown.append((name, text, state))
    output.table(("name", "window", "now"), shown, f"queue {queue} has no named windows")


@windows.command(name="set")
def set_window(
    name: Annotated[str, Parameter(help="Its name, which jobs give as their window.")],
    window: Annotated[str, Parameter(help="Such as 'mon-fri 22:00-06:00 Europe/Berlin; not 2026-12-24..2026-12-26'.")],
    /,
    *,
    queue: Queue = DEFAULT_QUEUE,
    url: Url = None,
) -> None:
    """Keep a window under a name. It holds at once, for all jobs that name it."""
    try:
        if not WINDOW_NAME.fullmatch(name):
            raise ConfigError(f"window name {name!r}: 1 to 100 of A-Z a-z 0-9 . _ -")
        parse_window(window)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    with client(url) as redis:
        redis.send(Store(queue).set_window(name, window))
    print(f"{name} is {window}")


@windows.command(name="remove")
def remove_window(
    name: Annotated[str, Parameter(help="Its name.")], /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None
) -> None:
    """Delete a named window. Jobs that name it go to dead when they fall due."""
    with client(url) as redis:
        if not redis.send(Store(queue).set_window(name, None)):
            raise JobMissing(f"queue {queue} has no window {name}")
    print(f"{name} removed")


def simulate(
    *,
    since: Annotated[str | None, Parameter(name="--from", help="ISO 8601 or Unix seconds; else now.")] = None,
    until: Annotated[str | None, Parameter(name="--to", help="Else a day later.")] = None,
    rule: Annotated[list[str] | None, Parameter(negative="", help="A rule instead of those in Redis.")] = None,
    zone: Zone = "UTC",
    by: Annotated[Literal["hour", "run"], Parameter(help="A line for each hour, or for each run.")] = "hour",
    queue: Queue = DEFAULT_QUEUE,
    json: Json = False,
    url: Url = None,
) -> None:
    """List what will run in a span of time, over all recurrences and their windows; nothing is written anywhere."""
    first = time.time() if since is None else parse_time(since)
    last = first + 86400 if until is None else parse_time(until)
    if not 0 < last - first <= 400 * 86400:
        raise UsageError("--to: after --from, by 400 days at the most")
    try:
        recurrences = _given(rule, zone) if rule else _kept(url, queue)
        runs = sorted(run for one in recurrences for run in _runs(one, first, last))
        local = parse_rule("@daily", zone).zone
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if json:
        output.as_json([{"due": due, "name": name} for due, name in runs])
        return
    if by == "run":
        output.table(("due", "name"), [(_in_zone(due, local), name) for due, name in runs], "nothing will run")
        return
    hours = Counter(due // 3600 * 3600 for due, _ in runs)
    shown = list[tuple[str, int, str, str]]()
    for hour in sorted(hours):
        names = Counter(name for due, name in runs if due // 3600 * 3600 == hour)
        told = ", ".join(f"{name} {count}" for name, count in names.most_common(5))
        shown.append((_in_zone(hour, local), hours[hour], told, _clock_is_set(hour, local)))
    output.table(("hour", "runs", "of", "DST"), shown, "nothing will run")


def _given(rules: list[str], zone: str) -> list[Recurrence]:
    declared = [Declared(name=f"rule-{n}", rule=rule, zone=zone, payload=b"{}") for n, rule in enumerate(rules, 1)]
    return [read_recurrence(one) for one in declared]


def _kept(url: str | None, queue: str) -> list[Recurrence]:
    with client(url) as redis:
        return [
            read_recurrence(read_declared(name, fields))
            for name, _, fields in _all(redis, queue)
            if "paused" not in fields and "reason" not in fields
        ]


def _runs(recurrence: Recurrence, first: float, last: float) -> list[tuple[float, str]]:
    found = list[tuple[float, str]]()
    # What a window has kept may be due long after its time.
    back = recurrence.declared.spread + (_KEPT if recurrence.window else 0.0)
    for planned in recurrence.walk(math.nextafter(first - back, 0.0)):
        if planned > last:
            break
        one = recurrence.occurrence(planned)
        if one is not None and first <= one.due <= last:
            found.append((one.due, recurrence.declared.name))
    return found


def _clock_is_set(hour: float, zone: Any) -> str:
    """Say so when the clock on the wall is set on this day."""
    day = datetime.fromtimestamp(hour, zone).replace(hour=0, minute=0, second=0)
    before, after = day.utcoffset(), (day + timedelta(days=1)).utcoffset()
    if before == after or before is None or after is None:
        return ""
    return f"clock set {'forward' if after > before else 'back'}"
