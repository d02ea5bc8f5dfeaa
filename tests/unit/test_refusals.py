"""Which refusals are reported, and which of their ends."""

from __future__ import annotations

from evsched.runtime.reconnect import LASTING, Refusals


def test_the_first_refusal_and_the_first_success_are_reported() -> None:
    refusals = Refusals()
    assert refusals.accepted(0.0) is None
    assert [refusals.refused(1.0), refusals.refused(2.0)] == [True, False]
    assert refusals.accepted(4.0) == 3.0
    assert refusals.accepted(5.0) is None


def test_after_an_end_that_was_reported_too_early_the_next_one_must_last() -> None:
    refusals = Refusals()
    refusals.refused(1.0)
    refusals.accepted(2.0)
    assert refusals.refused(3.0)
    assert refusals.accepted(4.0) is None
    refusals.refused(5.0)
    assert refusals.accepted(5.0 + LASTING - 0.1) is None
    assert refusals.accepted(5.0 + LASTING) == 2.0 + LASTING
