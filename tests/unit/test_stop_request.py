"""The request to end, made in one thread and awaited in an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from evsched.runtime.shutdown import StopRequest

pytestmark = pytest.mark.anyio


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_request_made_before_the_loop_runs_is_not_lost() -> None:
    request = StopRequest()
    request.make()
    request.attach()
    await request.wait()


async def test_a_request_made_in_a_thread_cancels_the_work() -> None:
    request, cancelled = StopRequest(), asyncio.Event()
    request.attach()

    async def work() -> None:
        threading.Thread(target=request.make).start()
        try:
            await forever()
        finally:
            cancelled.set()

    assert await request.run_until_made(work()) is False
    assert cancelled.is_set()


async def test_work_that_finishes_first_is_reported_and_its_errors_are_raised() -> None:
    async def finish() -> None: ...

    async def fail() -> None:
        raise KeyError("a bug")

    request = StopRequest()
    request.attach()
    assert await request.run_until_made(finish()) is True
    with pytest.raises(KeyError):
        await request.run_until_made(fail())


async def test_a_wait_with_a_limit_returns_whether_the_request_was_made() -> None:
    request = StopRequest()
    request.attach()
    assert await request.comes_within(0.01) is False
    request.make()
    assert await request.comes_within(60) is True


def test_a_request_after_the_loop_was_closed_raises_nothing() -> None:
    request = StopRequest()

    async def attach() -> None:
        request.attach()

    asyncio.run(attach())
    request.make()
    assert request.made
