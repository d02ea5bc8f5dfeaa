"""Durations and times as people type them on the command line."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from evsched.cli.time_args import parse_length, parse_time
from evsched.cli.usage import UsageError


def test_lengths_and_times_as_people_write_them() -> None:
    assert [parse_length(text) for text in ("10s", "250ms", "1.5h", "2", "7d")] == [10, 0.25, 5400, 2, 604800]
    assert parse_time("1900000000.5") == 1900000000.5
    assert parse_time("2030-01-31T09:00+01:00") == datetime(2030, 1, 31, 8, tzinfo=UTC).timestamp()
    assert parse_time("2030-01-31T09:00+01:00", "Asia/Tokyo") == datetime(2030, 1, 31, 8, tzinfo=UTC).timestamp()
    assert parse_time("2030-01-31T09:00", "Asia/Tokyo") == datetime(2030, 1, 31, 0, tzinfo=UTC).timestamp()
    assert parse_time("2030-01-31T09:00") == datetime(2030, 1, 31, 9).timestamp()  # noqa: DTZ001 - this machine's zone
    for invalid in ("soon", "nan", "10x", ""):
        with pytest.raises(UsageError):
            parse_time(invalid)
    for invalid in ("soon", "-1s", "10x", ""):
        with pytest.raises(UsageError):
            parse_length(invalid)
