"""Times and lengths of time as people write them: `10s`, `14:00`, `2030-01-31T09:00`, Unix seconds."""

from __future__ import annotations

import math
import re
import time
from datetime import datetime, timedelta
from datetime import time as time_of_day
from typing import Final

from evsched.errors import ConfigError

_NUMBER: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WRITTEN: Final = re.compile(r"(\d\d? [A-Z][a-z]{2})( \d{4})? (\d\d?:\d\d(?::\d\d)?)")
"""A time as the console writes it: 31 Jan 09:00:00, of another year 31 Jan 2030 09:00:00."""

_LEAST: Final = 1e9
"""In September 2001. A smaller number is a mistyped time: 1730 means half past five."""

_MISTYPED: Final = re.compile(r"([01]?\d|2[0-3])[.,h]?([0-5]\d)")
"""A time of day without its colon."""

_LATE: Final = 60.0
"""Seconds after which a time to come has passed: a person needs some to send the form."""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}


def parse_length(text: str) -> float:
    """Return the seconds of "10s", "1.5h", "250ms", "7d", or of a plain number.

    Raises:
        ConfigError: it is not a duration.
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s|m|h|d|)", text.strip())
    if not found:
        raise ConfigError(f"{text!r} is not a duration: write 10s, 250ms, 5m, 1.5h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def parse_time(text: str, zone: str | None = None) -> float:
    """Return the Unix seconds of an ISO 8601 time, of a plain number from 2001 on, or of `now` on this machine's clock.

    A time without an offset is in `zone`, or in this machine's zone if that is None.

    Raises:
        ConfigError: it is not a time, or there is no such zone.
    """
    from evsched.recurrence.cron import find_zone  # time zones take 10 ms to import

    local = None if zone is None else find_zone(zone)
    if text == "now":
        return time.time()
    if _NUMBER.fullmatch(text):
        number = float(text)
        if not _LEAST <= number < math.inf:
            raise ConfigError(
                f"{text!r} is not a time: write 2030-01-31T09:00, 2030-01-31T09:00+01:00 or Unix seconds from 1e9 on"
            )
        return number
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=local)).timestamp()
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is not a time: write 2030-01-31T09:00, 2030-01-31T09:00+01:00 or Unix seconds"
        ) from None


def parse_past(text: str, zone: str | None = None) -> float | timedelta:
    """Return the Unix seconds of a time, as `parse_time`, or the length of "2h" or "90s", which is that long ago.

    The length of `now` is 0.

    A time of day without a date, such as 14:00, is the latest one that has passed on this machine's clock. One such as
    31 Jan 09:00 is of this year.

    Raises:
        ConfigError: it is neither, or there is no such zone.
    """
    return _near(text, zone, -1, "2h for two hours ago")


def parse_future(text: str, zone: str | None = None) -> float | timedelta:
    """Return the Unix seconds of a time, as `parse_time`, or the length of "10m", which is that long from now.

    The length of `now` is 0.

    A time of day without a date, such as 17:00, is the next one on this machine's clock. One such as 31 Jan 09:00 is of
    this year.

    Raises:
        ConfigError: it is neither, or there is no such zone.
    """
    return _near(text, zone, 1, "10m for ten minutes from now")


def _near(text: str, zone: str | None, direction: int, example: str) -> float | timedelta:
    text = text.strip()
    if text == "now":
        return timedelta()
    if found := _MISTYPED.fullmatch(text):
        raise ConfigError(
            f"{text!r} is not a time: for the time of day, write {int(found[1]):02}:{found[2]}; or {example}"
        )
    if re.fullmatch(r"[\d.]+\s*(ms|s|m|h|d)", text):
        try:
            return timedelta(seconds=parse_length(text))
        except OverflowError:
            raise ConfigError(f"{text!r} is too long: write {example}, or a time such as 14:00") from None
    if re.fullmatch(r"\d\d?:\d\d(:\d\d)?", text):
        from evsched.recurrence.cron import find_zone  # time zones take 10 ms to import

        now = datetime.now(None if zone is None else find_zone(zone))
        try:
            of_day = time_of_day.fromisoformat(text if text[2] == ":" else f"0{text}")
        except ValueError:
            raise ConfigError(
                f"{text!r} is not a time of day: write one such as 14:00 or 14:00:30, or {example}"
            ) from None
        moment = datetime.combine(now, of_day, now.tzinfo)
        passed = moment.timestamp() <= now.timestamp()
        return (moment if passed == (direction < 0) else moment + timedelta(days=direction)).timestamp()
    try:
        if found := _WRITTEN.fullmatch(text):
            from evsched.recurrence.cron import find_zone

            year = found[2] or f" {datetime.now(None if zone is None else find_zone(zone)).year}"
            seconds = "" if found[3].count(":") == 2 else ":00"
            text = datetime.strptime(f"{found[1]}{year} {found[3]}{seconds}", "%d %b %Y %H:%M:%S").isoformat()  # noqa: DTZ007 - of `zone`
        return parse_time(text, zone)
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{error}; or 14:00; or {example}") from None


def check_to_come(moment: float, text: str) -> None:
    """Refuse a time that has passed, for a job that is to wait until then. `text`: as it was typed.

    Raises:
        ConfigError
    """
    if moment < time.time() - _LATE:
        raise ConfigError(f"{text!r:.60} has passed: give a time to come, or now")
