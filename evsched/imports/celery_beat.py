"""Reads the `beat_schedule` of a Celery app, with the entries of `add_periodic_task`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import msgspec
from msgspec import Struct

from evsched.errors import ConfigError
from evsched.imports.imported import Call, Imported, both_days, field, foreign, zone_name


def read_beat(app: Any, found: Imported) -> None:
    """Read the schedule of a Celery app.

    Raises:
        ConfigError: it is not a Celery app.
    """
    if not hasattr(app, "finalize") or not hasattr(app.__class__, "conf"):
        raise ConfigError(f"{type(app).__name__} is not a Celery app")
    with foreign("the Celery app cannot be read"):
        app.finalize()  # so that entries are there which its signals add
        schedule = app.conf.beat_schedule
    if not isinstance(schedule, Mapping):
        raise ConfigError(f"beat_schedule is of the class {type(schedule).__name__}: make it a dictionary")
    for name, entry in cast("Mapping[Any, Any]", schedule).items():
        with found.part(f"{name}"):
            _read_entry(f"{name}", _entry(entry), app, found)


class _BeatEntry(Struct):
    """An entry of a beat schedule."""

    task: str
    schedule: Any
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    options: dict[str, Any] | None = None


def _entry(given: Any) -> _BeatEntry:
    """Read an entry, a dictionary or a ScheduleEntry.

    Raises:
        ConfigError: it is neither, or a part is missing or of another type.
    """
    try:
        return msgspec.convert(given if isinstance(given, dict) else getattr(given, "__dict__", given), _BeatEntry)
    except msgspec.ValidationError as error:
        raise ConfigError(f"it is not an entry of Celery: {error}") from None


def _read_entry(name: str, entry: _BeatEntry, app: Any, found: Imported) -> None:
    """Add an entry.

    Raises:
        ConfigError: evsched has no such recurrence.
    """
    rule, zone = _rule(entry.schedule, app)
    options = entry.options or {}
    for option, value in options.items():
        if option != "queue":
            found.remark(name, f"option {option}={value!r}: evsched does not take it over")
    queue = options.get("queue")  # a name, or a Queue of kombu
    call: Call = (entry.task, entry.args or (), entry.kwargs or {})
    queue = getattr(queue, "name", queue)
    found.recurrence(name, name, call, rule=rule, zone=zone, queue=queue, overlap="allow")


def _rule(schedule: Any, app: Any) -> tuple[str, str]:
    """Return the rule of a schedule, and its zone.

    Raises:
        ConfigError: evsched has no such rule.
    """
    schedules: Any = importlib.import_module("celery.schedules")
    kind = schedule.__class__  # a subclass may be due at other times
    if kind is schedules.crontab and schedule.nowfun is None:
        day, weekday = both_days(schedule.day_of_month, schedule.day_of_week)
        minute, hour = field(schedule.minute, 0, 59), field(schedule.hour, 0, 23)
        rule = f"{minute} {hour} {day} {field(schedule.month_of_year, 1, 12)} {weekday}"
        with foreign(f"timezone={app.conf.timezone!r}"):
            zone = app.timezone
        return rule, zone_name(zone)
    if kind is schedules.schedule:
        schedule = schedule.run_every
    if isinstance(schedule, timedelta):
        schedule = schedule.total_seconds()
    if isinstance(schedule, int | float):
        return f"every {schedule:.12g}", "UTC"
    clock = " with a nowfun" if kind is schedules.crontab else ""
    raise ConfigError(f"a schedule of the class {kind.__name__}{clock} has no counterpart in evsched")
