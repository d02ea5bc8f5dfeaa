"""Single flight: callers share one attempt, unless it began before the state they ask about."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from anyio.lowlevel import checkpoint

from evsched.errors import StoreDown
from evsched.transport.links import SingleFlight, finish
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.anyio


class Attempts:
    """Attempts that last until `go` is set; their values are 1, 2, 3, ..."""

    def __init__(self) -> None:
        self.begun = 0
        self.begins = threading.Event()
        self.go = threading.Event()

    async def __call__(self) -> int:
        self.begun += 1
        self.begins.set()
        number = self.begun
        assert await asyncio.to_thread(self.go.wait, PATIENCE)
        return number


async def test_callers_at_the_same_time_share_an_attempt_and_later_ones_do_not() -> None:
    flight, attempt = SingleFlight[int](), Attempts()
    callers = [asyncio.create_task(flight.run(attempt)) for _ in range(200)]
    assert await asyncio.to_thread(attempt.begins.wait, PATIENCE)
    attempt.go.set()
    assert {*await asyncio.gather(*callers)} == {1}
    assert await flight.run(attempt) == 2


async def test_caller_after_an_outdate_waits_for_an_attempt_of_its_own() -> None:
    flight, attempt = SingleFlight[int](), Attempts()
    first = asyncio.create_task(flight.run(attempt))
    assert await asyncio.to_thread(attempt.begins.wait, PATIENCE)
    flight.outdate()
    second = asyncio.create_task(flight.run(attempt))
    attempt.go.set()
    assert await asyncio.gather(first, second) == [1, 2]


async def test_a_cancelled_caller_leaves_the_attempt_to_the_others() -> None:
    flight, attempt = SingleFlight[int](), Attempts()
    first, second = (asyncio.create_task(flight.run(attempt)) for _ in range(2))
    assert await asyncio.to_thread(attempt.begins.wait, PATIENCE)
    first.cancel()
    attempt.go.set()
    assert await second == 1
    assert first.cancelled()


async def test_an_error_is_shared_and_the_next_caller_tries_again() -> None:
    flight, attempt = SingleFlight[int](), Attempts()

    async def fail() -> int:
        raise StoreDown(f"away {await attempt()}", kind="connection")

    for count in (1, 2):
        attempt.go.clear()
        callers = [asyncio.create_task(flight.run(fail)) for _ in range(5)]
        await checkpoint()  # each of them waits now
        attempt.go.set()
        errors = await asyncio.gather(*callers, return_exceptions=True)
        assert [str(error) for error in errors] == [f"away {count}"] * 5


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
    flight, attempt = SingleFlight[int](), Attempts()

    def run() -> int:
        return finish(flight.run(attempt, blocking=True))

    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(run)
        assert attempt.begins.wait(PATIENCE)
        shared = threads.submit(run)
        while not shared.running():
            pass
        flight.outdate()
        later = threads.submit(run)
        attempt.go.set()
        assert first.result(PATIENCE) == 1
        assert later.result(PATIENCE) == 2
        assert shared.result(PATIENCE) in (1, 2)  # 2 if it had not begun to wait


async def test_a_blocked_event_loop_holds_up_no_attempt_of_others() -> None:
    flight, attempt = SingleFlight[int](), Attempts()
    attempt.go.set()
    caller = asyncio.create_task(flight.run(attempt))
    while not attempt.begins.is_set():
        await checkpoint()
    with ThreadPoolExecutor(1) as thread:  # `result` blocks this event loop, in which the first caller waits
        assert thread.submit(lambda: finish(flight.run(attempt, blocking=True))).result(PATIENCE) in (1, 2)
    assert await caller == 1
