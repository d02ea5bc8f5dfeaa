"""Rules made from sets of values mean these sets, whatever cron thinks of two days."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice

import pytest

from evsched.errors import ConfigError
from evsched.imports.imported import both_days, field
from evsched.imports.rq_scheduler import cron_rule
from evsched.recurrence.cron import parse_rule

EVERY_DAY, EVERY_WEEKDAY = {*range(1, 32)}, {*range(7)}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({*range(60)}, "*"),
        ({0, 15, 30, 45}, "*/15"),
        ({0, 30}, "*/30"),
        ({0}, "0"),
        ({5, 20, 35, 50}, "5,20,35,50"),
        ({1, 2, 3, 9, 10, 30}, "1-3,9,10,30"),
    ],
)
def test_field_is_short(values: set[int], text: str) -> None:
    assert field(values, 0, 59) == text


@pytest.mark.parametrize(
    ("days", "weekdays", "expected"),
    [
        (EVERY_DAY, EVERY_WEEKDAY, ("*", "*")),
        (EVERY_DAY, {1, 2, 3, 4, 5}, ("*", "1-5")),
        ({13}, EVERY_WEEKDAY, ("13", "*")),
        ({*range(1, 32, 2)}, {5}, ("*/2", "5")),
        ({13}, {0, 2, 4, 6}, ("13", "*/2")),
        ({*range(1, 8)}, {1}, ("*", "1#1")),
        ({*range(8, 15), *range(22, 29)}, {1, 4}, ("*", "1#2,4#2,1#4,4#4")),
        ({*range(8, 15)}, {0, 6}, ("8-14", "*/6")),
        ({29, 30, 31}, {3}, ("*", "3#5")),
    ],
)
def test_days_match_both_fields(days: set[int], weekdays: set[int], expected: tuple[str, str]) -> None:
    assert both_days(days, weekdays) == expected
    day, weekday = expected
    rule = parse_rule(f"0 0 {day} * {weekday}")
    for moment in islice(rule.walk(datetime(2026, 1, 1, tzinfo=UTC).timestamp()), 100):
        found = datetime.fromtimestamp(moment, UTC)
        assert found.day in days
        assert found.isoweekday() % 7 in weekdays


@pytest.mark.parametrize("days", [{13}, {*range(2, 9)}, {*range(1, 8), 9}])
def test_days_that_no_rule_expresses_are_refused(days: set[int]) -> None:
    with pytest.raises(ConfigError, match="days that match both"):
        both_days(days, {5})


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("0 9 * * mon-fri", "0 9 * * mon-fri"),
        ("0 9 ? * 1", "0 9 * * 1"),
        ("0 9 * * * *", "0 9 * * *"),
        ("0 0 9 * * * *", "0 9 * * *"),
        ("30 0 9 1-7 * 7 *", "30 0 9 * * 0#1"),
        ("@Daily", "0 0 * * *"),
        ("0 9 1-7 * 5-5/2", "0 9 * * 5#1"),
    ],
)
def test_rule_of_rq_scheduler_has_seconds_first_and_a_year_last(text: str, rule: str) -> None:
    assert cron_rule(text) == rule


@pytest.mark.parametrize("text", ["0 9 * * * 2027", "* * *", "0 9 L * 1", "0 9 x * 1", "0 9 13 * 5#1"])
def test_rule_of_rq_scheduler_that_has_no_counterpart_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        cron_rule(text)
