"""The command that lists the recurrences of a queue."""

from __future__ import annotations

from evsched.cli import output
from evsched.cli.options import Json, Queue, Url
from evsched.cli.table import Column, Moment, table
from evsched.cli.unknown_queues import client_of, note_if_unknown
from evsched.client.recurrence_operations import RecurrenceStatus, list_statuses
from evsched.config import DEFAULT_QUEUE
from evsched.display import format_duration
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


def list_recurrences(*, queue: Queue = DEFAULT_QUEUE, json: Json = False, url: Url = None) -> int:
    """List the recurrences of a queue: rule, next time, and how the last run ended.

    Example: evsched recurrences --queue reports
    """
    with client_of(url, queue) as redis:
        rows = redis.run(list_statuses(Store(queue)))
        unknown = note_if_unknown(redis, queue, rows)
    if json:
        output.as_json(rows)
    else:
        table(_COLUMNS, map(_cells, rows), f"queue {queue} has no recurrences")
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
