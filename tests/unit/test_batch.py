"""The limit of jobs in a call adapts to the cost of calls."""

from __future__ import annotations

import pytest

from evsched.store.queue import BUDGET, LEAST, BatchLimit


def calls(batch: BatchLimit, count: int, cost: float) -> list[int]:
    """Make full calls with jobs of that cost; return the limit after each call."""
    limits = list[int]()
    for _ in range(count):
        batch.took(batch.limit, batch.limit * cost)
        limits.append(batch.limit)
    return limits


def test_quick_calls_keep_the_limit_at_its_maximum() -> None:
    assert set(calls(BatchLimit(250), 100, BUDGET / 300)) == {250}


@pytest.mark.parametrize("fits", [20, 60, 125, 240])
def test_the_limit_settles_near_the_number_of_jobs_that_fit_the_budget(fits: int) -> None:
    batch = BatchLimit(250)
    calls(batch, 50, BUDGET / fits)
    settled = calls(batch, 100, BUDGET / fits)
    assert max(settled) <= fits + 9
    assert min(settled) >= max(LEAST, fits * 3 // 4)


def test_limit_rises_again_when_calls_are_quick() -> None:
    batch = BatchLimit(250)
    calls(batch, 50, BUDGET / 20)
    assert calls(batch, 40, BUDGET / 300)[-1] == 250


def test_the_limit_does_not_fall_below_the_minimum() -> None:
    assert calls(BatchLimit(250), 50, BUDGET)[-1] == LEAST


def test_a_maximum_below_the_minimum_never_changes() -> None:
    batch = BatchLimit(3)
    assert calls(batch, 10, BUDGET) == [3] * 10
    assert batch.worth_timing(3)


def test_one_slow_call_lowers_the_limit_by_a_quarter() -> None:
    batch = BatchLimit(200)
    batch.took(200, 2 * BUDGET)
    assert batch.limit == 150


def test_a_slow_call_of_few_jobs_lowers_the_limit_below_their_number() -> None:
    batch = BatchLimit(250)
    batch.took(40, 2 * BUDGET)
    assert batch.limit == 30


def test_a_quick_call_that_was_not_full_does_not_raise_the_limit() -> None:
    batch = BatchLimit(250)
    batch.took(100, 2 * BUDGET)
    batch.took(20, BUDGET / 10)
    assert batch.limit == 75


def test_a_call_of_few_jobs_is_not_measured() -> None:
    assert not BatchLimit(250).worth_timing(LEAST - 1)
    assert BatchLimit(250).worth_timing(LEAST)
