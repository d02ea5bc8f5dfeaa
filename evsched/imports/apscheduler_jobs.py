"""Reads the jobs of an APScheduler 3: those added by the program, and those in its job stores."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any, Final

from evsched.errors import ConfigError
from evsched.imports.imported import Call, Imported, both_days, digest, field, foreign, zone_name

_RANGES: Final = {"day": (1, 31), "month": (1, 12), "day_of_week": (0, 6), "hour": (0, 23)}
_SIXTY: Final = (0, 59)

_MISFIRE_GRACE: Final = 5.0
"""Seconds after which an occurrence of evsched counts as missed."""


def read_scheduler(scheduler: Any, found: Imported) -> None:
    """Read the jobs of a scheduler, which must not run in this process.

    Raises:
        ConfigError: it is not a scheduler of APScheduler 3.
    """
    if not hasattr(scheduler, "get_jobs") or not hasattr(scheduler, "_jobstores"):
        raise ConfigError(f"{type(scheduler).__name__} is not a scheduler of APScheduler 3")
    if scheduler.running:
        scheduler.shutdown(wait=False)
        raise ConfigError("the import of its module starts the scheduler: start it where the program is run instead")
    for job in _jobs(scheduler, found):
        with found.part(job.id):
            _read_job(job, found)


class _Unreadable:
    """Stands for a job of a store that cannot be read. A store deletes a job whose reading raises."""

    next_run_time = None

    def __init__(self, store: str, error: Exception) -> None:
        self.id = f"a job in the store {store}"
        self.why = f"it cannot be read: {type(error).__name__}: {error}"


def _jobs(scheduler: Any, found: Imported) -> Iterable[Any]:
    """Return the jobs, each of an id once. A scheduler that was not started has not read its stores."""
    stored = list[Any]()
    for alias, store in scheduler._jobstores.items():
        if hasattr(store, "_reconstitute_job"):  # that in memory has none
            store._reconstitute_job = partial(_restored, alias, store._reconstitute_job)
        with found.part(f"the store {alias}"), foreign("it cannot be read"):
            store.start(scheduler, alias)
            stored += store.get_all_jobs()
    found.whole = not found.remarks and not any(isinstance(job, _Unreadable) for job in stored)
    added = scheduler.get_jobs()
    known = {job.id for job in added}
    return [*(job for job in stored if job.id not in known), *added]


def _restored(store: str, restore: Callable[[Any], Any], state: Any) -> Any:
    """Return a job that a store has, or a stand-in that says why it cannot be read."""
    try:
        return restore(state)
    except Exception as error:  # noqa: BLE001 - a pickle runs the user's code
        return _Unreadable(store, error)


def _read_job(job: Any, found: Imported) -> None:
    """Add a job of the scheduler.

    Raises:
        ConfigError: evsched has no such recurrence.
    """
    if isinstance(job, _Unreadable):
        raise ConfigError(job.why)
    trigger, name = job.trigger, _name(job)
    call = (job.func_ref or "", job.args, job.kwargs)
    if (planned := getattr(job, "next_run_time", job)) is None:
        raise ConfigError("it is paused, so it is left out")
    first = None if planned is job else planned.timestamp()  # one that waits for its scheduler's start may have none
    if first is not None and job.pending:
        found.remark(job.id, f"next_run_time={planned}: the first run is at a time of its rule")
    kind = type(trigger).__name__ if type(trigger).__module__.startswith("apscheduler.") else ""
    if kind == "DateTrigger":
        _read_single(job, (job.id, name, call), first or trigger.run_date.timestamp(), found)
        return
    if kind == "IntervalTrigger":
        begin = trigger.start_date.timestamp()  # if none is given: an interval after the program's start, a fraction
        rule, zone = found.interval(job.id, trigger.interval_length, begin), "UTC"
        start, first = begin if begin.is_integer() else None, first or begin
    elif kind == "CronTrigger":
        rule, zone, start = _cron(trigger), zone_name(trigger.timezone), _moment(trigger.start_date)
    else:
        raise ConfigError(f"a trigger of the class {type(trigger).__name__} has no counterpart in evsched")
    if trigger.jitter:
        found.remark(job.id, f"jitter={trigger.jitter} becomes spread: a delay that follows from the planned time")
    found.recurrence(
        job.id,
        name,
        call,
        rule=rule,
        first=first,
        zone=zone,
        start=start,
        end=_moment(trigger.end_date),
        spread=float(trigger.jitter or 0),
        overlap=_overlap(job, found),
        misfire=_misfire(job, found),
    )


def _read_single(job: Any, entry: tuple[str, str, Call], due: float, found: Imported) -> None:
    """Add a job that runs once.

    Raises:
        ConfigError: APScheduler would drop it.
    """
    grace = _option(job, "misfire_grace_time")
    if grace is not None and time.time() - due > grace:
        raise ConfigError(f"its time has passed, and APScheduler drops a run that is late by more than {grace} s")
    found.job(*entry, due=due)


_RANDOM: Final = re.compile(r"[0-9a-f]{32}")
"""The form of an id that APScheduler makes up; a program that declares its jobs gets other ones at each start."""


def _name(job: Any) -> str:
    if not _RANDOM.fullmatch(job.id):
        return job.id
    return f"{job.name}-{digest(repr((job.func_ref, str(job.trigger), job.args, job.kwargs)))}"


def _option(job: Any, name: str) -> Any:
    """Return an option of a job. One that was not added to a store yet has not the scheduler's defaults."""
    return getattr(job, name) if hasattr(job, name) else job._scheduler._job_defaults[name]


def _overlap(job: Any, found: Imported) -> str:
    if (most := _option(job, "max_instances")) == 1:
        return "skip"
    found.remark(job.id, f"max_instances={most}: runs may overlap; limit them by concurrency= of the task")
    return "allow"


def _misfire(job: Any, found: Imported) -> str:
    grace = _option(job, "misfire_grace_time")
    if grace is None:
        coalesce = _option(job, "coalesce")
        if coalesce or _option(job, "max_instances") == 1:
            if not coalesce:
                found.remark(
                    job.id, "coalesce=False: one run makes up for all that were missed, as they may not overlap"
                )
            return "once"
        return "all"
    if grace > _MISFIRE_GRACE:
        missed = f"a run that is late by more than {_MISFIRE_GRACE:g} s is missed, and is not made up for"
        found.remark(job.id, f"misfire_grace_time={grace}: {missed}")
    return "skip"


def _moment(given: datetime | None) -> float | None:
    return None if given is None else given.timestamp()


def _cron(trigger: Any) -> str:
    """Return the rule of a cron trigger.

    Raises:
        ConfigError: evsched has no such rule.
    """
    fields = {one.name: one for one in trigger.fields}
    for name in ("year", "week"):
        if str(fields[name]) != "*":
            raise ConfigError(f"{name}={fields[name]}: a rule has no such field")
    second, minute, hour, month = (
        field(_values(fields[name]), *_RANGES.get(name, _SIXTY)) for name in ("second", "minute", "hour", "month")
    )
    weekdays = {(value + 1) % 7 for value in _values(fields["day_of_week"])}  # Monday is 0 there
    day, weekday = _days(fields["day"], weekdays)
    rule = f"{minute} {hour} {day} {month} {weekday}"
    return rule if second == "0" else f"{second} {rule}"


def _days(days: Any, weekdays: set[int]) -> tuple[str, str]:
    """Return the fields for the days of a month, such as `last` and `2nd fri`, which must match the weekdays too."""
    named = [one for one in days.expressions if hasattr(one, "option_num")]
    others = [one for one in days.expressions if type(one).__name__ != "LastDayOfMonthExpression"]
    last = len(others) < len(days.expressions)
    if not named and not last:
        return both_days(_values(days), weekdays)
    if len(weekdays) < 7 or (named and len(named) < len(days.expressions)):
        raise ConfigError(f"day={days}: no rule has such days")
    if named:
        return "*", ",".join(
            f"{(one.weekday + 1) % 7}" + ("L" if one.option_num == 5 else f"#{one.option_num + 1}") for one in named
        )
    values = {value for one in others for value in _of(one, *_RANGES["day"])}
    return ",".join([*([field(values, *_RANGES["day"])] if values else []), "L"]), "*"


def _values(of: Any) -> set[int]:
    low, high = _RANGES.get(of.name, _SIXTY)
    return {value for one in of.expressions for value in _of(one, low, high)}


def _of(expression: Any, low: int, high: int) -> range:
    """Return the values of one expression: `*`, `*/5`, `3`, `1-10/2`, or names."""
    first, last = getattr(expression, "first", None), getattr(expression, "last", None)
    return range(low if first is None else first, (high if last is None else last) + 1, expression.step or 1)
