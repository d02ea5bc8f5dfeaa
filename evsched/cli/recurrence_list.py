"""The command that lists the recurrences of a queue."""

from __future__ import annotations

import math
from typing import Any

from evsched.cli import output
from evsched.cli.kept_recurrences import find_standing, is_retired, kept, waiting_requests
from evsched.cli.options import Json, Queue, Url
from evsched.cli.table import Column, Moment, table
from evsched.cli.unknown_queues import client_of, note_if_unknown
from evsched.client.sync_client import SyncClient
from evsched.config import DEFAULT_QUEUE
from evsched.diagnostics.explain_recurrence import no_record
from evsched.durations import format_duration
from evsched.jobs.untrusted import number, whole
from evsched.recurrence.look_ahead import next_time
from evsched.recurrence.revision import describe_revision

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


def list_recurrences(*, queue: Queue = DEFAULT_QUEUE, json: Json = False, url: Url = None) -> int:
    """List the recurrences of a queue: rule, next time, and how the last run ended.

    Example: evsched recurrences --queue reports
    """
    with client_of(url, queue) as redis:
        now = redis.now()
        rows = [_row(redis, queue, now, *one) for one in kept(redis, queue)]
        unknown = note_if_unknown(redis, queue, rows)
    if json:
        output.as_json(rows)
    else:
        table(_COLUMNS, map(_cells, rows), f"queue {queue} has no recurrences")
    return unknown


def _row(redis: SyncClient, queue: str, now: float, name: str, at: float, fields: dict[str, bytes]) -> dict[str, Any]:
    revision = number(fields.get("revision"))
    standing = find_standing(redis, queue, at, fields)
    next_ = next_time(standing, now)
    return {
        "name": name,
        "rule": _text(fields, "rule"),
        "zone": _text(fields, "zone"),
        "skip": _text(fields, "skip") or None,
        "next": next_,
        "after_run": next_ is None and standing.under_way and at < math.inf,
        "paused": _number(fields, "paused"),
        "paused_until": _number(fields, "paused_until"),
        "paused_why": _text(fields, "paused_why"),
        "runs": whole(fields.get("runs")),
        "done": whole(fields.get("done")),
        "failed": whole(fields.get("failed")),
        "failing": whole(fields.get("failing")),
        "missed": whole(fields.get("missed")),
        "requests": waiting_requests(redis, queue, name, fields),
        "last_outcome": _text(fields, "last_outcome"),
        "last_finished": _number(fields, "last_finished"),
        "last_lateness": _number(fields, "last_lateness"),
        "declared_by": _text(fields, "owner"),
        "revision": None if revision is None else describe_revision(revision),
        "retired": _number(fields, "retired") if is_retired(at, fields) else None,
        "reason": _text(fields, "reason") if fields else no_record(queue, name),
    }


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    state = row["reason"] or _state(row)
    next_ = Moment(None if state else row["next"])
    if row["requests"]:
        state = "; ".join(filter(None, (state, f"{row['requests']} requested runs wait")))
    finished = Moment(row["last_finished"] if row["last_outcome"] else None)
    late = "" if row["last_lateness"] is None else format_duration(row["last_lateness"])
    counts = (row["runs"], row["failed"], row["missed"], row["last_outcome"], finished, late)
    return row["name"], row["rule"], row["zone"] or "UTC", next_, *counts, row["skip"], state


def _state(row: dict[str, Any]) -> str:
    """Return why a recurrence has no next time, '' = it has one."""
    paused = ""
    if row["paused"]:
        until = f" until {output.moment(row['paused_until'], short=True)}" if row["paused_until"] else ""
        paused = f"paused{until}" + (f": {row['paused_why']}" if row["paused_why"] else "")
    if row["retired"]:
        return "stopped: the code no longer declares it" + (f", and {paused}" if paused else "")
    if row["after_run"] and not paused:
        return "counted from the end of its run"
    return paused or ("" if row["next"] else "over, or about to begin")


def _text(fields: dict[str, bytes], name: str) -> str | None:
    return fields[name].decode(errors="backslashreplace") if name in fields else None


def _number(fields: dict[str, bytes], name: str) -> float | None:
    return number(fields.get(name))
