"""The commands that set what passes the gate of a queue: pause, resume, limit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from cyclopts import Parameter

from evsched.cli import output
from evsched.cli.limits import COLUMNS, by_part, rows_of
from evsched.cli.options import Json, Url, client
from evsched.cli.pauses import end_of_pause
from evsched.cli.table import table
from evsched.cli.time_args import parse_future
from evsched.cli.unknown_queues import missing, note_unknown
from evsched.cli.usage import UsageError
from evsched.client import gate
from evsched.errors import ConfigError, EvschedError
from evsched.keys import check_queue
from evsched.store.store import Store

Q = Annotated[str | None, Parameter(help="The queue.")]
Flag = Annotated[str | None, Parameter(name="--queue", help="The queue, if it is not the first argument.")]
Create = Annotated[bool, Parameter(negative="", help="Do it even if the queue has never been used.")]
_LIFT = "'none' removes the limit."


def _queue(command: str, first: str | None, flag: str | None) -> str:
    """Return the queue that a command names, as its first argument or with --queue.

    Raises:
        UsageError: it names none, or two, or the name is not valid.
    """
    queue = first or flag
    if queue is None or (first and flag):
        raise UsageError(f"{command}: name one queue: evsched {command} mail")
    try:
        return check_queue(queue)
    except ConfigError as error:
        raise UsageError(str(error)) from None


def pause(
    queue: Q = None,
    /,
    *,
    until: Annotated[
        str | None,
        Parameter(
            help="When the pause ends by itself: 10m for ten minutes from now, 17:00 for the next 17:00, "
            "2030-01-31T09:00, in your time zone, or Unix seconds. Default: when you resume the queue."
        ),
    ] = None,
    why: Annotated[str, Parameter(help="A sentence for people who look at it later.")] = "",
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


def limit(
    queue: Q = None,
    /,
    *,
    group: Annotated[
        str | None,
        Parameter(
            help="Limit this group instead of the whole queue. '*': each group that has no such limit of its own. "
            "origin:https://api.example.com: the requests to one origin; 'origin:*': each origin."
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
    create: Create = False,
    named: Flag = None,
    json: Json = False,
    url: Url = None,
) -> int:
    """Set limits of a queue, a group or a task, and show all limits of the queue. They apply at once, to all workers.

    The limits of a queue with shards are divided among it and them. Those of one shard: evsched limit mail:3

    Example: evsched limit mail --concurrency 20 --rate 200/s
    """
    fields = _fields(group, task, {"concurrency": concurrency, "rate": rate, "burst": burst, "weight": weight})
    queue = _queue("limit", queue, named)
    with client(url, changes_queue=True) as redis:
        # Limits that a queue already has can be changed, and those of a misspelt queue removed, without --create.
        if fields and not create and (unknown := missing(redis, queue)):
            present = redis.send(Store(queue).limit())
            if not present.queue and not present.groups:
                raise EvschedError(f"{unknown}; --create sets limits before its first job")
        stores = redis.stores(queue)
        try:
            parts = redis.run(gate.set_limits(stores, fields))
        except ConfigError as error:
            raise UsageError(str(error)) from None
        unknown = 0 if fields else note_unknown(redis, [queue])
    found = by_part(stores, parts)
    if json:
        output.as_json(found[0][1])
        return unknown
    rows = [
        (group if part is None else f"{group} in {part} alone".lstrip(), *rest)
        for part, limited in found
        for group, *rest in rows_of(limited)
    ]
    table(COLUMNS, rows, f"queue {queue} has no limits")
    return unknown


def _fields(group: str | None, task: str | None, asked: Mapping[str, str | None]) -> dict[str, float | None]:
    """Return the limits that are to be set, by their fields; None removes one.

    Raises:
        UsageError: a value is not valid.
    """
    try:
        given = {name: _number(name, text) for name, text in asked.items() if text is not None}
        return gate.limit_fields(group, task, given)
    except ConfigError as error:
        raise UsageError(str(error)) from None


def _number(name: str, text: str) -> float | None:
    """Read a limit; a rate may be by the second, minute or hour."""
    if text == "none":
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/([smh]))?", text)
    if not found or (found[2] and name != "rate"):
        example = "200/s, 30/m or 1000/h" if name == "rate" else "5"
        raise UsageError(f"--{name} {text}: write it as {example}, or none to remove it")
    return float(found[1]) / {"s": 1, "m": 60, "h": 3600}[found[2] or "s"]
