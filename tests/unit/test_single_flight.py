"""Single flight: callers share one attempt, unless it began before the state they ask about."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from evsched.errors import StoreDown
from evsched.transport.links import SingleFlight
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.anyio


class Attempts:
    """Attempts that last until `go` is set; their values are 1, 2, 3, ..."""

    def __init__(self) -> None:
        self.begun = 0
        self.begins = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        self.begins.set()
        number = self.begun
        await self.go.wait()
        return number


async def test_callers_at_the_same_time_share_an_attempt_and_later_ones_do_not() -> None:
    flight, attempt = SingleFlight[int](), Attempts()
    callers = [asyncio.create_task(flight.run(attempt)) for _ in range(200)]
    await attempt.begins.wait()
    attempt.go.set()
    assert {*await asyncio.gather(*callers)} == {1}
    assert await flight.run(attempt) == 2


async def test_caller_after_an_outdate_waits_for_an_attempt_of_its_own() -> None:
    flight, attempt = SingleFlight[int](), Attempts()
    first = asyncio.create_task(flight.run(attempt))
    await attempt.begins.wait()
    flight.outdate()
    second = asyncio.create_task(flight.run(attempt))
    attempt.go.set()
    assert await asyncio.gather(first, second) == [1, 2]


async def test_a_cancelled_caller_leaves_the_attempt_to_the_others() -> None:
    flight, attempt = SingleFlight[int](), Attempts()
    first, second = (asyncio.create_task(flight.run(attempt)) for _ in range(2))
    await attempt.begins.wait()
    first.cancel()
    attempt.go.set()
    assert await second == 1
    assert first.cancelled()


async def test_an_error_is_shared_and_the_next_caller_tries_again() -> None:
    flight, tried = SingleFlight[int](), list[int]()

    async def fail() -> int:
        tried.append(1)
        raise StoreDown("away", kind="connection")

    for count in (1, 2):
        errors = await asyncio.gather(*(flight.run(fail) for _ in range(5)), return_exceptions=True)
        assert [str(error) for error in errors] == ["away"] * 5
        assert len(tried) == count


async def test_attempts_slow_down_until_one_brings_news() -> None:
    flight, begun = SingleFlight[float]((0.01, 2 * PATIENCE)), list[float]()  # it forgets its pace after the longest

    async def attempt() -> float:
        begun.append(time.monotonic())
        return begun[-1]

    paces, start = (0.01, 0.02, 0.04, 0.08, 0.16), time.monotonic()
    for _ in range(6):
        await flight.run(attempt)
    assert all(at - start >= sum(paces[:number]) / 2 for number, at in enumerate(begun))


def test_threads_share_an_attempt_too() -> None:
    flight, begins, go, numbers = SingleFlight[int](), threading.Event(), threading.Event(), list[int]()

    def attempt() -> int:
        numbers.append(len(numbers))
        begins.set()
        assert go.wait(PATIENCE)
        return numbers[-1]

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(flight.run_sync, attempt)
        assert begins.wait(PATIENCE)
        shared = threads.submit(flight.run_sync, attempt)
        while not shared.running():
            pass
        flight.outdate()
        later = threads.submit(flight.run_sync, attempt)
        go.set()
        assert first.result(PATIENCE) == 0
        assert later.result(PATIENCE) == 1
        assert shared.result(PATIENCE) in (0, 1)  # 1 if it had not begun to wait
