"""Moments and durations as a program gives them, in seconds. Errors name the option."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

from evsched.errors import ConfigError
from evsched.jobs.option_checks import invalid


def unix(name: str, moment: datetime | float) -> float:
    """Return a moment in Unix seconds.

    Raises:
        ConfigError: a datetime without a time zone, or a value that is not a moment.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise invalid(name, moment, "a datetime with a time zone, such as datetime.now(UTC)")
        return moment.timestamp()
    return _number(name, moment, "an aware datetime, or Unix seconds")


def seconds(name: str, duration: timedelta | float) -> float:
    """Return a duration in seconds.

    Raises:
        ConfigError: a value that is not a duration.
    """
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    return _number(name, duration, "a timedelta, or seconds")


def finite_seconds(name: str, duration: timedelta | float) -> float:
    """Return a duration in seconds.

    Raises:
        ConfigError: a value that is not a duration, or an endless one.
    """
    length = seconds(name, duration)
    if length == math.inf:
        raise invalid(name, duration, "a finite number of seconds")
    return length


def due_and_delay(due: datetime | float | None, delay: timedelta | float | None) -> tuple[float | None, float]:
    """Return when a job is due: in Unix seconds, or None and the seconds from now.

    Raises:
        ConfigError: both are given, or one of them is not valid.
    """
    if due is not None and delay is not None:
        raise ConfigError("due and delay: give one of them")
    if due is not None:
        return unix("due", due), 0.0
    return None, 0.0 if delay is None else finite_seconds("delay", delay)


def _number(name: str, given: Any, give: str) -> float:
    try:
        # "5" is most often the text of a form field that was not converted, and True a mistake.
        if not isinstance(given, (str, bool)) and not math.isnan(found := float(given)):
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    raise invalid(name, given, give)
