"""The future planned times of a recurrence, with and without a count."""

from __future__ import annotations

import math
from itertools import islice

import pytest

from evsched.recurrence.look_ahead import Standing, next_time, read_standing, times_ahead
from evsched.recurrence.recurrence import Declared, read_recurrence

NOW = 1_900_000_000.5


def ahead(standing: Standing, count: int | None, after: float = NOW) -> list[float]:
    recurrence = read_recurrence(Declared(name="r", rule="every 10", payload=b"{}", count=count))
    return [planned - NOW + 0.5 for planned in islice(times_ahead(recurrence, standing, NOW, after), 5)]


@pytest.mark.parametrize(
    ("standing", "count", "expected"),
    [
        (Standing(0.0), None, [10, 20, 30, 40, 50]),
        (Standing(math.inf), None, [10, 20, 30, 40, 50]),
        (Standing(0.0), 2, [10, 20]),
        (Standing(NOW + 29.5, made=2, ahead=(NOW + 9.5, NOW + 19.5)), 3, [10, 20, 30]),
        (Standing(math.inf, made=2, ahead=(NOW - 0.5, NOW + 9.5)), 2, [10]),
        (Standing(math.inf, made=2), 2, []),
        (Standing(math.inf, made=1, paused=True), 2, [10]),
        (Standing(0.0, made=7), 2, []),
        (Standing(1e308), 2, []),
        (Standing(math.inf, paused=True, until=NOW + 29.5), None, [30, 40, 50, 60, 70]),
        (Standing(math.inf, made=1, paused=True, until=NOW + 29.5), 3, [30, 40]),
        (Standing(math.inf, paused=True, until=NOW - 99), None, [10, 20, 30, 40, 50]),
    ],
)
def test_it_lists_as_many_times_as_the_count_leaves(
    standing: Standing, count: int | None, expected: list[float]
) -> None:
    assert ahead(standing, count) == expected


def test_occurrences_before_the_given_moment_count_and_are_not_listed() -> None:
    assert ahead(Standing(0.0), 4, after=NOW + 20) == [30, 40]


def test_a_standing_is_read_from_score_and_record() -> None:
    fields = {"made": b"3", "ahead": b"r@1900000010 r@1900000005.5 nonsense", "paused": b"1"}
    assert read_standing(7.0, fields, False) == Standing(7.0, 3, (1900000005.5, 1900000010.0), True)
    assert read_standing(7.0, {"made": b"many"}, False) == Standing(7.0)


@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        (Standing(NOW + 40, ahead=(NOW - 5, NOW + 5, NOW + 15)), NOW + 5),
        (Standing(math.inf, ahead=(NOW + 5,)), NOW + 5),  # the last one of a count
        (Standing(NOW + 40, ahead=(NOW - 5,)), NOW + 40),
        (Standing(NOW - 40), NOW - 40),
        (Standing(0.0), None),
        (Standing(math.inf), None),
        (Standing(NOW + 65, ahead=(NOW + 5,), under_way=True), NOW + 5),
        (Standing(NOW + 60, ahead=(NOW - 5,), under_way=True), None),
    ],
)
def test_the_next_time_is_that_of_the_first_occurrence_on_the_schedule_else_the_score(
    standing: Standing, expected: float | None
) -> None:
    assert next_time(standing, NOW) == expected


def test_an_occurrence_that_has_ended_before_its_time_is_not_ahead() -> None:
    fields = {"ahead": b"r@1900000005 r@1900000010", "last_id": b"r@1900000005"}
    assert read_standing(7.0, fields, False).ahead == (1900000010.0,)


@pytest.mark.parametrize(
    ("standing", "count", "expected"),
    [
        (Standing(NOW + 4, made=1), None, [4, 14, 24]),
        (Standing(NOW + 4, made=1), 3, [4, 14]),
        (Standing(0.0, made=1), 3, [10, 20]),
        # On the schedule ahead of its time: the score is when a dispatcher looks again.
        (Standing(NOW + 65, made=1, ahead=(NOW + 5,), under_way=True), None, [5, 15, 25]),
        (Standing(math.inf, made=2, ahead=(NOW + 5,), under_way=True), 2, [5]),
        # It runs.
        (Standing(NOW + 40, made=1, ahead=(NOW - 20,), under_way=True), None, [10, 20, 30]),
        (Standing(NOW + 40, made=1, ahead=(NOW - 20,), under_way=True), 2, [10]),
        # A client has deleted it.
        (Standing(NOW + 40, made=1, ahead=(NOW - 20,)), None, [40, 50, 60]),
        (Standing(math.inf, paused=True, until=NOW + 30), None, [40, 50, 60]),
    ],
)
def test_times_that_are_counted_from_ends_are_those_of_runs_that_take_no_time(
    standing: Standing, count: int | None, expected: list[float]
) -> None:
    recurrence = read_recurrence(Declared(name="r", rule="every 10", payload=b"{}", after="end", count=count))
    found = [round(planned - NOW, 3) for planned in islice(times_ahead(recurrence, standing, NOW, NOW), 3)]
    assert found == expected
