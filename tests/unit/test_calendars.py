"""Calendars: how files of holidays are read, and which planned times are left, compared with a walk day by day."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evsched.cli.calendar_commands import WholeDays, read_file
from evsched.errors import ConfigError
from evsched.recurrence.calendars import format_calendar, parse_calendar, read_days
from evsched.recurrence.recurrence import Declared, Recurrence, read_recurrence

FIRST, LAST = date(2025, 1, 1), date(2034, 12, 31)  # ten years
DAYS = [FIRST + timedelta(days=n) for n in range((LAST - FIRST).days + 1)]
DAY = timedelta(days=1)


class Repeated(NamedTuple):
    """An event of whole days as a file has it, and as plain arithmetic understands it."""

    begin: date
    length: int
    freq: str
    interval: int
    until: date
    without: date

    def text(self, n: int) -> str:
        return "\n".join(
            (
                "BEGIN:VEVENT",
                f"UID:{n}",
                f"DTSTART;VALUE=DATE:{self.begin:%Y%m%d}",
                f"DTEND;VALUE=DATE:{self.begin + self.length * DAY:%Y%m%d}",
                f"RRULE:FREQ={self.freq};INTERVAL={self.interval};UNTIL={self.until:%Y%m%d}",
                f"EXDATE;VALUE=DATE:{self.without:%Y%m%d}",
                "END:VEVENT",
            )
        )

    def begins_on(self, day: date) -> bool:
        if not self.begin <= day or day == self.without:
            return False
        if day == self.begin:
            return True
        if day > self.until:
            return False
        months = 12 * (day.year - self.begin.year) + day.month - self.begin.month
        since = (day - self.begin).days
        return {
            "DAILY": since % self.interval == 0,
            "WEEKLY": since % (7 * self.interval) == 0,
            "MONTHLY": day.day == self.begin.day and months % self.interval == 0,
            "YEARLY": day.day == self.begin.day and months % (12 * self.interval) == 0,
        }[self.freq]

    def covers(self, day: date) -> bool:
        return any(self.begins_on(day - back * DAY) for back in range(self.length))


DATES = st.dates(date(2023, 1, 1), LAST)
EVENTS = st.builds(
    Repeated,
    begin=DATES,
    length=st.integers(1, 4),
    freq=st.sampled_from(["DAILY", "WEEKLY", "MONTHLY", "YEARLY"]),
    interval=st.integers(1, 5),
    until=DATES,
    without=DATES,
)


def file_of(path: Path, *events: str) -> Path:
    path.write_text("\n".join(("BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:test", *events, "END:VCALENDAR", "")))
    return path


def recurrence(rule: str, zone: str, days: str) -> Recurrence:
    declared = Declared(name="r", rule=rule, zone=zone, payload=b"{}", skip="holidays")
    return read_recurrence(declared, {"holidays": days})


def between(recurrence: Recurrence, first: float, last: float) -> list[float]:
    return list(takewhile(lambda planned: planned <= last, recurrence.walk(math.nextafter(first, -math.inf))))


def ten_years(zone: str) -> tuple[float, float]:
    tz = ZoneInfo(zone)
    first, last = datetime.combine(FIRST, time(), tz), datetime.combine(LAST + DAY, time(), tz)
    return first.timestamp(), last.timestamp() - 1


@pytest.mark.extra
@settings(max_examples=10, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=5), st.sampled_from(["Europe/Berlin", "America/New_York", "UTC"]))
def test_a_daily_rule_runs_on_the_open_days_of_ten_years(
    tmp_path_factory: pytest.TempPathFactory, events: list[Repeated], zone: str
) -> None:
    path = file_of(tmp_path_factory.getbasetemp() / "days.ics", *(one.text(n) for n, one in enumerate(events)))
    stored = format_calendar(read_file(path, FIRST, LAST).days)
    open_days = [day for day in DAYS if not any(event.covers(day) for event in events)]
    expected = [datetime.combine(day, time(12), ZoneInfo(zone)).timestamp() for day in open_days]
    assert between(recurrence("0 12 * * *", zone, stored), *ten_years(zone)) == expected


RULES = ["*/30 2 * * *", "30 2 * * *", "0 0 * * *", "59 23 * * 5", "0 30 1 * * *", "15 */6 1-7 * *", "every 86399"]
ZONES = ["Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "America/Santiago", "Africa/Casablanca"]
CLOSED = st.lists(st.tuples(st.sampled_from(DAYS), st.integers(0, 40)), min_size=1, max_size=40)


@cache
def without_calendar(rule: str, zone: str) -> list[float]:
    return between(recurrence(rule, zone, ""), *ten_years(zone))


@pytest.mark.extra
@settings(max_examples=8, deadline=None)
@given(st.sampled_from(RULES), st.sampled_from(ZONES), CLOSED)
def test_every_rule_skips_exactly_its_times_on_closed_days(
    rule: str, zone: str, closed: list[tuple[date, int]]
) -> None:
    """Clocks are set at midnight in some of these zones."""
    days = {first + n * DAY for first, more in closed for n in range(more + 1)}
    stored = " ".join(f"{first}..{first + more * DAY}" for first, more in closed)
    tz, span = ZoneInfo(zone), ten_years(zone)
    expected = [
        planned for planned in without_calendar(rule, zone) if datetime.fromtimestamp(planned, tz).date() not in days
    ]
    assert between(recurrence(rule, zone, stored), *span) == expected


@pytest.mark.extra
@pytest.mark.parametrize("zone", ["America/St_Johns", "Pacific/Apia", "America/Havana"])
def test_closed_days_that_begin_twice_or_never_are_skipped_once(zone: str) -> None:
    """In St. John's, clocks were set back at 00:01, into the day before; Apia has no 30 December 2011."""
    first = datetime(2011, 1, 1, tzinfo=UTC).timestamp()
    span = first, first + 366 * 86400
    closed = {date(2011, 11, 5), date(2011, 11, 6), date(2011, 12, 29), date(2011, 12, 30)}
    tz = ZoneInfo(zone)
    for part in (closed, {date(2011, 11, 5)}, {date(2011, 11, 6)}, {date(2011, 12, 29)}, {date(2011, 12, 31)}):
        every = between(recurrence("every 900", zone, ""), *span)
        expected = [planned for planned in every if datetime.fromtimestamp(planned, tz).date() not in part]
        assert between(recurrence("every 900", zone, " ".join(map(str, part))), *span) == expected


def test_a_range_of_closed_days_is_passed_over_in_one_step() -> None:
    found = recurrence("every 1", "UTC", "1970-01-01..9998-12-31").walk(0.0)
    assert next(found) == datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def test_planned_time_on_a_newly_closed_day_is_neither_run_nor_missed() -> None:
    planned = datetime(2026, 12, 24, 9, tzinfo=UTC).timestamp()
    plan = recurrence("0 9 * * *", "UTC", "2026-12-24..2026-12-26").plan(planned, planned - 5, 15)
    assert (plan.put, plan.next, plan.missed) == ([], planned + 3 * 86400, 0)


def test_the_days_of_several_calendars_are_closed() -> None:
    declared = Declared(name="r", rule="@daily", payload=b"{}", skip="a, b")
    found = read_recurrence(declared, {"a": "2026-01-02", "b": "2026-01-03..2026-01-05 2026-01-01"}).closed
    assert found == ((date(2026, 1, 1), date(2026, 1, 5)),)


@pytest.mark.parametrize(
    ("skip", "calendars", "words"),
    [
        ("b", {"a": ""}, "recurrence r: there is no calendar b: evsched calendars set b FILE.ics"),
        ("a", {"a": "2026-13-01"}, "recurrence r: calendar a: '2026-13-01' is not a date"),
        ("a", {"a": "2026-01-02..2026-01-01"}, "ends before it begins"),
        ("a", {"a": "2026-01-02..9999-01-01"}, "after the year 9998"),
        ("a", {"a": "x" * 9000}, "is not a date"),
        ("a", {"a": " ".join(["2026-01-01"] * 5001)}, "more than 5000"),
        ("a b", {"a b": ""}, "skip is the name of a calendar"),
    ],
)
def test_invalid_skip_or_calendar_is_named(skip: str, calendars: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_recurrence(Declared(name="r", rule="@daily", payload=b"{}", skip=skip), calendars)


@given(CLOSED)
def test_a_calendar_is_read_as_it_was_written(closed: list[tuple[date, int]]) -> None:
    days = parse_calendar(" ".join(f"{first}..{first + more * DAY}" for first, more in closed))
    assert read_days("a", {"a": format_calendar(days)}) == days


# Files.

EVENT = "BEGIN:VEVENT\nUID:1\nSUMMARY:Day\n{}\nEND:VEVENT"


def read(path: Path, *events: str) -> tuple[str, int]:
    found: WholeDays = read_file(file_of(path / "days.ics", *events), FIRST, LAST)
    return format_calendar(found.days), found.left_out


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ("DTSTART;VALUE=DATE:20260101", ("2026-01-01", 0)),
        ("DTSTART;VALUE=DATE:20261224\nDTEND;VALUE=DATE:20261227", ("2026-12-24..2026-12-26", 0)),
        ("DTSTART;VALUE=DATE:20261224\nDURATION:P3D", ("2026-12-24..2026-12-26", 0)),
        ("DTSTART;VALUE=DATE:20261224\nRDATE;VALUE=DATE:20270101,20270106", ("2026-12-24 2027-01-01 2027-01-06", 0)),
        ("DTSTART;VALUE=DATE:20261224\nSTATUS:CANCELLED", ("", 0)),
        ("DTSTART;VALUE=DATE:20241230\nDTEND;VALUE=DATE:20250103", ("2025-01-01..2025-01-02", 0)),
        ("DTSTART;VALUE=DATE:20400101", ("", 0)),
        ("DTSTART;VALUE=DATE:20280229\nRRULE:FREQ=YEARLY", ("2028-02-29 2032-02-29", 0)),
        (
            "DTSTART;VALUE=DATE:20301128\nRRULE:FREQ=YEARLY;BYMONTH=11;BYDAY=+4TH",
            ("2030-11-28 2031-11-27 2032-11-25 2033-11-24 2034-11-23", 0),
        ),
        ("DTSTART;VALUE=DATE:20331003\nRRULE:FREQ=YEARLY;UNTIL=20341003T000000Z", ("2033-10-03 2034-10-03", 0)),
        ("DTSTART:20260105T000000\nDTEND:20260107T000000", ("2026-01-05..2026-01-06", 0)),
        ("DTSTART:20260105T090000Z\nDTEND:20260105T100000Z", ("", 1)),
        ("DTSTART:20260105T220000Z\nDTEND:20260106T060000Z", ("", 1)),
        ("DTSTART:20260105T000000Z", ("", 1)),
    ],
)
def test_whole_days_of_an_event(tmp_path: Path, event: str, expected: tuple[str, int]) -> None:
    assert read(tmp_path, EVENT.format(event)) == expected


def test_a_repetition_that_was_moved_is_on_its_new_day(tmp_path: Path) -> None:
    repeated = EVENT.format("DTSTART;VALUE=DATE:20330501\nRRULE:FREQ=YEARLY")
    moved = EVENT.format("DTSTART;VALUE=DATE:20340508\nRECURRENCE-ID;VALUE=DATE:20340501")
    assert read(tmp_path, repeated, moved) == ("2033-05-01 2034-05-08", 0)
    cancelled = EVENT.format("DTSTART;VALUE=DATE:20340501\nRECURRENCE-ID;VALUE=DATE:20340501\nSTATUS:CANCELLED")
    assert read(tmp_path, repeated, cancelled) == ("2033-05-01", 0)


def test_a_file_with_several_calendars_is_read_whole(tmp_path: Path) -> None:
    one, other = (
        file_of(tmp_path / name, EVENT.format(f"DTSTART;VALUE=DATE:{day}")).read_text()
        for name, day in (("a", "20260101"), ("b", "20270101"))
    )
    (tmp_path / "both.ics").write_text(one + other)
    assert format_calendar(read_file(tmp_path / "both.ics", FIRST, LAST).days) == "2026-01-01 2027-01-01"


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ("DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=HOURLY", "event 'Day': it repeats more than once a day"),
        ("DTSTAMP:20260101T000000Z", "event 'Day'"),
        ("DTSTART;VALUE=DATE:20260101\nRRULE:FREQ=DAILY;INTERVAL=2", "ranges of days, more than 100"),
    ],
)
def test_an_event_that_cannot_be_used_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str, words: str
) -> None:
    monkeypatch.setattr("evsched.cli.calendar_commands.RANGES", 100)
    with pytest.raises(ConfigError, match=words):
        read(tmp_path, EVENT.format(event))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.ics cannot be read: No such file"):
        read_file(tmp_path / "nowhere.ics", FIRST, LAST)
    (tmp_path / "not.ics").write_text("hello")
    with pytest.raises(ConfigError, match=r"not\.ics is not an iCalendar file"):
        read_file(tmp_path / "not.ics", FIRST, LAST)
    (tmp_path / "large.ics").write_bytes(b" " * 10_000_001)
    with pytest.raises(ConfigError, match="has more than 10 MB"):
        read_file(tmp_path / "large.ics", FIRST, LAST)
