"""Rivals: when a dispatcher becomes a reserve, when it looks then, and when it leads again."""

from __future__ import annotations

import pytest

from evsched.dispatcher.rivals import Rivals


@pytest.fixture
def reserve() -> Rivals:
    """A reserve that trusts the leader and last looked at 1."""
    rivals = Rivals()
    rivals.reserve = True
    rivals.looking(1.0)
    for _ in range(10):
        rivals.trust()
    return rivals


def test_the_leader_does_not_wait() -> None:
    assert Rivals().delay() == 0.0


def test_a_step_that_finds_nothing_soon_after_anothers_removal_makes_a_reserve() -> None:
    rivals = Rivals()
    rivals.stepping(0.999)
    rivals.removed(1.0)
    rivals.found_nothing(1.005)
    assert rivals.reserve
    assert 0.001 <= rivals.delay() <= 0.004


def test_the_removal_may_be_reported_after_the_step() -> None:
    rivals = Rivals()
    rivals.stepping(0.999)
    rivals.found_nothing(1.0)
    assert not rivals.reserve
    rivals.removed(1.005)
    assert rivals.reserve


def test_a_removal_while_a_slow_step_is_under_way_makes_a_reserve() -> None:
    rivals = Rivals()
    rivals.stepping(1.0)
    rivals.removed(1.1)
    assert not rivals.reserve
    rivals.found_nothing(1.5)
    assert rivals.reserve


def test_a_removal_long_before_the_step_makes_no_reserve() -> None:
    rivals = Rivals()
    rivals.removed(1.0)
    rivals.stepping(1.999)
    rivals.found_nothing(2.0)
    assert not rivals.reserve


def test_a_dispatcher_that_moves_jobs_leads_and_its_own_removals_do_not_count() -> None:
    rivals = Rivals()
    rivals.reserve = True
    rivals.stepping(0.999)
    rivals.found(1.0)
    rivals.removed(1.005)
    rivals.found_nothing(1.006)
    assert not rivals.reserve


def test_a_step_that_finds_gone_what_a_look_has_just_found_makes_a_reserve() -> None:
    rivals = Rivals()
    rivals.saw(1_000_000.0)
    rivals.found_nothing(1.0, nearest=1_000_500.0)
    assert rivals.reserve
    assert 0.1 <= rivals.patience() <= 0.3


def test_a_step_that_came_too_early_for_what_a_look_found_makes_no_reserve() -> None:
    rivals = Rivals()
    rivals.saw(1_000_000.0)
    rivals.found_nothing(1.0, nearest=1_000_000.0)
    rivals.found_nothing(2.0, nearest=1_000_500.0)
    assert not rivals.reserve


def test_a_reserve_lets_the_leader_act_first(reserve: Rivals) -> None:
    assert 2.005 <= reserve.look_at(2.0) <= 2.008


def test_a_reserve_that_has_just_looked_does_not_look_again_for_each_event(reserve: Rivals) -> None:
    first = reserve.look_at(1.002)
    assert 1.02 <= first <= 1.05
    assert reserve.look_at(1.009) == first


def test_a_reserve_that_hears_the_leader_act_looks_later(reserve: Rivals) -> None:
    reserve.look_at(2.0)
    reserve.removed(2.001)
    assert 2.021 <= reserve.postponed() <= 2.051
    reserve.removed(2.018)
    assert 2.038 <= reserve.look_at(2.02) <= 2.068


def test_removals_without_end_do_not_keep_a_reserve_from_looking(reserve: Rivals) -> None:
    reserve.look_at(2.0)
    for n in range(100):
        reserve.removed(2.0 + 0.01 * n)
    assert 2.08 <= reserve.look_at(3.0) <= 2.2


def test_a_removal_before_a_job_is_due_does_not_count_as_its_dispatch(reserve: Rivals) -> None:
    reserve.removed(1.9)
    assert 2.005 <= reserve.look_at(2.0) <= 2.008


def test_after_a_look_a_reserve_waits_for_the_next_event(reserve: Rivals) -> None:
    reserve.look_at(2.0)
    reserve.looking(2.002)
    assert reserve.postponed() == float("-inf")
    assert 3.005 <= reserve.look_at(3.0) <= 3.008


def test_a_reserve_leaves_a_job_that_has_just_become_due_to_the_leader(reserve: Rivals) -> None:
    assert not reserve.overdue(5.0, due=4.996)
    assert reserve.overdue(5.0, due=4.994)
    reserve.reserve = False
    assert reserve.overdue(5.0, due=4.9995)


def test_a_new_reserve_looks_less_and_less_often() -> None:
    rivals, now, gaps = Rivals(), 1.0, list[float]()
    rivals.reserve = True
    for _ in range(8):
        rivals.looking(now)
        rivals.trust()
        then, now = now, rivals.look_at(now)
        gaps.append(now - then)
    assert gaps[0] <= 0.008
    assert 0.02 <= gaps[-1] <= 0.05


def test_two_leaders_that_move_jobs_in_turn_notice_each_other() -> None:
    rivals = Rivals()
    rivals.stepping(1.0)
    rivals.found(1.001)
    rivals.removed(1.0015)
    rivals.stepping(1.002)
    rivals.removed(1.003)  # by the other, although this one has just moved jobs too
    rivals.found_nothing(1.004)
    assert rivals.reserve


def test_a_removal_reported_before_the_reply_of_its_step_is_the_dispatchers_own() -> None:
    rivals = Rivals()
    rivals.stepping(1.0)
    rivals.found_nothing(1.0005)
    rivals.stepping(1.001)
    rivals.removed(1.0015)
    assert not rivals.reserve
    rivals.found(1.002)
    rivals.stepping(1.003)
    rivals.found_nothing(1.004)
    assert not rivals.reserve


def test_a_new_reserve_looks_and_steps_as_soon_as_the_least_head_start_is_over() -> None:
    rivals = Rivals()
    rivals.reserve = True
    assert 2.001 <= rivals.look_at(2.0) <= 2.004
    assert rivals.overdue(2.001, due=1.9999)
