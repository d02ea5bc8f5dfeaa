"""The loops of a process: when one ends, all end and the reason is reported; a loop that is late is reported too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from evsched.errors import LoopEnded
from evsched.runtime.loops import SLACK, Pulse, run_loops

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
async def test_a_loop_that_ends_ends_the_others_and_raises_the_reason(
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


async def test_a_loop_within_loops_is_named_once_in_the_error() -> None:
    async def inner() -> None:
        await run_loops({"recurring": fails()})

    with pytest.raises(LoopEnded, match=r"^the recurring loop has ended: KeyError"):
        await run_loops({"dispatcher": inner()})


async def test_loops_that_are_cancelled_raise_no_error() -> None:
    began = asyncio.Event()

    async def lasts() -> None:
        began.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(run_loops({"one": lasts()}))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_loop_that_is_late_is_reported() -> None:
    pulse = Pulse("janitor")
    pulse.expect(5.0)
    assert pulse.problem() is None
    pulse.expect(-SLACK - 1)
    assert (pulse.problem() or "").startswith("the janitor loop has not run for")
    pulse.rest()
    assert pulse.problem() is None
