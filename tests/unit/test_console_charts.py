"""The times below the charts of the console: round, and at even distances."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from evsched.console.past_charts import even_axis, parts_of

BERLIN = ZoneInfo("Europe/Berlin")
BEGINS = datetime(2030, 1, 31, 2, 7, 13, tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize(
    ("seconds", "marks", "bar"),
    [
        (0.0, ["02:07:13.000", "02:07:13.001"], 0.0001),
        (40.0, ["02:07:10", "02:07:20", "02:07:30", "02:07:40", "02:07:50", "02:08:00"], 1.0),
        (1800.0, ["02:00", "02:10", "02:20", "02:30", "02:40"], 60.0),
        (7 * 3600.0, ["02:00", "04:00", "06:00", "08:00", "10:00"], 600.0),
        (3 * 86400.0, ["31 Jan", "01 Feb", "02 Feb", "03 Feb", "04 Feb"], 7200.0),
    ],
)
def test_axis_has_round_times_that_include_its_span(seconds: float, marks: list[str], bar: float) -> None:
    axis = even_axis(BEGINS, BEGINS + seconds, BERLIN)
    assert (axis.marks(BERLIN), axis.bar) == (marks, pytest.approx(bar))
    assert axis.start <= BEGINS <= BEGINS + seconds <= axis.start + axis.bar * axis.all_bars


def test_axis_of_years_is_of_whole_weeks() -> None:
    axis = even_axis(BEGINS, BEGINS + 5 * 365 * 86400.0, BERLIN)
    assert axis.parts <= 6
    assert axis.step % (7 * 86400) == 0


@pytest.mark.parametrize(("hours", "parts"), [(24, 4), (168, 7), (21, 7), (48, 4), (7, 7), (13, 1)])
def test_chart_of_hours_is_divided_into_even_parts_of_whole_hours(hours: int, parts: int) -> None:
    assert parts_of(hours) == parts
