"""Loops of a process: the end of one is the end of all, and is told; what did not come round is told too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from evsched.errors import LoopEnded
from evsched.runtime.loops import run_loops
from evsched.runtime.pulse import SLACK, Pulse

pytestmark = pytest.mark.anyio


async def returns() -> None:
    return


async def fails() -> None:
    raise KeyError("x")


async def is_cancelled_from_within() -> None:
    answer = asyncio.get_running_loop().create_future()
    answer.cancel()
    await answer


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        (returns, "it returned"),
        (fails, r"KeyError: 'x' \(.*test_loops.py:\d+\)"),
        (is_cancelled_from_within, "it was cancelled"),
    ],
)
async def test_a_loop_that_ends_is_the_end_of_all_and_is_told(
    loop: Callable[[], Coroutine[Any, Any, None]], why: str
) -> None:
    other = asyncio.Event()

    async def lasts() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            other.set()

    with pytest.raises(LoopEnded, match=f"^the janitor loop has ended: {why}; this is a bug"):
        await run_loops({"other": lasts(), "janitor": loop()})
    assert other.is_set()


async def test_loops_within_loops_are_told_once() -> None:
    async def inner() -> None:
        await run_loops({"recurring": fails()})

    with pytest.raises(LoopEnded, match=r"^the recurring loop has ended: KeyError"):
        await run_loops({"dispatcher": inner()})


async def test_loops_end_in_peace_when_they_are_cancelled() -> None:
    began = asyncio.Event()

    async def lasts() -> None:
        began.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(run_loops({"one": lasts()}))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_loop_that_did_not_come_round_in_its_time_is_told() -> None:
    pulse = Pulse("janitor")
    pulse.expect(5.0)
    assert pulse.wrong() is None
    pulse.expect(-SLACK - 1)
    assert (pulse.wrong() or "").startswith("the janitor loop has not run for")
    pulse.rest()
    assert pulse.wrong() is None
