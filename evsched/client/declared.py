"""What `App.recurring` takes, and the recurrence that it declares."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypedDict, cast

from evsched.client.new_job import JobOptions, new_job
from evsched.client.times import finite_seconds, seconds, unix
from evsched.errors import ConfigError
from evsched.jobs import arguments
from evsched.jobs import option_checks as check
from evsched.jobs.option_checks import Check
from evsched.jobs.tasks import Task
from evsched.recurrence.check_declared import CHECKS
from evsched.recurrence.intervals import check_interval
from evsched.recurrence.recurrence import Declared, Misfire, Overlap, read_recurrence


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
    """What happens to occurrences that were missed: "skip", "once" (the default: the last one runs), or "all"."""
    most: int
    """How many missed occurrences "all" makes up for, default 100."""
    overlap: Overlap
    """What happens when the occurrence before has not ended: "skip" (the default), "wait" or "allow"."""
    window: str | None
    after: Literal["end"] | None
    """Count `every` from the end of each run."""
    skip: str | None
    """Make no jobs on the days of a calendar, or of several, with commas between their names."""
    pause_after: int | None
    """Pause it after so many failures in a row, until someone resumes it."""
    priority: int | None
    group: str | None
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
    of_each = JobOptions(priority=options.get("priority"), group=options.get("group"), window=options.get("window"))
    payload = new_job(task.name, args, kwargs, of_each, payload_cap).payload
    arguments.check(task.signature, task.check, args, kwargs, payload)
    return payload
