"""The command that lists limits, and the rows of its table, which `limit` prints too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evsched.cli import output
from evsched.cli.options import Json, Queues, Url, client
from evsched.cli.queues import each, read_limits, report
from evsched.cli.table import Column, Moment, table
from evsched.cli.unknown_queues import note_unknown
from evsched.store.gate_limits import Limits, merged, own, shown
from evsched.store.store import Store

COLUMNS = (Column("group", 1), Column("limit"), Column("value"), Column("in the code", 2))


def by_part(stores: Sequence[Store], parts: Sequence[Limits]) -> list[tuple[str | None, Limits]]:
    """Return the limits of a whole queue, with None, and those that only some shards have, with their names."""
    whole = merged(parts)
    alone = [(store.queue, own(part, whole)) for store, part in zip(stores, parts, strict=True)]
    return [(None, whole), *(alone if len(parts) > 1 else ())]


def rows_of(found: Limits) -> list[tuple[str, str, object, str]]:
    """Return the rows of a queue, by COLUMNS."""
    rows = list[tuple[str, str, object, str]]()
    for field, value in found.fields().items():
        name, _, group = field.partition(":")
        rows.append((group, name, "none" if value is None else shown(name, value), _in_code(found, field)))
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
    """List the limits of each queue, and what the code of the apps declares. Exit code 1: as `evsched queues`.

    A limit that was changed by hand stays so until its declaration in the code changes. The limits of a queue with
    shards are divided among them: their sum is listed, and by itself a limit that only one shard has.

    Example: evsched limits --queue mail
    """
    rows, listed = list[tuple[str, str, str, object, str]](), list[dict[str, Any]]()
    with client(url) as redis:
        read, down = each(redis, queue, lambda stores: by_part(stores, read_limits(redis, stores)))
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
        unknown = note_unknown(redis, queue or ())
    if json:
        output.as_json(listed)
    else:
        table((Column("queue"), *COLUMNS), rows, "no limits")
    return report((one.problem for one in read), down) or unknown
