"""Rules in many zones and years, compared with a search minute by minute; days of clock changes; plans."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import islice
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsched.app import App
from evsched.client.recurrence_operations import declare
from evsched.errors import ConfigError
from evsched.recurrence.cron import parse_rule
from evsched.recurrence.recurrence import Declared, Plan, Recurrence, occurrence_id, read_declared, read_recurrence
from evsched.store.store import Store

JOB = b'{"task":"t"}'

ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "UTC"]
MOMENTS = st.integers(
    int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()), int(datetime(2034, 1, 1, tzinfo=UTC).timestamp())
)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    return st.one_of(
        st.just("*"),
        st.sampled_from(["*/5", "*/7", "*/2"]),
        number.map(str),
        st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}"),
        st.lists(number, min_size=1, max_size=3).map(lambda numbers: ",".join(map(str, numbers))),
    )


RULES = st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), field(0, 6)).map(" ".join)


@given(RULES, st.sampled_from(ZONES), MOMENTS)
def test_the_next_occurrence_is_after_the_given_moment(text: str, zone: str, after: int) -> None:
    rule, moments = parse_rule(text, zone), [float(after)]
    for _ in range(4):
        found = next(rule.walk(moments[-1]), None)
        if found is None:
            break
        assert found > moments[-1]
        moments.append(found)


def matches(part: str, value: int, low: int, high: int) -> bool:
    """Return whether a value matches a field of cron: a second implementation to compare with."""
    for piece in part.split(","):
        base, _, step = piece.partition("/")
        first, last = (low, high) if base == "*" else (int(base.split("-")[0]), int(base.split("-")[-1]))
        if first <= value <= last and (value - first) % int(step or 1) == 0:
            return True
    return False


def by_minutes(text: str, zone: str, after: int, most: int) -> float | None:
    """Return the first minute that matches a rule; None if none does within `most` minutes."""
    minute, hour, day, month, weekday = text.split()
    tz = ZoneInfo(zone)
    moment = after // 60 * 60
    for _ in range(most):
        moment += 60
        local = datetime.fromtimestamp(moment, tz)
        days = matches(day, local.day, 1, 31), matches(weekday, local.isoweekday() % 7, 0, 6)
        both = day.startswith("*") or weekday.startswith("*")
        if (
            matches(minute, local.minute, 0, 59)
            and matches(hour, local.hour, 0, 23)
            and matches(month, local.month, 1, 12)
            and (all(days) if both else any(days))
        ):
            return float(moment)
    return None


def clock_is_set(zone: str, first: float, last: float) -> bool:
    """Return whether the local clock changes near a span of time: special rules of cron apply there."""
    tz = ZoneInfo(zone)
    at = first - 86400
    while at <= last + 86400:
        if datetime.fromtimestamp(at, tz).utcoffset() != datetime.fromtimestamp(at + 3600, tz).utcoffset():
            return True
        at += 3600
    return False


@pytest.mark.extra
@given(RULES, st.sampled_from(ZONES), MOMENTS)
def test_next_occurrence_matches_a_minute_by_minute_search(text: str, zone: str, after: int) -> None:
    found, most = next(parse_rule(text, zone).walk(after), None), 3 * 24 * 60
    if clock_is_set(zone, after, after + most * 60):
        return
    expected = by_minutes(text, zone, after, most)
    if expected is not None or (found is not None and found <= after // 60 * 60 + most * 60):
        assert found == expected


# What docs/recurrence-reference.md says of the two days on which Berlin's clock is set in 2026.
DAYS: list[tuple[str, str, list[str]]] = [
    ("30 2 * * *", "2026-03-29", ["2026-03-29T01:00:00"]),  # 02:30 does not exist: it is due at 03:00 summer time
    ("0 * * * *", "2026-03-29", ["2026-03-28T23:00:00", "2026-03-29T00:00:00", "2026-03-29T01:00:00"]),
    ("*/30 2 * * *", "2026-03-29", []),
    ("0 30 2 * * *", "2026-03-29", []),
    ("30 2 * * *", "2026-10-25", ["2026-10-25T00:30:00"]),  # 02:30 occurs twice: due only the first time
    ("*/30 2 * * *", "2026-10-25", [f"2026-10-25T0{h}:{m}:00" for h in (0, 1) for m in ("00", "30")]),
    ("0 30 2 * * *", "2026-10-25", ["2026-10-25T00:30:00", "2026-10-25T01:30:00"]),  # six fields: no special rules
]


FIELDS: list[tuple[str, int, int, list[str]]] = [
    ("{} * * * *", 0, 59, []),
    ("0 {} * * *", 0, 23, []),
    ("0 0 {} * *", 1, 31, []),
    ("0 0 1 {} *", 1, 12, ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]),
    ("0 0 * * {}", 0, 6, ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]),
]


def test_ranges_with_steps_have_the_values_that_cron_gives_them() -> None:
    """Compares one field at a time. Its ranges are often of one value, and their ends are numbers or names."""
    chance = Random(3)
    for _ in range(100):
        n = chance.randrange(5)
        rule, low, high, names = FIELDS[n]
        pieces, expected = list[str](), set[int]()
        for _ in range(chance.randint(1, 2)):
            first = chance.randint(low, high)
            last, step = min(high, first + chance.choice([0, 0, 1, 9])), chance.randint(1, high + 3)
            begin, end = (chance.choice([str(one), *names[one - low : one - low + 1]]) for one in (first, last))
            pieces.append(f"{begin}-{end.title()}/{step}")
            expected |= {*range(first, last + 1, step)}
        text, found = rule.format(",".join(pieces)), set[int]()
        for moment in islice(parse_rule(text).walk(1_767_225_599.0), len(expected) + 1):
            at = datetime.fromtimestamp(moment, UTC)
            found.add([at.minute, at.hour, at.day, at.month, at.isoweekday() % 7][n])
        assert found == expected, text


@pytest.mark.parametrize(("text", "day", "expected"), DAYS)
def test_occurrences_follow_a_clock_change(text: str, day: str, expected: list[str]) -> None:
    zone = ZoneInfo("Europe/Berlin")
    midnight = datetime.fromisoformat(day).replace(tzinfo=zone)
    rule, moment, found = parse_rule(text, "Europe/Berlin"), midnight.timestamp() - 1, list[str]()
    while (moment := next(rule.walk(moment), None) or 0.0) and datetime.fromtimestamp(
        moment, zone
    ).date() == midnight.date():
        found.append(datetime.fromtimestamp(moment, UTC).replace(tzinfo=None).isoformat())
    assert found[: len(expected)] == expected
    if len(expected) != 3:
        assert len(found) == len(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("61 * * * *", "field 1, the minute, is '61': give 0 to 59"),
        ("0 9 31 2 *", "it never falls due: no month of '2' has a day '31'"),
        ("0 0 9 31 feb,apr *", "it never falls due: no month of 'feb,apr' has a day '31'"),
        ("0 9 32 2 *", "field 3, the day-of-month, is '32'"),
        ("* 24 * * *", "field 2, the hour, is '24'"),
        ("* * * jam *", "field 4, the month, is 'jam'"),
        ("* * * * * 8", "field 6, the day-of-week, is '8'"),
        ("*/0 * * * *", "field 1, the minute, is '*/0': the step of '*/0' is 0: give 1 or more"),
        ("* * 1,*/ * *", "field 3, the day-of-month, is '1,*/': the step of '*/' is missing: give 1 or more"),
        ("1,50-5 * * * *", "field 1, the minute, is '1,50-5': '50-5' ends before it begins: write two ranges"),
        ("* * * * fri-mon/2", "field 5, the day-of-week, is 'fri-mon/2': 'fri-mon' ends before it begins"),
        ("* * *", "it has 3 fields"),
        ("@often", "@hourly"),
        ("every 0.1", "the interval must be at least 1 s"),
        ("every -5", "the interval is '-5': give a number of seconds from 1 to 1000000000, such as every 90"),
        ("every 5 minutes", "the interval is '5 minutes': give a number of seconds"),
        ("every", "or give the seconds of an interval, such as every 90"),
        ("1s", "it has 1 field: give five (minute"),
        ("1s", "or give the seconds of an interval, such as every 90"),
    ],
)
def test_an_invalid_rule_is_refused_and_the_error_names_the_wrong_part(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_rule(text)
    assert words in str(refused.value)


def test_an_unknown_zone_is_refused_and_the_error_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"did you mean Europe/Berlin\?"):
        parse_rule("@daily", "Europe/Berln")


@pytest.mark.parametrize("rule", ["every 60", "0 9 * * *"])
@pytest.mark.parametrize("score", [253_402_300_800.0, 1e15, 1e300, math.inf, math.nan])
def test_no_rule_has_occurrences_after_the_year_9999(rule: str, score: float) -> None:
    assert next(parse_rule(rule).walk(score), None) is None


@pytest.mark.parametrize(("rule", "first"), [("every 60", 0.0), ("0 9 * * *", 9 * 3600.0)])
@pytest.mark.parametrize("score", [-1.0, -1e15, -1e300, -math.inf])
def test_the_occurrences_of_a_rule_begin_in_1970(rule: str, first: float, score: float) -> None:
    assert next(parse_rule(rule).walk(score), None) == first


def test_every_counts_from_1970_and_not_from_the_end_of_a_run() -> None:
    rule = parse_rule("every 90")
    assert [next(rule.walk(at), None) for at in (0.0, 89.9, 90.0, 1e9 + 1)] == [90.0, 90.0, 180.0, 1000000080.0]


def recurrence(**fields: Any) -> Recurrence:
    return read_recurrence(msgspec.structs.replace(Declared(name="r", rule="every 60", payload=b"{}"), **fields))


def planned(plan: Plan) -> list[float]:
    return [one.planned for one in plan.put]


def test_start_and_end_limit_the_occurrences_and_the_spread_delays_them() -> None:
    bounded = recurrence(start=600.0, end=720.0)
    assert list(bounded.walk(0)) == [600.0, 660.0, 720.0]
    spread = recurrence(spread=30.0)
    dues = [one.due - one.planned for one in spread.plan(60.0, 50.0, 600.0).put]
    assert len(dues) > 5
    assert all(0 <= due < 30 for due in dues)
    assert len(set(dues)) == len(dues)
    assert dues == [one.due - one.planned for one in spread.plan(60.0, 50.0, 600.0).put]


def test_a_long_downtime_is_handled_in_several_steps() -> None:
    next_planned, now, missed, put, steps = 60.0, 1_000_000.0, 0, list[float](), 0
    once = recurrence(misfire="once")
    while next_planned <= now + 15:
        plan = once.plan(next_planned, now, 15)
        assert plan.next is not None
        next_planned, missed, steps = plan.next, missed + plan.missed, steps + 1
        put += planned(plan)
    assert put == [999_960.0]
    assert missed + len(put) == 999_960 // 60
    assert steps > 5


def test_a_new_recurrence_begins_now() -> None:
    assert recurrence().plan(0.0, 1000.0, 15) == Plan([], 1020.0, 0)


def test_the_id_of_an_occurrence_is_its_name_and_planned_time() -> None:
    assert occurrence_id("r", 1900000000.0) == "r@1900000000"
    assert occurrence_id("r", 1900000000.25) == "r@1900000000.25"
    assert occurrence_id("r", 10.0) == "r@10"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rule": b"@daily"}, "no payload"),
        ({"rule": b"@daily", "payload": b"tick"}, "its payload is not valid: JSON is malformed"),
        ({"rule": b"@daily", "payload": b"{}"}, "its payload is not valid: Object missing required field `task`"),
        ({"payload": JOB}, "rule"),
        ({"rule": b"@daily", "payload": JOB, "spread": b"wide"}, "spread"),
        (
            {"rule": b"@daily", "payload": JOB, "overlap": b"maybe"},
            "overlap is 'maybe': give 'allow' or 'skip' or 'wait'",
        ),
        ({"rule": b"@daily", "payload": JOB, "misfire": b""}, "misfire is '': give 'skip' or 'once' or 'all'"),
        ({"rule": b"@daily", "payload": JOB, "zone": b"Mars"}, "zone 'Mars'"),
        ({"rule": b"@daily", "payload": JOB, "window": b"always open"}, "at 'always open'"),
        ({"rule": b"@daily", "payload": JOB, "count": b"0"}, "at least 1"),
        ({"rule": b"@daily", "payload": JOB, "spread": b"nan"}, "spread is nan: give a number of seconds from 0 to 1"),
        ({"rule": b"@daily", "payload": JOB, "spread": b"-1"}, "spread is -1: give a number of seconds from 0 to 1"),
    ],
)
def test_an_invalid_record_is_refused_and_the_error_names_the_field(fields: dict[str, bytes], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_recurrence(read_declared("r", fields))
    assert words in str(refused.value)
    assert "recurrence r" in str(refused.value)


def test_an_occurrence_in_a_window_that_never_opens_again_is_not_planned() -> None:
    late = recurrence(window="09:00-17:00 UTC; not 1970-01-01..2040-01-01")
    assert late.plan(60.0, 50.0, 600.0).put == []


# Counted from the end of each run.


def after_end(rule: str = "every 30", **more: Any) -> Recurrence:
    return read_recurrence(Declared(name="r", rule=rule, payload=b"{}", after="end", **more))


def test_an_interval_that_is_counted_from_the_end_begins_now() -> None:
    assert after_end().plan(0, 1000.5, 15) == Plan([], 1030.5, 0)
    assert after_end(start=5000).plan(0, 1000.5, 15).next == pytest.approx(5030)


def test_recurrence_counted_from_ends_plans_one_and_misses_none() -> None:
    assert after_end().plan(1030.0, 1000.0, 15) == Plan([], 1030.0, 0)
    plan = after_end().plan(1030.0, 1020.0, 15)
    assert ([one.id for one in plan.put], plan.next, plan.missed) == (["r@1030"], 1090.0, 0)
    late = after_end().plan(1030.0, 9000.0, 15)
    assert ([(one.id, one.misfire_grace) for one in late.put], late.next, late.missed) == (
        [("r@1030", None)],
        9060.0,
        0,
    )
    assert after_end(end=1029.0).plan(1030.0, 1030.0, 15) == Plan([], None, 0)


@pytest.mark.parametrize("more", [{"rule": "@daily"}, {"overlap": "allow"}])
def test_invalid_options_with_after_end_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="after='end' needs every="):
        after_end(**more)


REPORT = Declared(name="report", rule="@daily", payload=b'{"task":"report"}')


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("misfire", "bla", "misfire is 'bla': give 'skip' or 'once' or 'all'"),
        ("overlap", "alow", "overlap is 'alow', did you mean 'allow'[?]"),
        ("overlap", None, "overlap is None: give"),
        ("after", "start", "after is 'start': give 'end'"),
        ("priority", 12, "priority is 12: give a whole number from 0 to 9"),
        ("group", "}", "group is '}': give a string"),
        ("payload", b"x", "payload is b'x': give the JSON of a job"),
        ("payload", b"{}", "missing required field `task`"),
        ("payload", "{}", "payload is '{}': give the JSON of a job as bytes"),
        ("rule", None, "rule is None: give a string"),
        ("name", 5, "name is 5: give a string"),
        ("start", "now", "start is 'now': give a number"),
        ("spread", -1.0, "spread is -1.0: give a number of seconds, 0 or more"),
        ("most", 0, "most is 0: give a whole number, 1 or more"),
        ("zone", "\ud800", "zone is '.ud800': give"),
    ],
)
def test_a_field_of_a_declaration_that_is_not_valid_is_refused(field: str, value: Any, words: str) -> None:
    changed: Any = {field: value}
    with pytest.raises(ConfigError, match=words):
        next(declare(Store("q"), msgspec.structs.replace(REPORT, **changed)))


@pytest.mark.parametrize("overlap", ["skip", "wait"])
def test_running_all_missed_occurrences_at_once_needs_allowed_overlap(overlap: Any) -> None:
    with pytest.raises(ConfigError, match="recurrence report: misfire='all' needs overlap='allow'"):
        next(declare(Store("q"), msgspec.structs.replace(REPORT, misfire="all", overlap=overlap)))
    with pytest.raises(ConfigError, match="misfire='all' needs overlap='allow'"):
        App("redis://localhost:1/0").recurring("@daily", misfire="all", overlap=overlap)(report)
    next(declare(Store("q"), msgspec.structs.replace(REPORT, misfire="all", overlap="allow")))


def report() -> None:
    """A task."""


def test_a_declaration_that_is_valid_is_sent() -> None:
    next(declare(Store("q"), REPORT))
