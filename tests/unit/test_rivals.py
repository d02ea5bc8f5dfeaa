"""Rivals: when a dispatcher becomes a reserve, and when it is in front again."""

from __future__ import annotations

from evsched.dispatcher.rivals import Rivals


def test_the_dispatcher_in_front_does_not_wait() -> None:
    assert Rivals().delay() == 0.0


def test_a_step_that_finds_nothing_soon_after_anothers_removal_makes_a_reserve() -> None:
    rivals = Rivals()
    rivals.removed(1.0)
    rivals.found_nothing(1.005)
    assert rivals.reserve
    assert 0.001 <= rivals.delay() <= 0.004


def test_the_removal_may_be_reported_after_the_step() -> None:
    rivals = Rivals()
    rivals.found_nothing(1.0)
    assert not rivals.reserve
    rivals.removed(1.005)
    assert rivals.reserve


def test_a_removal_long_before_the_step_makes_no_reserve() -> None:
    rivals = Rivals()
    rivals.removed(1.0)
    rivals.found_nothing(2.0)
    assert not rivals.reserve


def test_a_dispatcher_that_moves_jobs_is_in_front_and_its_own_removals_do_not_count() -> None:
    rivals = Rivals()
    rivals.reserve = True
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
