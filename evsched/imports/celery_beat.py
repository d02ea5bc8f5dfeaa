"""Reads the `beat_schedule` of a Celery app, with the entries of `add_periodic_task`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

from evsched.errors import ConfigError
from evsched.imports.imported import Call, Imported, both_days, field, zone_name


def read_beat(app: Any, found: Imported) -> None:
    """Read the schedule of a Celery app.

    Raises:
        ConfigError: it is not a Celery app.
    """
    if not hasattr(app, "finalize") or not hasattr(getattr(app, "conf", None), "beat_schedule"):
        raise ConfigError(f"{type(app).__name__} is not a Celery app")
    app.finalize()  # so that entries are there which its signals add
    for name, entry in app.conf.beat_schedule.items():
        with found.part(name):
            _read_entry(name, cast("Mapping[str, Any]", entry if isinstance(entry, dict) else vars(entry)), app, found)


def _read_entry(name: str, entry: Mapping[str, Any], app: Any, found: Imported) -> None:
    """Add an entry.

    Raises:
        ConfigError: evsched has no such recurrence.
    """
    rule, zone = _rule(entry.get("schedule"), app)
    options: Mapping[str, Any] = entry.get("options") or {}
    for option, value in options.items():
        if option != "queue":
            found.remark(name, f"option {option}={value!r}: evsched does not take it over")
    queue = options.get("queue")  # a name, or a Queue of kombu
    call: Call = (entry.get("task") or "", entry.get("args") or (), entry.get("kwargs") or {})
    queue = getattr(queue, "name", queue)
    found.recurrence(name, name, call, rule=rule, zone=zone, queue=queue, overlap="allow")


def _rule(schedule: Any, app: Any) -> tuple[str, str]:
    """Return the rule of a schedule, and its zone.

    Raises:
        ConfigError: evsched has no such rule.
    """
    schedules: Any = importlib.import_module("celery.schedules")
    if isinstance(schedule, schedules.crontab):
        day, weekday = both_days(schedule.day_of_month, schedule.day_of_week)
        minute, hour = field(schedule.minute, 0, 59), field(schedule.hour, 0, 23)
        rule = f"{minute} {hour} {day} {field(schedule.month_of_year, 1, 12)} {weekday}"
        return rule, zone_name(app.timezone)
    if isinstance(schedule, schedules.schedule):
        schedule = schedule.run_every
    if isinstance(schedule, timedelta):
        schedule = schedule.total_seconds()
    if isinstance(schedule, int | float):
        return f"every {schedule:.12g}", "UTC"
    raise ConfigError(f"a schedule of the class {type(schedule).__name__} has no counterpart in evsched")
