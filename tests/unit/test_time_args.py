"""Durations and times as people type them on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from evsched.client.time_texts import parse_future, parse_length, parse_past, parse_time
from evsched.console.words import PageClock
from evsched.errors import ConfigError

TOKYO = ZoneInfo("Asia/Tokyo")


def test_lengths_and_times_are_read_in_common_notations() -> None:
    assert [parse_length(text) for text in ("10s", "250ms", "1.5h", "2", "7d")] == [10, 0.25, 5400, 2, 604800]
    assert parse_time("1900000000.5") == 1900000000.5
    assert parse_time("2030-01-31T09:00+01:00") == datetime(2030, 1, 31, 8, tzinfo=UTC).timestamp()
    assert parse_time("2030-01-31T09:00+01:00", "Asia/Tokyo") == datetime(2030, 1, 31, 8, tzinfo=UTC).timestamp()
    assert parse_time("2030-01-31T09:00", "Asia/Tokyo") == datetime(2030, 1, 31, 0, tzinfo=UTC).timestamp()
    assert parse_time("2030-01-31T09:00") == datetime(2030, 1, 31, 9).timestamp()  # noqa: DTZ001 - this machine's zone
    for invalid in ("soon", "nan", "10x", ""):
        with pytest.raises(ConfigError):
            parse_time(invalid)
    for invalid in ("soon", "-1s", "10x", ""):
        with pytest.raises(ConfigError):
            parse_length(invalid)


def test_a_time_in_the_past_is_a_moment_or_a_length_before_now() -> None:
    assert (parse_past("2h"), parse_past("1.5d")) == (timedelta(hours=2), timedelta(days=1.5))
    assert (parse_past("1900000000"), parse_past("2030-01-31T09:00Z")) == (1900000000, 1896080400)
    for invalid in ("soon", "25:00", "14:60", "-2h", "1.2.3h", "9" * 20 + "d"):
        with pytest.raises(ConfigError, match="write"):
            parse_past(invalid)


@pytest.mark.parametrize(
    "moment", [datetime(2031, 2, 3, 4, 5, 6, tzinfo=TOKYO), datetime.now(TOKYO).replace(month=1, day=9, microsecond=0)]
)
def test_times_that_the_console_writes_are_read(moment: datetime) -> None:
    at = moment.timestamp()
    assert parse_past(PageClock(TOKYO).text(at), "Asia/Tokyo") == at
    assert parse_future(f"{moment:%d %b %Y %H:%M}", "Asia/Tokyo") == at - moment.second
    for invalid in ("31 Feb 09:00", "3 Foo 09:00", "3 Jan 29:00"):
        with pytest.raises(ConfigError, match="or 2h"):
            parse_past(invalid)


@pytest.mark.parametrize("text", ["00:00", "9:30", "23:59", "23:59:59"])
def test_a_time_of_day_is_the_latest_that_has_passed(text: str) -> None:
    before = datetime.now(UTC).timestamp()
    found = parse_past(text)
    assert isinstance(found, float)
    assert before - 25 * 3600 - 1 <= found <= datetime.now(UTC).timestamp()  # a day has 25 hours when a summer ends
    assert datetime.fromtimestamp(found).strftime("%H:%M:%S").startswith(text.zfill(5))  # noqa: DTZ006 - this machine's zone


def test_a_time_in_the_future_is_a_moment_or_a_length_from_now() -> None:
    assert (parse_future("10m"), parse_future("1.5d")) == (timedelta(minutes=10), timedelta(days=1.5))
    assert parse_future("2030-01-31T09:00", "Asia/Tokyo") == datetime(2030, 1, 31, 0, tzinfo=UTC).timestamp()
    for invalid in ("soon", "25:00", "-2h", "9" * 20 + "d"):
        with pytest.raises(ConfigError, match="from now"):
            parse_future(invalid)


@pytest.mark.parametrize("text", ["17.00", "1730", "2030", "9.30"])
def test_time_of_day_without_a_colon_is_not_read_as_unix_seconds(text: str) -> None:
    meant = f"{text[:-2].strip('.').zfill(2)}:{text[-2:]}"
    for read in (parse_future, parse_past):
        with pytest.raises(ConfigError, match=f"for the time of day, write {meant}"):
            read(text)
    with pytest.raises(ConfigError, match="is not a time"):
        parse_time(text)


@pytest.mark.extra
def test_small_numbers_are_no_times_and_now_is_one() -> None:
    for text in ("0", "946684800", "-1e10"):
        with pytest.raises(ConfigError, match="Unix seconds from 1e9 on"):
            parse_time(text)
    assert (parse_past("now"), parse_future(" now ")) == (timedelta(), timedelta())
    assert parse_time("now") == pytest.approx(datetime.now(UTC).timestamp(), abs=60)


@pytest.mark.parametrize("text", ["00:00", "9:30", "23:59", "23:59:59"])
@pytest.mark.parametrize("zone", [None, "Asia/Tokyo"])
def test_a_time_of_day_in_the_future_is_the_next(text: str, zone: str | None) -> None:
    before = datetime.now(UTC).timestamp()
    found = parse_future(text, zone)
    assert isinstance(found, float)
    assert before < found <= datetime.now(UTC).timestamp() + 25 * 3600 + 1
    shown = datetime.fromtimestamp(found, None if zone is None else ZoneInfo(zone))
    assert shown.strftime("%H:%M:%S").startswith(text.zfill(5))
