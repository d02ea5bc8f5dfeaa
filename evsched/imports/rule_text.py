"""Writes cron rules from sets of values, for schedulers whose own rules mean something else than cron's.

Celery, APScheduler and rq-scheduler run on days that match both the day of the month and the day of the week. In cron,
and in evsched, one of them is enough, unless one begins with `*`.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from itertools import groupby
from typing import Final

from evsched.errors import ConfigError

_MONTH_DAYS: Final = (1, 31)
_WEEKDAYS: Final = (0, 6)


def field(values: Collection[int], low: int, high: int) -> str:
    """Return a field of a rule: `*`, `*/15`, or a list of values and ranges."""
    found = sorted({*values})
    if found == [*range(low, high + 1)]:
        return "*"
    if len(found) > 1 and found == [*range(low, high + 1, found[1] - low)]:
        return f"*/{found[1] - low}"
    parts = list[str]()
    for _, numbered in groupby(enumerate(found), lambda pair: pair[1] - pair[0]):
        run = [value for _, value in numbered]
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else map(str, run)
    return ",".join(parts)


def both_days(days: Set[int], weekdays: Set[int]) -> tuple[str, str]:
    """Return the fields for days that match both sets; Sunday is 0.

    Raises:
        ConfigError: no rule says that.
    """
    day, weekday = field(days, *_MONTH_DAYS), field(weekdays, *_WEEKDAYS)
    if day.startswith("*") or weekday.startswith("*"):
        return day, weekday
    weeks = [n for n in range(1, 6) if days >= _week(n)]
    if days == {one for n in weeks for one in _week(n)}:
        return "*", ",".join(f"{one}#{n}" for n in weeks for one in sorted(weekdays))
    raise ConfigError(
        f"it runs on days that match both the day of the month {day} and the day of the week {weekday}: a rule says "
        "that only for whole weeks, such as the days 1-7. Use two recurrences, or let the task look at the date"
    )


def _week(n: int) -> set[int]:
    """Return the days of the month on which a weekday is for the n-th time."""
    return {*range(7 * n - 6, min(7 * n, _MONTH_DAYS[1]) + 1)}
