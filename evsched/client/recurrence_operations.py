"""Recurrences as clients use them: declare, add, pause, look at, and request runs.

Most are operations (`operations.py`). They read the records as they are, whatever another client wrote there, and check
a declaration against the calendars and windows that its queue has and the retries of its task. The last part of the
file is for `App.recurring`: its options, and the recurrence that it declares.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final, Literal, TypedDict, cast

from msgspec import Struct
from msgspec.structs import astuple, replace

from evsched import keys
from evsched.client.gate import check_pause
from evsched.client.new_job import JobOptions, job_maker
from evsched.client.operations import Operation, UseCodec, send
from evsched.client.option_values import finite_seconds, seconds, unix
from evsched.client.sealing import seal_recurring
from evsched.errors import ConfigError, JobMissing, StoreRefused
from evsched.jobs import arguments
from evsched.jobs import option_checks as check
from evsched.jobs.option_checks import Check
from evsched.jobs.record import number, whole
from evsched.jobs.retry import task_of
from evsched.jobs.tasks import Task
from evsched.recurrence.calendars import just_before, names_of
from evsched.recurrence.look_ahead import (
    Standing,
    check_by_policies,
    check_interval,
    counted_from,
    next_time,
    put_ahead,
    read_standing,
)
from evsched.recurrence.recurrence import (
    CHECKS,
    Declared,
    Misfire,
    Overlap,
    Recurrence,
    check_declared,
    describe_revision,
    planned_text,
    read_declared,
    read_payload,
    read_recurrence,
    window_names,
)
from evsched.recurrence.windows import read_window
from evsched.store.queue import IdempotentRequest
from evsched.store.recurrence_calls import Backfilled
from evsched.store.server import clock
from evsched.store.store import Store

_SLICE: Final = 500


def kept(store: Store, most: int | None = None) -> Operation[list[tuple[str, float, dict[str, bytes]]]]:
    """Return the recurrences of a queue, at most `most`: name, next planned time, record."""
    found = list[tuple[str, float, dict[str, bytes]]]()
    while most is None or len(found) < most:
        size = _SLICE if most is None else min(_SLICE, most - len(found))
        rows = yield from send(store.recurrences(len(found), size))
        for name, at in rows:
            found.append((name, at, (yield from read_record(store, name))))
        if len(rows) < size:
            break
    return found


def read_record(store: Store, name: str) -> Operation[dict[str, bytes]]:
    """Return the record of a recurrence, empty if it has none. A key of another type becomes the field `reason`."""
    try:
        return (yield from send(store.recurrence(name)))
    except StoreRefused as error:
        if error.kind != "wrongtype":
            raise
        return {"reason": b"its key is not a hash"}


def find_standing(store: Store, at: float, fields: dict[str, bytes]) -> Operation[Standing]:
    """Return how far a recurrence has got: `at` is its score, which was read before the record.

    It asks which of the latest occurrences are still there.
    """
    under_way = False
    for job_id in counted_from(fields):
        status = yield from send(store.look(job_id))
        if status is not None and status.place not in ("finished", "dead"):
            under_way = True
            break
    gone = set[str]()
    for job_id in put_ahead(fields):
        if (yield from send(store.look(job_id))) is None:  # cancelled
            gone.add(job_id)
    return read_standing(at, fields, under_way, gone)


def is_retired(at: float, fields: dict[str, bytes]) -> bool:
    return "retired" in fields and at == float("inf")


def waiting_requests(store: Store, name: str, fields: dict[str, bytes]) -> Operation[int]:
    """Count the requested runs of a recurrence that wait. Most have none, and are not asked."""
    if not {"requested", "paused"} & fields.keys():
        return 0
    try:
        return (yield from send(store.requests(name)))
    except StoreRefused as error:
        if error.kind != "wrongtype":
            raise
        return 0


def with_stored(store: Store, declared: Declared) -> Operation[Recurrence]:
    """Parse a recurrence, with the calendars and windows that are stored in its queue.

    Dispatchers leave a window that has a name to the workers, so that a change of it applies to jobs that wait. For
    a look ahead, it is the recurrence's window as it is now.

    Raises:
        ConfigError: a part of it is not valid, or it names a calendar or a window that does not exist.
    """
    names, windows = names_of(declared.skip), window_names(declared.window, declared.payload)
    stored = (yield from send(store.some_windows(windows))) if windows else {}
    calendars = (yield from send(store.calendars(names))) if names else {}
    found = read_recurrence(declared, calendars, stored)
    if declared.window in stored:
        found = replace(found, window=read_window(stored[declared.window]))
    return found


def declare(store: Store, declared: Declared) -> Operation[Literal["made", "changed", "same"]]:
    """Create a recurrence, or change the one of that name.

    Its calendars and windows must exist. How long the retries of its task may take is known if a worker of its queue
    has written it.

    Raises:
        ConfigError: a field is not valid, or it is too frequent for the retries of its task.
    """
    check_declared(declared)
    recurrence, task = (yield from with_stored(store, declared)), task_of(declared.payload)
    if task is not None:
        check_by_policies(recurrence, (yield from send(store.policies([task]))))
    sealed = yield UseCodec(lambda codec: seal_recurring(codec, declared.payload))
    done = yield from send(store.declare(declared if sealed is None else replace(declared, payload=sealed)))
    return cast(Literal["made", "changed", "same"], done)  # "older" concerns declarations by an app


def preview(store: Store, declared: Declared) -> Operation[Literal["made", "changed", "same"]]:
    """Return what `declare` would do now. A recurrence that an app's code declares would be changed.

    Raises:
        ConfigError: as `with_stored`.
    """
    yield from with_stored(store, declared)
    at = yield from send(store.next_planned(declared.name))
    if at is None:
        return "made"
    fields = yield from read_record(store, declared.name)
    there = {name: fields.get(name, b"").decode(errors="replace") for name in ("owner", "retired", *declared.fields())}
    given = {name: value.decode() if isinstance(value, bytes) else value for name, value in declared.fields().items()}
    return "same" if there == {"owner": "", "retired": "", **given} else "changed"


def add(store: Store, declared: Declared) -> Operation[tuple[Literal["made", "changed", "same"], bool]]:
    """Create or change a recurrence that a person asks for; return which, and whether it is paused.

    Raises:
        ConfigError: as `declare`; or no time of its rule is ahead.
    """
    recurrence = yield from with_stored(store, declared)
    paused = "paused" in (yield from send(store.recurrence(declared.name)))
    if next(recurrence.walk((yield from send(clock(keys.root(store.queue))))), None) is None:
        raise ConfigError(f"recurrence {declared.name} would never recur: no time of its rule is ahead, until its end")
    return (yield from declare(store, declared)), paused


def pause(store: Store, name: str, until: float | None, why: str) -> Operation[None]:
    """Pause a recurrence, until a moment or until it is resumed.

    Raises:
        ConfigError: the moment has passed, or the reason is too long.
        JobMissing: there is no recurrence of that name.
    """
    yield from check_pause(store, until, why)
    yield from send(store.hold(name, True, until=until, why=why))


def read_stored(store: Store, name: str, fields: dict[str, bytes]) -> Operation[Recurrence]:
    return (yield from with_stored(store, read_declared(name, fields)))


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
    """Return the recurrences of a queue, the next to recur first, at most `most`."""
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
        requests=(yield from waiting_requests(store, name, fields)),
        last_outcome=_text(fields, "last_outcome"),
        last_finished=number(fields.get("last_finished")),
        last_lateness=number(fields.get("last_lateness")),
        declared_by=_text(fields, "owner"),
        revision=None if revision is None else describe_revision(revision),
        retired=number(fields.get("retired")) if is_retired(at, fields) else None,
        reason=_text(fields, "reason") if fields else no_record(store.queue, name),
        **{count: whole(fields.get(count)) for count in ("runs", "done", "failed", "failing", "missed")},
    )


def _text(fields: dict[str, bytes], name: str) -> str | None:
    return fields[name].decode(errors="backslashreplace") if name in fields else None


def no_record(queue: str, name: str) -> str:
    """Return why a recurrence without a record makes no jobs, and the remedy."""
    return (
        f"it has no record: add it with `evsched recurrences add {name} TASK --rule ... --queue {queue}`, or delete it "
        f"with `evsched recurrences remove {name} --queue {queue}`"
    )


BACKFILL_MOST: Final = 10_000
"""Planned times of one backfill, at most: about 2 MB of Redis's memory."""

_BACKFILL_SLICE: Final = 250
"""Planned times that one call requests: about 1 ms of Redis's time."""


_GIVEN_MOST: Final = 10_000
"""Moments that are remembered. Fewer runs are requested within one microsecond."""


def trigger(store: Store, name: str) -> Operation[tuple[str, bool]]:
    """Run a recurrence once now; return the id of the run, and whether it is due now or waits for another to end.

    Raises:
        ConfigError: no worker could run its payload.
        JobMissing: there is no recurrence of that name, or it is stopped.
    """
    planned = yield from _planned_now(store, name)
    begun = yield from send(store.trigger(name, planned))
    return f"{name}@{planned}", begun


def trigger_once(store: Store, name: str, request: IdempotentRequest) -> Operation[tuple[str, str, bool]]:
    """As `trigger`, unless there was a request of the same key in the last 24 hours; see `Store.trigger_once`."""
    planned = yield from _planned_now(store, name)
    return (yield from send(store.trigger_once(request, name, planned)))


def _planned_now(store: Store, name: str) -> Operation[str]:
    """Return the planned time of a run that is requested now."""
    if fields := (yield from send(store.recurrence(name))):
        read_payload(name, fields)
    now = yield from send(clock(keys.root(store.queue)))
    return f"{_distinct(round(now * 1e6)) / 1e6:.6f}"  # not rounded to milliseconds: two may trigger it in the same one


_given = dict[int, object]()
"""The moments that this process has given to runs, in microseconds."""


def _distinct(moment: int) -> int:
    """Return a moment that no other run that this process requested has: calls of one batch read the same time."""
    mine = object()
    while _given.setdefault(moment, mine) is not mine:  # atomic: any number of threads may ask
        moment += 1
    if len(_given) > _GIVEN_MOST:
        _given.clear()
    return moment


def planned_between(store: Store, name: str, since: float, until: float) -> Operation[list[float]]:
    """Return the planned times of a recurrence from `since` on, before `until` and up to now.

    Raises:
        ConfigError: there are more than 10,000, or its record is not valid.
        JobMissing: there is no recurrence of that name.
    """
    fields = yield from send(store.recurrence(name))
    if not fields:
        raise JobMissing(f"{name} is not a recurrence of queue {store.queue}")
    recurrence = yield from read_stored(store, name, fields)
    if recurrence.declared.after is not None:
        raise ConfigError(f"{name} has no planned times that have passed: it is counted from the end of each run")
    now = yield from send(clock(keys.root(store.queue)))
    found = list[float]()
    for planned in islice(recurrence.walk(just_before(since)), BACKFILL_MOST + 1):
        if planned >= until or planned > now:
            return found
        found.append(planned)
    if len(found) > BACKFILL_MOST:
        raise ConfigError(f"more than {BACKFILL_MOST} planned times of {name}: backfill a shorter span")
    return found


def backfill(store: Store, name: str, since: float, until: float) -> Operation[Backfilled]:
    """Run the planned times of a span that has passed, each once, however often it is asked for; return the counts."""
    times = yield from planned_between(store, name, since, until)
    found = Backfilled()
    for at in range(0, len(times), _BACKFILL_SLICE):
        some = yield from send(
            store.backfill(name, [planned_text(planned) for planned in times[at : at + _BACKFILL_SLICE]])
        )
        counts = [a + b for a, b in zip(astuple(found)[:-1], astuple(some)[:-1], strict=True)]
        found = Backfilled(*counts, waiting=some.waiting)
    return found


class RecurringOptions(TypedDict, total=False):
    """How a task recurs."""

    every: timedelta | float | None
    """The interval, instead of a rule: a timedelta, or seconds."""
    zone: str
    """The IANA time zone of the rule, default UTC."""
    name: str | None
    """Else the task's name."""
    args: Sequence[Any]
    """Arguments of each occurrence."""
    kwargs: dict[str, Any] | None
    start: datetime | float | None
    """No occurrence before this moment."""
    end: datetime | float | None
    """No occurrence after this moment."""
    count: int | None
    """How many occurrences there are in all."""
    spread: timedelta | float
    """Each occurrence is moved by a stable part of this, so that many recurrences do not start at once."""
    misfire: Misfire
    """The treatment of missed occurrences: "skip", "once" (the default: the last one runs), or "all"."""
    most: int
    """How many missed occurrences "all" makes up for, default 100."""
    overlap: Overlap
    """The treatment of an occurrence when the one before it has not ended: "skip" (the default), "wait" or "allow"."""
    window: str | None
    after: Literal["end"] | None
    """Count `every` from the end of each run."""
    skip: str | None
    """Make no jobs on the days of a calendar, or of several, with commas between their names."""
    pause_after: int | None
    """Pause it after this number of failures in a row, until someone resumes it."""
    priority: int | None
    group: str | None
    tags: Sequence[str] | None
    """The tags of each occurrence."""
    queue: str | None


_CHECKS: Final[dict[str, Check]] = {
    **CHECKS,
    "every": finite_seconds,
    "name": check.text,
    "args": check.in_order,
    "kwargs": check.named,
    "start": unix,
    "end": unix,
    "spread": finite_seconds,
    "tags": check.tags,
    "queue": check.identifier,
}
"""The check of each of `RecurringOptions`, by its declared type; its window and name are read with the rule."""

_NEVER_NONE: Final = ("zone", "args", "spread", "misfire", "most", "overlap")


def check_recurring_options(given: RecurringOptions) -> None:
    """Check the options of a recurrence.

    Raises:
        TypeError: there is no option of that name; the message suggests the nearest.
        ConfigError: a value is not valid.
    """
    check.check_options("recurring", given, _CHECKS, _NEVER_NONE)


def declared(task: Task, rule: str | None, options: RecurringOptions, payload_cap: int) -> Declared:
    """Build the recurrence of a task, and check it.

    Raises:
        ConfigError: the rule, zone or window is not valid, or the interval is shorter than the retries may take.
        BadArguments: the task cannot be called with these arguments.
    """
    every, name = options.get("every"), options.get("name") or task.name
    if (rule is None) is (every is None):
        raise ConfigError(f"recurrence of task {task.name}: give either a rule or every=")
    start, end = options.get("start"), options.get("end")
    found = Declared(
        name=name,
        rule=rule or f"every {seconds('every', cast('timedelta | float', every)):.12g}",
        payload=_payload(task, options, payload_cap),
        start=None if start is None else unix("start", start),
        end=None if end is None else unix("end", end),
        spread=seconds("spread", options.get("spread", 0.0)),
        **{option: value for option, value in cast("dict[str, Any]", options).items() if option in CHECKS},
    )
    check_interval(read_recurrence(found), task.retry)
    return found


def _payload(task: Task, options: RecurringOptions, payload_cap: int) -> bytes:
    args, kwargs = options.get("args", ()), options.get("kwargs") or {}
    names: tuple[Literal["priority", "group", "window", "tags"], ...] = ("priority", "group", "window", "tags")
    of_each = JobOptions(**{name: options.get(name) for name in names}, redact=task.redact)
    payload = job_maker(task.name, of_each, payload_cap, task.signature)(args, kwargs).payload
    arguments.check(task.signature, task.check, args, kwargs, payload)
    return payload
