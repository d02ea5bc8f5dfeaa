"""How the console writes values, and draws words."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from evsched.console import words


def test_text_from_jobs_cannot_hide_or_turn_the_page_around() -> None:
    assert words.shown("a\x00b\u202etxt") == "a\\x00b\\u202etxt"
    assert words.shown("two\nlines\tand tabs") == "two\nlines\tand tabs"
    assert words.shown(None) == "–"  # noqa: RUF001 - the sign for no value
    assert words.shown("x" * 250_000).endswith("… and 230,000 characters more")


@pytest.mark.parametrize(
    ("part", "whole", "shown"),
    [(0, 0, "–"), (0, 7, "0 %"), (7, 7, "100 %"), (1, 1_000_000, "0.01 %"), (999_999, 1_000_000, "99.99 %")],  # noqa: RUF001
)
def test_a_share_is_whole_or_nothing_only_if_it_is(part: int, whole: int, shown: str) -> None:
    assert words.percent(part, whole) == shown


def test_a_time_has_its_date_unless_that_is_today_and_the_exact_time_for_the_browser() -> None:
    clock = words.PageClock(UTC)
    at = datetime(2020, 2, 3, 4, 5, 6, 789000, UTC).timestamp()
    assert clock.moment(at) == (
        '<time datetime="2020-02-03T04:05:06.789Z" title="2020-02-03 04:05:06 UTC">3 Feb 2020 04:05:06</time>'
    )
    now = datetime.now(UTC).replace(hour=0, minute=0, second=0).timestamp()
    assert ">00:00:00<" in clock.moment(now)
    assert [clock.moment(value) for value in (None, float("nan"), float("inf"), -1.0)] == ["–", "–", "never", "at once"]  # noqa: RUF001
    assert "in 1m 40s" in clock.ago(at + 100.2, at + 0.2)


def test_lengths_have_two_digits_and_ages_whole_seconds() -> None:
    shown = [words.length(one) for one in (0.00487, 0.0125, 0.9, 1.24, 65.03, 82.8, 245.0, None)]
    assert shown == ["4.9 ms", "12 ms", "900 ms", "1.2 s", "65 s", "83 s", "4m 05s", "–"]  # noqa: RUF001 - as above
    assert ">1 s ago<" in words.PageClock(UTC).ago(1e9, 1e9 + 0.8)
    assert words.rounded("dead for 74.9 s: lost after 10.5 s") == "dead for 75 s: lost after 10.5 s"


def test_charts_draw_a_bar_for_each_value_and_none_for_nothing() -> None:
    assert words.bars([0, 5, 10], 30, 20) == "M10,20h8v-10h-8zM20,20h8v-20h-8z"
    assert words.bars([0, 0], 30, 20) == ""
    assert words.bars([], 30, 20) == ""
    assert words.ticks(["done", "failed", "missed", "done"], 24, "done") == "M0,2h3v12h-3zM18,2h3v12h-3z"


def test_backticks_of_a_sentence_are_drawn_as_code_and_the_rest_stays_text() -> None:
    assert words.with_code("say `a <b>` & <c>") == "say <code>a &lt;b&gt;</code> &amp; &lt;c&gt;"
