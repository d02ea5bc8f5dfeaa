"""Rules of recurrences in words, for the common forms: `at 17:00, Monday to Friday`. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from evsched.recurrence.cron import ALIASES

_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_UNITS: Final = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))

_NAMED: Final = 4
"""Times, or days, of one rule that are listed."""


def rule_words(rule: str) -> str:
    """Return a rule in words; the rule itself if it has no common form."""
    text = ALIASES.get(rule.strip().lower(), rule.strip())
    if found := re.fullmatch(r"every\s+([0-9]+(?:\.[0-9]+)?)", text):
        return _interval(float(found[1]))
    fields = text.lower().split()
    if len(fields) == 6 and fields[0] == "0":
        fields = fields[1:]
    if len(fields) != 5:
        return rule
    minute, hour, day, month, weekday = fields
    times, days = _times(minute, hour), _days(day, month, weekday)
    if times is None or days is None:
        return rule
    if not days:
        return f"{times} every day" if times.startswith("at ") and hour != "*" else times
    return f"{times}, {days}"


def _interval(seconds: float) -> str:
    for length, unit in _UNITS:
        if seconds >= length and seconds % length == 0:
            count = int(seconds // length)
            return f"every {unit}" if count == 1 else f"every {count:,} {unit}s"
    return f"every {seconds:g} seconds"


def _times(minute: str, hour: str) -> str | None:
    """Return the words for the first two fields; None = not a common form."""
    step, minutes = _step(minute, 60), _numbers(minute, 59)
    if step is not None:
        often = "every minute" if step == 1 else f"every {step} minutes"
        if hour == "*":
            return often
        if found := re.fullmatch(r"(\d{1,2})-(\d{1,2})", hour):
            return f"{often} from {int(found[1]):02}:00 to {int(found[2]):02}:59"
        return None
    if minutes is None or len(minutes) > 1:
        return None
    (first,), hours, every = minutes, _numbers(hour, 23), _step(hour, 24)
    past = "" if first == 0 else f" at minute {first}"
    if every is not None:
        return (f"every {every} hours" if every > 1 else "every hour") + past
    if hours is not None:
        return "at " + _listed([f"{one:02}:{first:02}" for one in hours])
    if found := re.fullmatch(r"(\d{1,2})-(\d{1,2})", hour):
        return f"every hour from {int(found[1]):02}:{first:02} to {int(found[2]):02}:{first:02}"
    return None


def _days(day: str, month: str, weekday: str) -> str | None:
    """Return the words for the last three fields; empty = every day; None = not a common form."""
    in_months = "" if month == "*" else _months(month)
    if in_months is None or (day != "*" and weekday != "*"):
        return None
    if day != "*":
        days = ["last day"] if day == "l" else [_ordinal(one) for one in _numbers(day, 31) or ()]
        if not days:
            return None
        return f"on the {_listed(days)}" + (f" of {in_months}" if in_months else "")
    found = "" if weekday == "*" else _weekdays(weekday)
    if found is None:
        return None
    if not in_months:
        return found
    return f"{found or 'every day'} in {in_months}"


def _weekdays(field: str) -> str | None:
    named = field
    for at, name in enumerate(_DAYS[:7]):
        named = named.replace(name[:3].lower(), str(at))
    if found := re.fullmatch(r"([0-7])-([0-7])", named):
        return f"{_DAYS[int(found[1])]} to {_DAYS[int(found[2])]}"
    days = _numbers(named, 7)
    return None if days is None else f"on {_listed([_DAYS[one] for one in days])}"


def _months(field: str) -> str | None:
    named = field
    for at, name in enumerate(_MONTHS, 1):
        named = named.replace(name[:3].lower(), str(at))
    months = _numbers(named, 12)
    return None if months is None or 0 in months else _listed([_MONTHS[one - 1] for one in months])


def _numbers(field: str, most: int) -> list[int] | None:
    """Return the numbers of a short list."""
    if not re.fullmatch(r"\d{1,2}(,\d{1,2})*", field):
        return None
    found = [int(one) for one in field.split(",")]
    return found if len(found) <= _NAMED and max(found) <= most else None


def _step(field: str, whole: int) -> int | None:
    """Return the step of a field that has even steps."""
    if field == "*":
        return 1
    found = re.fullmatch(r"\*/(\d{1,2})", field)
    step = int(found[1]) if found else 0
    return step if step and whole % step == 0 else None


def _ordinal(number: int) -> str:
    ending = "th" if number in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _listed(words: Sequence[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
