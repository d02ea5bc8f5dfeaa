"""Service windows: how they are parsed, and when they open, compared with a search minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evsched.errors import ConfigError
from evsched.recurrence.windows import parse_window

NIGHTS = "mon-fri 22:00-06:00 Europe/Berlin; not 2026-12-24..2026-12-26"

MOMENTS = st.integers(
    int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()), int(datetime(2034, 1, 1, tzinfo=UTC).timestamp())
)


def berlin(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()


@pytest.mark.parametrize(
    ("at", "opens"),
    [
        ("2026-11-23T12:00", "2026-11-23T22:00"),  # a Monday
        ("2026-11-23T22:00", "2026-11-23T22:00"),
        ("2026-11-24T05:59", "2026-11-24T05:59"),
        ("2026-11-24T06:00", "2026-11-24T22:00"),
        ("2026-11-28T05:00", "2026-11-28T05:00"),  # Saturday: Friday's night
        ("2026-11-28T07:00", "2026-11-30T22:00"),
        ("2026-12-23T23:30", "2026-12-23T23:30"),
        ("2026-12-24T00:00", "2026-12-28T22:00"),  # Thursday, closed to Saturday; Friday's night is closed with it
    ],
)
def test_a_window_opens_at_the_expected_moment(at: str, opens: str) -> None:
    window = parse_window(NIGHTS)
    assert window.next_open(berlin(at)) == berlin(opens)
    assert window.is_open(berlin(at)) is (at == opens)


SPANS = {
    "inside": "01:30-02:30",
    "in the hour of the change": "02:10-02:50",
    "around the hour": "01:00-04:00",
    "begins in the hour": "02:30-05:00",
    "ends in the hour": "00:15-02:15",
    "one day of the week": "sun 01:30-02:30",
    "over midnight": "22:00-06:00",
    "over midnight, one day of the week": "sat 23:30-00:30",
    "ends at midnight": "23:15-24:00",
    "begins at midnight": "00:00-00:45",
    "whole days": "00:00-24:00",
    "whole days, some of the week": "sat,sun 00:00-24:00",
    "several": "01:00-01:20; 02:20-02:40; 23:10-23:40",
    "with exceptions": "23:30-03:30; not 2032-10-31; not 2010-11-07; not 2027-04-04..2027-04-05; not 2011-12-29",
}

CHANGES = {  # When the clock of a zone changes, in UTC.
    "Europe/Berlin": ("2026-03-29T01:00", "2032-10-31T01:00"),
    "America/New_York": ("2026-03-08T07:00", "2026-11-01T06:00"),
    "Australia/Lord_Howe": ("2026-10-03T15:30", "2026-04-04T15:00"),  # by half an hour
    "Antarctica/Troll": ("2026-03-29T01:00", "2026-10-25T01:00"),  # by two
    "America/Santiago": ("2026-09-06T04:00", "2027-04-04T03:00"),  # at 24:00, back into the day before
    "America/Havana": ("2026-03-08T05:00", "2026-11-01T05:00"),  # at 00:00, and back to it
    "America/St_Johns": ("2010-03-14T03:31", "2010-11-07T02:31"),  # at 00:01, back into the day before
    "Africa/Casablanca": ("2026-03-22T02:00", "2026-02-15T02:00"),
    "Pacific/Apia": ("2011-12-30T10:00", "2011-04-02T14:00"),  # a day is left out
}

MINUTE, HOUR = 60, 3600


@pytest.mark.extra
@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("span", SPANS.values(), ids=SPANS)
def test_window_opens_at_its_first_open_minute_on_a_clock_change(span: str, zone: str) -> None:
    first, *rest = span.split(";")
    window = parse_window(";".join([f"{first} {zone}", *rest]))
    for moment in CHANGES[zone]:
        at = int(datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp())
        offsets = {window.zone.utcoffset(datetime.fromtimestamp(at + by, window.zone)) for by in (-1, 0)}
        assert len(offsets) == 2, "the clock does not change then"
        # Search backwards from the next opening, which is then known. Test each minute near the clock change; elsewhere
        # test the first and the last minute of each closed span, and some between.
        opens = window.next_open(at + 30 * HOUR)
        assert opens is not None
        for minute in range(at + 30 * HOUR, at - 30 * HOUR, -MINUTE):
            was, opens = opens, minute if window.is_open(minute) else opens
            if abs(minute - at) <= 3 * HOUR or opens != was or minute % (17 * MINUTE) == 0 or opens == minute + MINUTE:
                assert window.next_open(minute) == opens, datetime.fromtimestamp(minute, UTC)
                assert window.next_open(minute - 0.5) == (minute - 0.5 if window.is_open(minute - 0.5) else opens)


@pytest.mark.parametrize(
    ("span", "spring", "autumn"),
    [
        ("01:30-02:30", 30, 90),
        ("02:10-02:50", 0, 80),
        ("02:30-05:00", 120, 180),  # in spring from 03:00; in autumn it opens at 02:30 twice
        ("00:15-02:15", 105, 135),
        ("00:00-24:00", 23 * 60, 25 * 60),
        ("sun 00:00-12:00", 11 * 60, 13 * 60),
        ("04:00-05:00", 60, 60),
    ],
)
def test_window_is_an_hour_shorter_or_longer_on_a_clock_change(span: str, spring: int, autumn: int) -> None:
    window = parse_window(f"{span} Europe/Berlin")
    for day, minutes in (("2026-03-29", spring), ("2026-10-25", autumn)):
        begin, end = int(berlin(day)), int(berlin(day)) + (23 if day == "2026-03-29" else 25) * HOUR
        assert sum(map(window.is_open, range(begin, end, MINUTE))) == minutes


def test_a_window_that_closes_in_the_repeated_hour_opens_again() -> None:
    window = parse_window("sun 01:30-02:30 Europe/Berlin")
    set_back = datetime(2032, 10, 31, 1, tzinfo=UTC).timestamp()
    assert window.next_open(set_back - 1805.5) == set_back - 1805.5  # 02:29:54 CEST
    assert window.next_open(set_back - 1800) == set_back  # closed at 02:30 CEST, open again at 02:00 CET
    assert window.next_open(set_back + 1800) == berlin("2032-11-07T01:30")


@pytest.mark.extra
@given(st.sampled_from(list(SPANS.values())), st.sampled_from([*CHANGES, "UTC"]), MOMENTS)
def test_the_next_opening_is_the_first_open_minute(span: str, zone: str, at: int) -> None:
    first, *rest = span.split(";")
    window = parse_window(";".join([f"{first} {zone}", *rest]))
    found = window.next_open(float(at))
    assert found is not None
    assert window.is_open(found)
    moment, tries = float(at // MINUTE * MINUTE), 0
    while moment < found and tries < 2000:
        assert moment <= at or not window.is_open(moment)
        moment, tries = moment + MINUTE, tries + 1


@pytest.mark.extra
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mon-fry 09:00-17:00 UTC", "at 'mon-fry'"),
        ("09:00-25:00 UTC", "at '25:00'"),
        ("09:00-17:00", "it has no zone"),
        ("09:00-17:00 Mars/Base", "zone 'Mars/Base'"),
        ("not 2026-12-24; 09:00-17:00 UTC; not 2026-02-30", "at '2026-02-30'"),
        ("not 2026-12-24..2026-12-20; 09:00-17:00 UTC", "it ends before it begins"),
        ("09:00-09:00 UTC", "it is empty"),
        ("09:00-17:00 UTC; 09:00-17:00 Europe/Berlin", "a window has one"),
        ("not 2026-12-24", "it is never open"),
        ("weekdays", "write it as"),
    ],
)
def test_an_invalid_window_is_refused_and_the_error_names_the_wrong_part(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_window(text)
    assert words in str(refused.value)


def test_a_window_that_never_opens_again_has_no_next_opening() -> None:
    window = parse_window("09:00-17:00 UTC; not 2020-01-01..2040-01-01")
    assert window.next_open(berlin("2026-01-01T00:00")) is None
