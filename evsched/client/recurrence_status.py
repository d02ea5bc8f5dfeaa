"""What there is to know of a recurrence: its rule, its next time, its counts, and why it does not recur."""

from __future__ import annotations

import math

from msgspec import Struct

from evsched import keys
from evsched.client.kept_recurrences import find_standing, is_retired, kept, read_record, waiting_requests
from evsched.client.operations import Operation, send
from evsched.errors import JobMissing
from evsched.jobs.record import number, whole
from evsched.recurrence.look_ahead import next_time
from evsched.recurrence.revision import describe_revision
from evsched.store.server import clock
from evsched.store.store import Store


class RecurrenceStatus(Struct, frozen=True, kw_only=True):
    """A recurrence, as its record has it. Times in Unix seconds on Redis's clock."""

    name: str
    rule: str | None
    zone: str | None
    skip: str | None
    """The calendars on whose days it makes no jobs."""
    next: float | None
    """The next planned time; None if it is paused, over, stopped or about to begin."""
    after_run: bool
    """Whether the next time is counted from the end of the run that is under way."""
    paused: float | None
    """Since when it is paused."""
    paused_until: float | None
    paused_why: str | None
    runs: int
    done: int
    failed: int
    failing: int
    """How many runs in a row have failed."""
    missed: int
    requests: int
    """How many requested runs wait."""
    last_outcome: str | None
    last_finished: float | None
    last_lateness: float | None
    declared_by: str | None
    """The app that declares it in its code."""
    revision: str | None
    retired: float | None
    """Since when it is stopped, because the code no longer declares it."""
    reason: str | None
    """Why it makes no jobs."""


def list_statuses(store: Store, most: int | None = None) -> Operation[list[RecurrenceStatus]]:
    """Return the recurrences of a queue, the next to recur first, at `most` so many."""
    now = yield from send(clock(keys.root(store.queue)))
    found = list[RecurrenceStatus]()
    for name, at, fields in (yield from kept(store, most)):
        found.append((yield from _status(store, now, name, at, fields)))
    return found


def recurrence_status(store: Store, name: str) -> Operation[RecurrenceStatus]:
    """Return one recurrence.

    Raises:
        JobMissing: there is no recurrence of that name.
    """
    at = yield from send(store.next_planned(name))
    if at is None:
        raise JobMissing(f"{name} is not a recurrence of queue {store.queue}")
    fields, now = (yield from read_record(store, name)), (yield from send(clock(keys.root(store.queue))))
    return (yield from _status(store, now, name, at, fields))


def _status(store: Store, now: float, name: str, at: float, fields: dict[str, bytes]) -> Operation[RecurrenceStatus]:
    revision, standing = number(fields.get("revision")), (yield from find_standing(store, at, fields))
    next_ = next_time(standing, now)
    return RecurrenceStatus(
        name=name,
        rule=_text(fields, "rule"),
        zone=_text(fields, "zone"),
        skip=_text(fields, "skip") or None,
        next=next_,
        after_run=next_ is None and standing.under_way and at < math.inf,
        paused=number(fields.get("paused")),
        paused_until=number(fields.get("paused_until")),
        paused_why=_text(fields, "paused_why"),
        runs=whole(fields.get("runs")),
        done=whole(fields.get("done")),
        failed=whole(fields.get("failed")),
        failing=whole(fields.get("failing")),
        missed=whole(fields.get("missed")),
        requests=(yield from waiting_requests(store, name, fields)),
        last_outcome=_text(fields, "last_outcome"),
        last_finished=number(fields.get("last_finished")),
        last_lateness=number(fields.get("last_lateness")),
        declared_by=_text(fields, "owner"),
        revision=None if revision is None else describe_revision(revision),
        retired=number(fields.get("retired")) if is_retired(at, fields) else None,
        reason=_text(fields, "reason") if fields else no_record(store.queue, name),
    )


def _text(fields: dict[str, bytes], name: str) -> str | None:
    return fields[name].decode(errors="backslashreplace") if name in fields else None


def no_record(queue: str, name: str) -> str:
    """Return why a recurrence without a record makes no jobs, and what to do."""
    return (
        f"it has no record: add it with `evsched recurrences add {name} TASK --rule ... --queue {queue}`, or delete it "
        f"with `evsched recurrences remove {name} --queue {queue}`"
    )
