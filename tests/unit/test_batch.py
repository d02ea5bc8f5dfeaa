"""The limit of jobs in a call follows what calls cost."""

from __future__ import annotations

import pytest

from evsched.store.batch_size import BUDGET, LEAST, Batch


def calls(batch: Batch, count: int, cost: float) -> list[int]:
    """Make full calls of jobs of that cost; return the limits after each."""
    limits = list[int]()
    for _ in range(count):
        batch.took(batch.limit, batch.limit * cost)
        limits.append(batch.limit)
    return limits


def test_quick_calls_leave_the_limit_at_its_most() -> None:
    assert set(calls(Batch(250), 100, BUDGET / 300)) == {250}


@pytest.mark.parametrize("fits", [20, 60, 125, 240])
def test_the_limit_settles_about_what_fits_into_the_budget(fits: int) -> None:
    batch = Batch(250)
    calls(batch, 50, BUDGET / fits)
    settled = calls(batch, 100, BUDGET / fits)
    assert max(settled) <= fits + 9
    assert min(settled) >= max(LEAST, fits * 3 // 4)


def test_it_rises_again_when_calls_are_quick() -> None:
    batch = Batch(250)
    calls(batch, 50, BUDGET / 20)
    assert calls(batch, 40, BUDGET / 300)[-1] == 250


def test_it_falls_no_further_than_a_call_is_worth() -> None:
    assert calls(Batch(250), 50, BUDGET)[-1] == LEAST


def test_a_most_below_the_least_stays() -> None:
    batch = Batch(3)
    assert calls(batch, 10, BUDGET) == [3] * 10
    assert batch.worth_timing(3)


def test_one_long_call_costs_a_quarter() -> None:
    batch = Batch(200)
    batch.took(200, 2 * BUDGET)
    assert batch.limit == 150


def test_a_long_call_of_few_jobs_lowers_the_limit_to_fewer() -> None:
    batch = Batch(250)
    batch.took(40, 2 * BUDGET)
    assert batch.limit == 30


def test_a_quick_call_that_was_not_full_says_nothing_of_a_fuller_one() -> None:
    batch = Batch(250)
    batch.took(100, 2 * BUDGET)
    batch.took(20, BUDGET / 10)
    assert batch.limit == 75


def test_few_jobs_are_not_worth_timing() -> None:
    assert not Batch(250).worth_timing(LEAST - 1)
    assert Batch(250).worth_timing(LEAST)
