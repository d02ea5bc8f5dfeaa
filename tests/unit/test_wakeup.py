"""Wakeup: a sleep ends at an exact moment, roughly at another one, or when it is rung."""

from __future__ import annotations

import time

import pytest

from evsched.runtime.loops import Wakeup

pytestmark = pytest.mark.anyio

LATER = 60.0


async def test_a_sleep_ends_at_the_earlier_of_both_moments_and_not_before() -> None:
    for exact, roughly in ((0.01, LATER), (LATER, 0.01), (LATER, 0.0005), (0.003, 0.0025)):
        begin = time.monotonic()
        assert not await Wakeup().sleep(begin + exact, roughly=begin + roughly)
        assert min(exact, roughly) <= time.monotonic() - begin < LATER / 2


async def test_a_ring_ends_the_next_sleep_at_once() -> None:
    wakeup = Wakeup()
    wakeup.ring()
    begin = time.monotonic()
    assert await wakeup.sleep(begin + LATER, roughly=begin + LATER)
    assert time.monotonic() - begin < LATER / 2
