"""The future planned times of a recurrence, with and without a count."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Any

import pytest

from evsched.recurrence.look_ahead import Standing, next_time, read_standing, runs_ahead, times_ahead
from evsched.recurrence.recurrence import Declared, Overlap, Recurrence, read_recurrence

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
def test_listed_times_end_with_the_remaining_count(
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
def test_next_time_is_the_first_scheduled_occurrence_or_else_the_score(
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
def test_times_counted_from_ends_assume_runs_that_take_no_time(
    standing: Standing, count: int | None, expected: list[float]
) -> None:
    recurrence = read_recurrence(Declared(name="r", rule="every 10", payload=b"{}", after="end", count=count))
    found = [round(planned - NOW, 3) for planned in islice(times_ahead(recurrence, standing, NOW, NOW), 3)]
    assert found == expected


WEEKDAYS = "mon-fri 09:00-17:00 UTC"


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


MADE = at("2030-06-09 21:00:30")
"""A Sunday evening."""

NEW = Standing(0.0)

OPENS = at("2030-06-10 09:00")


def windowed(rule: str, window: str = WEEKDAYS, overlap: Overlap = "skip", **other: Any) -> Recurrence:
    return read_recurrence(Declared(name="r", rule=rule, payload=b"{}", window=window, overlap=overlap, **other))


def runs(
    recurrence: Recurrence, since: float, until: float, standing: Standing = NEW
) -> list[tuple[float, float | None]]:
    """Return the runs of a span, each by its planned and due time, in seconds since OPENS."""
    looked = takewhile(lambda one: one.planned <= until, runs_ahead(recurrence, standing, MADE, since))
    found = [(one.planned, one.due) for one in islice(looked, 10_000) if one.runs and one.due and one.due <= until]
    return [(planned - OPENS, due - OPENS) for planned, due in found]


FIRST = MADE + 30 - OPENS


@pytest.mark.parametrize("overlap", ["skip", "wait"])
def test_one_of_the_planned_times_runs_that_wait_for_an_opening(overlap: Overlap) -> None:
    recurrence = windowed("* * * * *", overlap=overlap)
    assert runs(recurrence, OPENS - 120, OPENS + 120) == [(FIRST, 0), (60, 60), (120, 120)]
    assert runs(recurrence, OPENS + 1, OPENS + 120) == [(60, 60), (120, 120)]
    assert runs(windowed("* * * * *", overlap=overlap, count=721), OPENS, OPENS + 120) == [(FIRST, 0), (60, 60)]


def test_all_planned_times_run_at_the_opening_if_they_may_overlap() -> None:
    found = runs(windowed("* * * * *", overlap="allow"), OPENS - 120, OPENS)
    assert found == [(FIRST + 60 * n, 0) for n in range(12 * 60)]


def test_times_planned_before_the_scheduled_occurrences_are_not_listed() -> None:
    recurrence = windowed("* * * * *")
    ahead = Standing(MADE + 90, made=3, ahead=(MADE - 90, MADE - 30, MADE + 30))
    assert runs(recurrence, OPENS, OPENS, ahead) == [(FIRST - 120, 0)]
    assert runs(recurrence, MADE - 86400 * 30, OPENS - 1, ahead) == []


@pytest.mark.parametrize("monday", [OPENS, OPENS + 53 * 7 * 86400])
def test_number_of_examined_times_does_not_grow_with_waiting_ones(monday: float) -> None:
    recurrence = windowed("every 15", "mon 09:00-09:01 UTC; not 2030-07-01..2030-12-31")
    looked = runs_ahead(recurrence, Standing(0.0), MADE, monday - 3600)
    found = [one.due for one in islice(looked, 10) if one.runs]
    assert found[:4] == [monday, monday + 15, monday + 30, monday + 45]


def test_daily_rule_with_a_weekly_window_runs_at_the_opening_and_within() -> None:
    recurrence = windowed("0 12 * * *", "mon 09:00-17:00 UTC")
    week = at("2030-06-17 00:00")
    tuesday = at("2030-06-11 12:00") - OPENS
    assert runs(recurrence, week, week + 86399) == [(tuesday, 7 * 86400), (7 * 86400 + 10800, 7 * 86400 + 10800)]


def test_occurrences_that_are_delayed_into_an_opening_overlap_there_too() -> None:
    found = runs(windowed("every 60", spread=300), OPENS - 900, OPENS + 900)
    dues = [due for _, due in found]
    assert dues.count(0) == 1
    assert len(set(dues)) == len(dues) > 10


def test_times_counted_from_ends_restart_after_an_opening() -> None:
    recurrence = windowed("every 1000", after="end")
    begun = runs(recurrence, OPENS - 120, OPENS + 2500)
    assert begun == [(MADE + 1000 - OPENS, 0), (1000, 1000), (2000, 2000)]
    waits = Standing(MADE + 5000, made=1, ahead=(MADE - 500,), under_way=True)
    assert runs(recurrence, OPENS - 120, OPENS + 1500, waits) == [(MADE - 500 - OPENS, 0), (1000, 1000)]


def test_a_window_that_never_opens_is_listed_and_nothing_runs() -> None:
    recurrence = windowed("0 12 * * *", "09:00-17:00 UTC; not 2000-01-01..2099-12-31")
    found = list(islice(runs_ahead(recurrence, Standing(0.0), MADE, MADE), 3))
    assert [(one.due, one.runs) for one in found] == [(None, False)] * 3
