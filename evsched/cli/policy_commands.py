"""The commands that operators set policy with: pause, resume, limit, limits, and the lease."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any

from cyclopts import Parameter

from evsched import keys
from evsched.cli import output
from evsched.cli.command_client import client, missing, note_unknown
from evsched.cli.commands import UsageError
from evsched.cli.options import Json, Queues, Url, acting
from evsched.cli.output import Column, Moment, listing
from evsched.cli.queue_commands import KnownLimits, each, report
from evsched.client import gate
from evsched.client.client import SyncClient
from evsched.client.operations import Operation
from evsched.client.time_texts import parse_future, parse_length
from evsched.config import RANGES
from evsched.errors import ConfigError, EvschedError
from evsched.jobs.groups import BATCH, describe
from evsched.keys import check_queue
from evsched.lease import DEFAULT
from evsched.store import server
from evsched.store.gate_limits import Limits, merged, own, shown
from evsched.store.server import clock
from evsched.store.store import Store

COLUMNS = (Column("group", 1), Column("limit"), Column("value"), Column("in the code", 2))


def by_part(stores: Sequence[Store], parts: Sequence[Limits]) -> list[tuple[str | None, Limits]]:
    """Return the limits of a whole queue, with None, and the limits of only some shards, with their names."""
    whole = merged(parts)
    alone = [(store.queue, own(part, whole)) for store, part in zip(stores, parts, strict=True)]
    return [(None, whole), *(alone if len(parts) > 1 else ())]


def rows_of(found: Limits) -> list[tuple[str, str, object, str]]:
    """Return the rows of a queue, by COLUMNS."""
    rows = list[tuple[str, str, object, str]]()
    for field, value in found.fields().items():
        name, _, group = field.partition(":")
        rows.append((group, name, "none" if value is None else shown(name, value), _in_code(found, field)))
    for group in found.batches:
        home, _, batch = group.removeprefix(BATCH).partition("/")  # a long address is a hash, without a slash
        remedy = f"evsched batches resume {batch} --queue {home}" if batch else "evsched batches resume"
        rows.append((describe(group), "paused", remedy, ""))
    if found.paused is not None:
        rows.append(("", "paused since", Moment(found.paused), ""))
        if found.paused_until is not None:
            rows.append(("", "paused until", Moment(found.paused_until), ""))
        if found.paused_why:
            rows.append(("", "paused because", found.paused_why, ""))
    return rows


def _in_code(found: Limits, field: str) -> str:
    declared = found.declared.get(field)
    if declared is None:
        return ""
    changed = ", changed by hand" if found.overruled(field) else ""
    return f"{shown(field.partition(':')[0], declared.value)} in app {declared.app}{changed}"


def limits(*, queue: Queues = None, json: Json = False, url: Url = None) -> int:
    """List the limits of each queue, and the limits that apps declare. Exit code 1: as `evsched queues`.

    A limit that was changed by hand stays so until its declaration in the code changes. The limits of a queue with
    shards are divided among them: their sum is listed, and by itself a limit that only one shard has.

    Example: evsched limits --queue mail
    """
    rows, listed = list[tuple[str, str, str, object, str]](), list[dict[str, Any]]()
    with client(url) as redis:
        known = KnownLimits(redis)

        def parts_of(stores: Sequence[Store]) -> Operation[list[tuple[str | None, Limits]]]:
            return by_part(stores, (yield from known.read(stores)))

        read, down = each(redis, queue, parts_of, begin=known.begin)
        for one in read:
            name = one.queue
            for part, limited in one.found or ():
                rows += [(name if part is None else f"{part} alone", *row) for row in rows_of(limited)]
                for field, value in limited.fields().items():
                    limit, _, group = field.partition(":")
                    declared = limited.declared.get(field)
                    row = {"queue": name, "group": group or None, "limit": limit, "value": value}
                    row |= {"declared": declared and declared.value, "app": declared and declared.app}
                    listed.append(row | ({} if part is None else {"alone": part}))
                paused = [(group, None) for group in limited.batches]
                paused += [] if limited.paused is None else [(None, limited.paused)]
                for group, since in paused:
                    row = {"queue": name, "group": group, "limit": "paused", "value": since}
                    listed.append(row | ({} if part is None else {"alone": part}))
        unknown = note_unknown(redis, queue or ())
    listing(json, listed, (Column("queue"), *COLUMNS), rows, "no limits")
    return report((one.problem for one in read), down) or unknown


Q = Annotated[str | None, Parameter(help="The queue.")]
Flag = Annotated[str | None, Parameter(name="--queue", help="The queue, if it is not the first argument.")]
Until = Annotated[
    str | None,
    Parameter(
        help="When the pause ends by itself: 10m for ten minutes from now, 17:00 for the next 17:00, 2030-01-31T09:00, "
        "in your time zone, or Unix seconds. Default: when you resume it."
    ),
]
Why = Annotated[str, Parameter(help="A sentence for people who look at it later.")]
Create = Annotated[bool, Parameter(negative="", help="Do it even if the queue has never been used.")]
_LIFT = "'none' removes the limit."


def end_of_pause(redis: SyncClient, queue: str, until: float | timedelta | None) -> float | None:
    """Return the end of a pause in Unix seconds. `until`: as `parse_future` returns it; a length counts from now."""
    if isinstance(until, timedelta):
        return redis.send(clock(keys.root(queue))) + until.total_seconds()
    return until


def _queue(command: str, first: str | None, flag: str | None) -> str:
    """Return the queue that a command names, as its first argument or with --queue.

    Raises:
        UsageError: it names none, or two.
        ConfigError: the name is not valid.
    """
    queue = first or flag
    if queue is None or (first and flag):
        raise UsageError(f"{command}: name one queue: evsched {command} mail")
    return check_queue(queue)


@acting
def pause(
    queue: Q = None,
    /,
    *,
    until: Until = None,
    why: Why = "",
    create: Create = False,
    named: Flag = None,
    url: Url = None,
) -> None:
    """Pause a queue: running jobs finish, and no other job starts until you resume the queue.

    It pauses all shards of a queue. If that fails, the same command does the rest. If the queue is paused already, it
    replaces the end and the reason of the pause.

    Example: evsched pause mail --until 2030-01-31T09:00 --why "the provider is down"
    """
    queue = _queue("pause", queue, named)
    at = None if until is None else parse_future(until)
    with client(url, changes_queue=True) as redis:
        if not create and (unknown := missing(redis, queue)):
            raise EvschedError(f"{unknown}; --create pauses it before its first job")
        ends = end_of_pause(redis, queue, at)
        try:
            since, back = redis.run(gate.pause(redis.stores(queue), ends, why))
        except ConfigError as error:
            raise UsageError(f"--{error}") from None
    end = "" if ends is None else f" until {output.moment(ends, short=True)}"
    print(f"{queue} is paused since {output.moment(since)}{end}; {back} jobs went back to the backlog")


@acting
def resume(queue: Q = None, /, *, named: Flag = None, url: Url = None) -> None:
    """Resume a paused queue.

    Example: evsched resume mail
    """
    queue = _queue("resume", queue, named)
    with client(url, changes_queue=True) as redis:
        if unknown := missing(redis, queue):
            raise EvschedError(unknown)
        since = redis.resume(queue)
    ago = "it was not paused" if since is None else f"it was paused since {output.moment(since)}"
    print(f"{queue} is resumed: {ago}")


@acting
def limit(
    queue: Q = None,
    /,
    *,
    group: Annotated[
        str | None,
        Parameter(
            help=r"Limit this group instead of the whole queue. '\*': each group that has no such limit of its own. "
            r"origin:https://api.example.com: the requests to one origin; 'origin:\*': each origin."
        ),
    ] = None,
    task: Annotated[str | None, Parameter(help="Limit the jobs of this task, whatever their groups.")] = None,
    concurrency: Annotated[
        str | None, Parameter(help=f"How many jobs may run at the same time, over all workers. {_LIFT}")
    ] = None,
    rate: Annotated[str | None, Parameter(help=f"How many jobs may start: 200/s, 30/m or 1000/h. {_LIFT}")] = None,
    burst: Annotated[
        str | None,
        Parameter(
            help=f"How many jobs of the rate may start at once. Default: a tenth of a second of the rate. {_LIFT}"
        ),
    ] = None,
    weight: Annotated[
        str | None, Parameter(help=f"The share of the group; 2 is twice that of other groups. Default: 1. {_LIFT}")
    ] = None,
    history: Annotated[
        str | None,
        Parameter(
            help="About how many ended jobs `evsched history` lists; 0 = none, and it counts none either. Default: "
            f"10000. {_LIFT}"
        ),
    ] = None,
    history_age: Annotated[
        str | None,
        Parameter(help=f"For how long after the last one it lists them: 30m, 12h or 7d. Default: 1d. {_LIFT}"),
    ] = None,
    create: Create = False,
    named: Flag = None,
    json: Json = False,
    url: Url = None,
) -> int:
    """Set limits of a queue, a group or a task, and show all limits of the queue. They apply at once, to all workers.

    The limits of a queue with shards are divided among it and them. Those of one shard: evsched limit mail:3

    Example: evsched limit mail --concurrency 20 --rate 200/s
    """
    asked = {"concurrency": concurrency, "rate": rate, "burst": burst, "weight": weight}
    fields = _fields(group, task, asked | {"history": history, "history_age": history_age})
    queue = _queue("limit", queue, named)
    with client(url, changes_queue=True) as redis:
        if fields and not create and (unknown := missing(redis, queue)):
            raise EvschedError(f"{unknown}; --create sets limits before its first job")
        stores = redis.stores(queue)
        parts = redis.run(gate.set_limits(stores, fields))
        unknown = 0 if fields else note_unknown(redis, [queue])
    found = by_part(stores, parts)
    rows = [
        (group if part is None else f"{group} in {part} alone".lstrip(), *rest)
        for part, limited in found
        for group, *rest in rows_of(limited)
    ]
    listing(json, found[0][1], COLUMNS, rows, f"queue {queue} has no limits")
    return unknown


def _fields(group: str | None, task: str | None, asked: Mapping[str, str | None]) -> dict[str, float | None]:
    """Return the limits that are to be set, by their fields; None removes one.

    Raises:
        UsageError, ConfigError: a value is not valid.
    """
    given = {name: _number(name, text) for name, text in asked.items() if text is not None}
    try:
        return gate.limit_fields(group, task, given)
    except ConfigError as error:
        name, _, rest = str(error).partition(" is ")
        if name not in given:
            raise
        raise UsageError(f"--{name.replace('_', '-')} is {rest}") from None


def _number(name: str, text: str) -> float | None:
    """Read a limit; a rate may be by the second, minute or hour."""
    if text == "none":
        return None
    if name == "history_age":
        return parse_length(text)
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/([smh]))?", text)
    if not found or (found[2] and name != "rate"):
        example = "200/s, 30/m or 1000/h" if name == "rate" else "5"
        raise UsageError(f"--{name} {text}: write it as {example}, or none to remove it")
    return float(found[1]) / {"s": 1, "m": 60, "h": 3600}[found[2] or "s"]


def lease(
    seconds: Annotated[
        float | None, Parameter(help="The new lease. Without it, the command shows the lease there is.")
    ] = None,
    /,
    *,
    json: Json = False,
    url: Url = None,
) -> None:
    """Show or change the lease: the seconds without a heartbeat after which a worker's jobs start elsewhere.

    All processes read it from Redis within five minutes of a change, dispatchers within fifteen; none needs a restart,
    and no job is lost.

    Example: evsched lease 30
    """
    if seconds is not None and not RANGES["lease"].least <= seconds <= RANGES["lease"].most:
        least, most = RANGES["lease"]
        raise UsageError(f"SECONDS is {seconds:g}: from {least:g} to {most:g} s")
    with client(url) as redis:
        if seconds is not None:
            redis.send(server.set_lease(seconds))
        found = redis.send(server.lease())
    if json:
        output.as_json({"lease": DEFAULT if found is None else found})
    elif found is None:
        print(f"no valid lease is stored: the next process that starts stores its --lease, or {DEFAULT:g} s")
    else:
        print(f"the lease is {found:g} s")
