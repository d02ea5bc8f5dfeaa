"""The commands about recurrences: list, look ahead, make, remove, pause, resume, trigger and backfill."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from datetime import datetime, timedelta
from math import inf
from typing import Annotated, Final, Literal, NamedTuple
from zoneinfo import ZoneInfo

from cyclopts import App, Parameter

import evsched
from evsched.cli import output
from evsched.cli.command_client import client, client_of, note_if_unknown
from evsched.cli.commands import UsageError
from evsched.cli.deploy_commands import prune, rollback
from evsched.cli.job_commands import Group, Priority, Redact, Tag, Window, argument
from evsched.cli.options import Json, Queue, RecurrenceName, Url, acting, whole
from evsched.cli.output import Column, Moment, listing, sentence, table
from evsched.cli.policy_commands import Until, Why, end_of_pause
from evsched.client import recurrence_operations
from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, check_job_options, new_job
from evsched.client.recurrence_operations import RecurrenceStatus, find_standing, kept, list_statuses, read_stored
from evsched.client.time_texts import parse_future, parse_time
from evsched.config import DEFAULT_QUEUE
from evsched.display import format_duration
from evsched.errors import ConfigError, EvschedError, JobMissing
from evsched.recurrence.cron import find_zone
from evsched.recurrence.look_ahead import Standing, runs_ahead
from evsched.recurrence.recurrence import Declared, Misfire, Overlap, Recurrence, read_recurrence
from evsched.store.recurrence_calls import Backfilled
from evsched.store.store import Store

_COLUMNS = (
    Column("name"),
    Column("rule", 3),
    Column("zone", 5),
    Column("next", 1),
    Column("runs", 6),
    Column("failed", 6),
    Column("missed", 7),
    Column("last", 4),
    Column("finished", 8),
    Column("late", 9),
    Column("skip", 10),
    Column("state", 2, prose=True),
)


ZoneOfTimes = Annotated[
    str | None, Parameter(help="The time zone of times that have no offset. Default: this machine's.")
]


def list_recurrences(*, queue: Queue = DEFAULT_QUEUE, json: Json = False, url: Url = None) -> int:
    """List the recurrences of a queue: rule, next time, and how the last run ended.

    Example: evsched recurrences --queue reports
    """
    with client_of(url, queue) as redis:
        rows = redis.run(list_statuses(Store(queue)))
        unknown = note_if_unknown(redis, queue, rows)
    listing(json, rows, _COLUMNS, map(_cells, rows), f"queue {queue} has no recurrences")
    return unknown


def _cells(row: RecurrenceStatus) -> tuple[object, ...]:
    state = row.reason or _state(row)
    next_ = Moment(None if state else row.next)
    if row.requests:
        state = "; ".join(filter(None, (state, f"{row.requests} requested runs wait")))
    finished = Moment(row.last_finished if row.last_outcome else None)
    late = "" if row.last_lateness is None else format_duration(row.last_lateness)
    counts = (row.runs, row.failed, row.missed, row.last_outcome, finished, late)
    return row.name, row.rule, row.zone or "UTC", next_, *counts, row.skip, state


def _state(row: RecurrenceStatus) -> str:
    """Return why a recurrence has no next time, '' = it has one."""
    paused = ""
    if row.paused:
        until = f" until {output.moment(row.paused_until, short=True)}" if row.paused_until else ""
        paused = f"paused{until}" + (f": {row.paused_why}" if row.paused_why else "")
    if row.retired:
        return "stopped: the code no longer declares it" + (f", and {paused}" if paused else "")
    if row.after_run and not paused:
        return "counted from the end of its run"
    return paused or ("" if row.next else "over, or about to begin")


@acting
def pause(
    name: RecurrenceName,
    /,
    *,
    until: Until = None,
    why: Why = "",
    zone: ZoneOfTimes = None,
    queue: Queue = DEFAULT_QUEUE,
    url: Url = None,
) -> None:
    """Pause a recurrence. Times that pass during the pause do not count as missed.

    Example: evsched recurrences pause nightly --until 2030-01-31T09:00 --why "the warehouse moves"
    """
    at = None if until is None else parse_future(until, zone)
    with client_of(url, queue) as redis:
        ends = end_of_pause(redis, queue, at)
        try:
            redis.run(recurrence_operations.pause(redis.store(queue), name, ends, why))
        except ConfigError as error:
            raise UsageError(f"--{error}") from None
    print(f"{name} is paused" + ("" if ends is None else f" until {output.moment(ends, short=True)}"))


@acting
def resume(name: RecurrenceName, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Resume a paused recurrence. Times that have passed are not made up for.

    Example: evsched recurrences resume nightly
    """
    with client_of(url, queue) as redis:
        recurs = redis.send(redis.store(queue).hold(name, False))
    print(f"{name} is resumed" + ("" if recurs else ", and stays stopped: the code no longer declares it"))


@acting
def trigger(name: RecurrenceName, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Run a recurrence once, now, also if it is paused. If it must not overlap, the run waits until the others ended.

    Example: evsched recurrences trigger nightly
    """
    with client_of(url, queue) as redis:
        try:
            job_id, begun = redis.run(recurrence_operations.trigger(redis.store(queue), name))
        except ConfigError as error:  # the record in Redis is not valid, not the command line
            raise EvschedError(str(error)) from None
    print(job_id if begun else f"{job_id} waits until the run before it has ended")


@acting
def backfill(
    name: RecurrenceName,
    /,
    *,
    since: Annotated[str, Parameter(name="--from", help="The first planned time: 2030-01-31T09:00.")],
    until: Annotated[str | None, Parameter(name="--to", help="Only planned times before this. Default: now.")] = None,
    zone: ZoneOfTimes = None,
    dry_run: Annotated[bool, Parameter(negative="", help="List the planned times, and run nothing.")] = False,
    queue: Queue = DEFAULT_QUEUE,
    json: Json = False,
    url: Url = None,
) -> None:
    """Run planned times that have passed, each once: the same command again runs nothing again.

    They run one after another, or up to 100 at a time if the overlap of the recurrence is "allow". At most 10,000.

    Example: evsched recurrences backfill nightly --from 2030-01-01 --to 2030-02-01
    """
    first = parse_time(since, zone)
    last = float("inf") if until is None else parse_time(until, zone)
    if last <= first:
        raise UsageError("--to: after --from")
    with client_of(url, queue) as redis:
        if dry_run:
            times = redis.run(recurrence_operations.planned_between(Store(queue), name, first, last))
            shown_in = None if zone is None else find_zone(zone)
            if json:
                output.as_json(times)
                return
            for planned in times:
                print(in_zone(planned, shown_in))
            return
        found = redis.run(recurrence_operations.backfill(redis.store(queue), name, first, last))
        paused = "paused" in redis.send(Store(queue).recurrence(name))
    if json:
        output.as_json(found)
    else:
        print(f"{name}: {_describe(found, paused)}")


def _describe(found: Backfilled, paused: bool) -> str:
    """Return the result of a backfill as a sentence."""
    if not (found.requested or found.known or found.later or found.left_out):
        return "no planned time has passed between --from and --to"
    parts = [f"{found.requested} runs requested" if found.requested != 1 else "1 run requested"]
    if found.known:
        parts.append(f"{found.known} were requested before or have a job")
    if found.later:
        parts.append(f"{found.later} are left to the dispatcher, which has not made them yet")
    if found.left_out:
        parts.append(f"{found.left_out} left out, because {found.waiting} wait: repeat the command later")
    if paused and found.waiting:
        parts.append("they begin when it is resumed")
    return ", ".join(parts)


app = App(
    name="recurrences",
    help="List, add, pause or remove recurrences: rules that make jobs again and again.",
    version=evsched.__version__,
)

Zone = Annotated[
    str | None,
    Parameter(
        help="The time zone, such as Europe/Berlin, of the rule and of times that have no offset. Default: UTC for the "
        "rule, this machine's zone for times."
    ),
]

_NEXT_MOST: Final = 1000
"""The most times that are listed without --to: with a window, each takes some 25 us."""

_LOOKED_MOST: Final = 200_000
"""The most planned times that are looked at for them, which takes some 5 s."""

_SPAN_OF_HOURS: Final = 86400.0
_SPAN_MOST: Final = 400 * 86400.0
"""Seconds from --from to --to: the default with --by hour, and the most."""


class _Ahead(NamedTuple):
    """A recurrence, how far it has got, and the time at which that was read."""

    recurrence: Recurrence
    standing: Standing
    now: float


class _Time(NamedTuple):
    """A planned time that will run; due None = never, since its window does not open."""

    name: str
    planned: float
    due: float | None


@app.command(name="next")
def next_times(
    name: Annotated[
        str | None, Parameter(help="The name of the recurrence. Default: all recurrences of the queue.")
    ] = None,
    /,
    *,
    rule: Annotated[
        list[str] | None,
        Parameter(negative="", help="A rule to try instead of recurrences; repeat the flag for several."),
    ] = None,
    count: Annotated[
        int | None,
        Parameter(
            converter=whole,
            name=["--count", "-n"],
            help=f"How many times to list, 1 to {_NEXT_MOST}. Default: 5, or all with --to or --by hour.",
        ),
    ] = None,
    since: Annotated[str | None, Parameter(name="--from", help="The start: 2030-01-31T09:00. Default: now.")] = None,
    until: Annotated[
        str | None, Parameter(name="--to", help="The end. Default with --by hour: a day after the start.")
    ] = None,
    by: Annotated[Literal["run", "hour"], Parameter(help="One line for each run, or for each hour.")] = "run",
    zone: Zone = None,
    queue: Queue = DEFAULT_QUEUE,
    json: Json = False,
    url: Url = None,
) -> int:
    """List the times at which recurrences, or rules that are not stored, will run next. Nothing is changed.

    As if each run ended at once. For one recurrence, the rule is explained in words, and its times are in its zone.
    At most 400 days and 200,000 planned times.

    Example: evsched recurrences next nightly-report -n 10
    """
    if count is not None and not 1 <= count <= _NEXT_MOST:
        raise UsageError(f"--count is {count}: from 1 to {_NEXT_MOST}")
    if rule and name is not None:
        raise UsageError("give the name of a recurrence, or --rule, not both")
    shown_in = find_zone("UTC" if zone is None else zone)
    first, last = (None if text is None else parse_time(text, zone) for text in (since, until))
    ahead, now, unknown = (_given(rule, shown_in.key), time.time(), 0) if rule else _stored(name, queue, url)
    first = now if first is None else first
    if last is None and by == "hour":
        last = first + _SPAN_OF_HOURS
    if last is not None and not 0 < last - first <= _SPAN_MOST:
        raise UsageError("--to: after --from, by 400 days at the most")
    times = _times(ahead, first, last, count or (5 if last is None else None))
    nothing = "does not recur any more" if last is None else "does not run in this time"
    if name is not None and not times and (json or by == "hour" or not sys.stdout.isatty()):
        output.note(f"{name} {nothing}")
    if json:
        _print_json(ahead, times, by)
        return unknown
    single = ahead[0].recurrence if name is not None or len(rule or ()) == 1 else None
    if single is not None:
        sentence(single.words())
        shown_in = shown_in if zone is not None else single.rule.zone
    if by == "hour":
        _show_hours(times, shown_in)
    else:
        _show_runs(times, shown_in, single, nothing)
    return unknown


def _stored(name: str | None, queue: str, url: str | None) -> tuple[list[_Ahead], float, int]:
    """Read one or all recurrences of a queue; return them, Redis's time, and the exit code for an unknown queue."""
    with client_of(url, queue) as redis:
        now = redis.now(queue)
        if name is not None:
            return [_named(redis, queue, name, now)], now, 0
        ahead = _kept(redis, queue, now)
        return ahead, now, note_if_unknown(redis, queue, ahead)


def _print_json(ahead: list[_Ahead], times: list[_Time], by: Literal["run", "hour"]) -> None:
    words = {one.recurrence.declared.name: one.recurrence.words() for one in ahead}
    listed = {"words": words, "times": [one._asdict() for one in times]}
    if by == "hour":
        listed["hours"] = [{"hour": hour, "runs": names.total(), "of": names} for hour, names in _by_hour(times)]
    output.as_json(listed)


def _show_runs(times: list[_Time], zone: ZoneInfo, single: Recurrence | None, nothing: str) -> None:
    """List runs with their local times in a zone.

    `single`: the recurrence that all of them belong to, if it is one. `nothing`: the words if it has none.
    """
    never = "never: the window does not open"
    rows = [
        (one.name, in_zone(one.planned, zone), Moment(one.planned), never if one.due is None else Moment(one.due))
        for one in times
    ]
    columns = (Column("name"), Column(f"in {zone.key}", 1), Column("here", 2), Column("due"))
    if single:
        table(columns[1:], [row[1:] for row in rows], f"it {nothing}")
    else:
        table(columns, rows, "nothing will run")
    if single and (declared := single.declared).window and declared.overlap != "allow" and declared.after is None:
        sentence("If several planned times wait for the same opening of its window, only the first runs.")


def _given(rules: list[str], zone: str) -> list[_Ahead]:
    declared = [Declared(name=f"rule-{n}", rule=rule, zone=zone, payload=b"{}") for n, rule in enumerate(rules, 1)]
    return [_Ahead(read_recurrence(one), Standing(0.0), 0.0) for one in declared]


def _named(redis: SyncClient, queue: str, name: str, now: float) -> _Ahead:
    """Return one recurrence. If it is paused or stopped, a line on stderr says so.

    Raises:
        JobMissing
        EvschedError: its record is not valid.
    """
    store = Store(queue)
    next_, fields = redis.send(store.next_planned(name)), redis.send(store.recurrence(name))
    if not fields:
        raise JobMissing(f"{name} is not a recurrence of queue {queue}")
    standing = redis.run(find_standing(store, next_ or 0.0, fields))
    try:
        ahead = _Ahead(redis.run(read_stored(store, name, fields)), standing, now)
    except ConfigError as error:  # the record in Redis is not valid, not the command line
        raise EvschedError(str(error)) from None
    status = redis.run(recurrence_operations.recurrence_status(store, name))
    if status.paused or status.retired:
        output.note(f"{name} is {_state(status)}; listed are the times at which it would run")
    return ahead


def _kept(redis: SyncClient, queue: str, now: float) -> list[_Ahead]:
    """Return the recurrences of a queue that recur. A line on stderr names each that cannot."""
    store, ahead = Store(queue), list[_Ahead]()
    for name, at, fields in redis.run(kept(store)):
        if not fields or "retired" in fields or ("paused" in fields and "paused_until" not in fields):
            continue
        try:
            if "reason" in fields:
                raise ConfigError(fields["reason"].decode(errors="backslashreplace"))
            recurrence = redis.run(read_stored(store, name, fields))
        except ConfigError as error:
            output.note(f"{name} is left out, since it makes no jobs: {error}")
        else:
            ahead.append(_Ahead(recurrence, redis.run(find_standing(store, at, fields)), now))
    return ahead


def _times(ahead: list[_Ahead], first: float, last: float | None, count: int | None) -> list[_Time]:
    """Return the runs that are due from `first` to `last`, in their order, at most `count`.

    Raises:
        UsageError: the span has too many planned times.
    """
    found, looked = list[_Time](), 0
    for recurrence, standing, now in ahead:
        of_this = 0
        for one in runs_ahead(recurrence, standing, now, first):
            looked += 1
            if of_this == count or (last is not None and one.planned > last):
                break
            if looked > _LOOKED_MOST:
                if last is None:
                    break
                raise UsageError(f"more than {_LOOKED_MOST} planned times to look at: choose a shorter span, by --to")
            if (one.due is None and last is None) or (one.due is not None and one.runs and one.due <= (last or inf)):
                found.append(_Time(recurrence.declared.name, one.planned, one.due))
                of_this += 1
    found.sort(key=lambda one: (inf if one.due is None else one.due, one.planned, one.name))
    return found[:count]


def _by_hour(times: list[_Time]) -> list[tuple[float, Counter[str]]]:
    """Return the hours in which something runs, each with the number of runs by recurrence."""
    by_hour = defaultdict[float, Counter[str]](Counter)
    for one in times:
        if one.due is not None:
            by_hour[one.due // 3600 * 3600][one.name] += 1
    return sorted(by_hour.items())


def _show_hours(times: list[_Time], zone: ZoneInfo) -> None:
    rows = list[tuple[str, int, str | None, str]]()
    for hour, names in _by_hour(times):
        counts = ", ".join(f"{name} {count}" for name, count in names.most_common(5))
        rows.append((in_zone(hour, zone), names.total(), _clock_is_set(hour, zone), counts))
    table((Column("hour"), Column("runs", 1), Column("DST", 3), Column("of", 2, prose=True)), rows, "nothing will run")


def _clock_is_set(hour: float, zone: ZoneInfo) -> str | None:
    """Return a note if the clocks are changed on this day."""
    day = datetime.fromtimestamp(hour, zone).replace(hour=0, minute=0, second=0)
    before, after = day.utcoffset(), (day + timedelta(days=1)).utcoffset()
    if before == after or before is None or after is None:
        return None
    return f"clock set {'forward' if after > before else 'back'}"


def in_zone(moment: float, zone: ZoneInfo | None) -> str:
    """Return a moment as the clock on a zone's wall shows it; None: the zone of this machine."""
    return datetime.fromtimestamp(moment, zone).astimezone(zone).isoformat(" ", "seconds")


@app.command
def add(
    name: RecurrenceName,
    task: Annotated[str, Parameter(help="The name of the task.")],
    arguments: Annotated[
        list[str] | None, Parameter(help="The arguments of the task, each as JSON.", negative="")
    ] = None,
    /,
    *,
    rule: Annotated[
        str, Parameter(help="When it runs: a cron rule ('0 9 * * mon-fri'), @daily, or 'every 90' (seconds).")
    ],
    zone: Zone = None,
    start: Annotated[str | None, Parameter(help="No occurrence before this time.")] = None,
    end: Annotated[str | None, Parameter(help="No occurrence after this time.")] = None,
    count: Annotated[int | None, Parameter(converter=whole, help="End after this many occurrences.")] = None,
    spread: Annotated[
        float,
        Parameter(help="Delay each occurrence by up to this many seconds, to spread the load."),
    ] = 0.0,
    misfire: Annotated[
        Misfire,
        Parameter(help="What to do about missed occurrences: run none, the newest, or all. all: with --overlap allow."),
    ] = "once",
    overlap: Annotated[
        Overlap, Parameter(help="What to do with an occurrence that is due while the one before it runs.")
    ] = "skip",
    window: Window = None,
    after: Annotated[
        Literal["end"] | None, Parameter(help="Count the interval of --rule 'every ...' from the end of each run.")
    ] = None,
    skip: Annotated[
        str | None,
        Parameter(help="The calendar on whose days it makes no jobs; several with commas: evsched calendars."),
    ] = None,
    pause_after: Annotated[
        int | None, Parameter(converter=whole, help="Pause it after this many failures in a row.")
    ] = None,
    priority: Priority = None,
    group: Group = None,
    tag: Tag = None,
    redact: Redact = None,
    queue: Queue = DEFAULT_QUEUE,
    url: Url = None,
) -> None:
    """Add a recurrence, or change the one that has this name.

    Example: evsched recurrences add nightly report '"sales"' --rule '0 2 * * *' --zone Europe/Berlin
    """
    options = JobOptions(priority=priority, group=group, window=window, tags=tag, redact=redact)
    check_job_options(options)
    declared = Declared(
        name=name,
        rule=rule,
        payload=new_job(task, [argument(text) for text in arguments or ()], {}, options).payload,
        zone="UTC" if zone is None else zone,
        priority=priority,
        group=group,
        start=None if start is None else parse_time(start, zone),
        end=None if end is None else parse_time(end, zone),
        count=count,
        spread=spread,
        misfire=misfire,
        overlap=overlap,
        window=window,
        after=after,
        skip=skip,
        pause_after=pause_after,
    )
    with client(url) as redis:
        done, paused = redis.run(recurrence_operations.add(Store(queue), declared))
    print(f"{name} {done}" + (", and stays paused" if paused else ""))


@app.command
@acting
def remove(name: RecurrenceName, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Delete a recurrence and its scheduled jobs. If the code declares it, the next worker that starts adds it again.

    Example: evsched recurrences remove nightly
    """
    with client_of(url, queue) as redis:
        redis.remove(queue, name)
    print(f"{name} removed")


app.default(list_recurrences)
app.command(list_recurrences, name="list")
app.command(pause)
app.command(resume)
app.command(trigger)
app.command(backfill)
app.command(prune)
app.command(rollback)
