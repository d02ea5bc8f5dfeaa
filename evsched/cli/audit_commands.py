"""The command that lists what operators did: the audit trail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from evsched.cli import output
from evsched.cli.command_client import client, note_unknown
from evsched.cli.commands import UsageError
from evsched.cli.options import Json, Queues, Url, check_limit, check_queues, whole
from evsched.cli.output import Column, Moment, listing
from evsched.cli.queue_commands import each, report
from evsched.client.operations import Operation
from evsched.client.past_acts import ActFilter, read_acts, read_deployment_acts
from evsched.client.time_texts import parse_past
from evsched.errors import ConfigError, StoreError
from evsched.store.acts import AuditedAct
from evsched.store.store import Store

_COLUMNS: Final = (
    Column("at", 1),
    Column("who"),
    Column("from", 4),
    Column("act"),
    Column("queue", 2),
    Column("jobs", 3),
    Column("what", 1, prose=True),
)

_NAMED: Final = 3
"""Ids that a row names."""


def audit(
    *,
    queue: Queues = None,
    since: Annotated[
        str | None, Parameter(help="Only acts since then: 2h for two hours ago, 14:00, or 2030-01-31T09:00.")
    ] = None,
    until: Annotated[str | None, Parameter(help="Only acts until then, as --since.")] = None,
    who: Annotated[str | None, Parameter(help="Only those of this operator.")] = None,
    act: Annotated[
        str | None,
        Parameter(
            help="Only acts of this name: pause, resume, limit, cancel, reschedule, edit, signal, revive, drop, "
            "trigger, backfill, remove, prune, again, quiet, stop, mend, move, make-token or remove-token."
        ),
    ] = None,
    id: Annotated[str | None, Parameter(help="Only changes of this job, recurrence or user.")] = None,  # noqa: A002
    limit: Annotated[int, Parameter(converter=whole, help="How many acts to list at most.")] = 50,
    json: Json = False,
    url: Url = None,
) -> int:
    """List what operators did to queues, the latest first: who, from where, when and what.

    Without --queue, the tokens of the console that were made and deleted are listed too. Each queue keeps about its
    last 10,000 acts. Exit code 1: as `evsched queues`.

    Examples: evsched audit --queue mail --since 2d; evsched audit --id report-17
    """
    check_limit(limit)
    check_queues(queue)
    start, end = (None if moment is None else parse_past(moment) for moment in (since, until))
    try:
        wanted = ActFilter(start, end, who, act, id)
    except ConfigError as error:
        raise UsageError(f"--{error}") from None
    with client(url) as redis:

        def read(stores: Sequence[Store]) -> Operation[list[AuditedAct]]:
            return read_acts(redis.shards.whole(stores[-1].queue), stores, wanted, limit + 1)

        readings, down = each(redis, queue, read, past=True)
        problems, others = [one.problem for one in readings], list[AuditedAct]()
        try:
            others = [] if queue else redis.run(read_deployment_acts(wanted, limit + 1))
        except StoreError as error:
            problems.append(f"the acts on no queue cannot be read: {error}")
        unknown = note_unknown(redis, [one.queue for one in readings if queue and not one.found])
    found = sorted(
        (one for part in (*(one.found or () for one in readings), others) for one in part), key=lambda one: -one.at
    )
    if len(found) > limit:
        output.note(f"the latest {limit} acts: --limit lists more")
    rows = ((Moment(one.at), one.who, one.source, one.act, one.queue, one.count, _what(one)) for one in found[:limit])
    listing(json, found[:limit], _COLUMNS, rows, "no act of an operator is known")
    return report(problems, down) or unknown


def _what(one: AuditedAct) -> str:
    """Describe an act in a line: the first jobs, and its arguments."""
    known = dict[str, Any](one.what)
    nested = [known.pop(name) for name in ("filter", "limits") if isinstance(known.get(name), dict)]
    parts = [f"{name} {_value(name, value)}" for group in (known, *nested) for name, value in group.items()]
    more = (one.count or 0) - _NAMED
    ids = " ".join(one.ids[:_NAMED]) + (f" and {more} more" if one.ids and more > 0 else "")
    return ", ".join([*([ids] if ids else []), *parts])


def _value(name: str, value: Any) -> str:
    if name == "due" and value is None:  # JSON has no infinity
        value = math.inf
    if isinstance(value, int | float) and name in ("due", "until", "after", "before"):
        return output.moment(value, short=True)
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else _json(value)


def _json(value: Any) -> str:
    """Return a text as it is, and anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
