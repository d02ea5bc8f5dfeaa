"""Moments and durations as a program gives them, in seconds."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

from evsched.errors import ConfigError


def unix(moment: datetime | float) -> float:
    """Return a moment in Unix seconds.

    Raises:
        ConfigError: a datetime without a time zone, or a value that is not a moment.
    """
    if isinstance(moment, timedelta):
        raise ConfigError(f"{moment!r} is a duration, not a time: pass it as delay=")
    if not isinstance(moment, datetime):
        return _number(moment, "is not a time: give an aware datetime, or Unix seconds")
    if moment.tzinfo is None:
        raise ConfigError(f"{moment} has no time zone: give an aware datetime, such as datetime.now(UTC)")
    return moment.timestamp()


def seconds(duration: timedelta | float) -> float:
    """Return a duration in seconds.

    Raises:
        ConfigError: a value that is not a duration.
    """
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    return _number(duration, "is not a duration: give a timedelta, or seconds")


def due_and_delay(due: datetime | float | None, delay: timedelta | float | None) -> tuple[float | None, float]:
    """Return when a job is due: in Unix seconds, or None and the seconds from now.

    Raises:
        ConfigError: both are given, or one of them is not valid.
    """
    if due is not None and delay is not None:
        raise ConfigError("due and delay: give one of them")
    if due is not None:
        return unix_or_refuse("due", due), 0.0
    length = 0.0 if delay is None else seconds(delay)
    if not length < math.inf:  # NaN is less than nothing
        raise ConfigError(f"delay is {delay!r}: give a finite number of seconds")
    return None, length


def unix_or_refuse(name: str, moment: datetime | float) -> float:
    """Return a moment in Unix seconds; an error for NaN names the option.

    Raises:
        ConfigError: it is not a moment.
    """
    found = unix(moment)
    if math.isnan(found):
        raise ConfigError(f"{name} is nan: give Unix seconds")
    return found


def _number(given: Any, wrong: str) -> float:
    try:
        if not isinstance(given, str):  # "5" is most often the text of a form field that was not converted
            return float(given)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ConfigError(f"{repr(given)[:200]} {wrong}")
