"""How fast the jobs of a batch end, in words."""

from __future__ import annotations

import pytest

from evsched.batches.pace import Pace


def pace(*readings: tuple[float, int]) -> Pace:
    found = Pace()
    for at, ended in readings:
        found.note(at, ended)
    return found


@pytest.mark.parametrize(
    ("readings", "left", "words"),
    [
        ([(0, 5)], 9, "the rate is known in a moment"),
        ([(0, 5), (2, 5)], 9, "the rate is known in a moment"),
        ([(0, 5), (30, 5)], 9, "none has ended in the last 30.0 s"),
        ([(0, 100), (2, 160)], 90, "30 a second; at this rate the rest takes 3.0 s"),
        ([(0, 100), (30, 110)], 90, "20 a minute; at this rate the rest takes 4m 30s"),
        ([(0, 0), (60, 1)], 60, "1 a minute; at this rate the rest takes 1h 00m"),
        ([(0, 0), (5, 9)], 0, "all have ended"),
    ],
)
def test_rate_and_time_left_are_said_plainly(readings: list[tuple[float, int]], left: int, words: str) -> None:
    assert pace(*readings).words(left) == words


def test_rate_is_that_of_the_last_minute() -> None:
    assert pace((0, 0), (10, 10_000), (70, 10_060)).rate == 1.0
    assert pace((0, 0), (30, 10), (200, 10), (230, 40)).rate == pytest.approx(0.15)


def test_rate_begins_again_when_dead_jobs_are_revived() -> None:
    assert pace((0, 0), (10, 50), (20, 45)).rate is None
    assert pace((0, 0), (10, 50), (20, 45), (30, 55)).rate == 1.0
