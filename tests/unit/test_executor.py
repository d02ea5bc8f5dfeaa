"""The executor alone: whatever a job or its handler does becomes an outcome that Redis can take."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from evsched.backoff import Retry
from evsched.current import RetryLater
from evsched.executor import RESULT_MOST, Executor, Program
from evsched.job import Buried, Done, Outcome, Retried, Taken
from evsched.run import Run
from evsched.tasks import Tasks, define


async def run(handler: Any, payload: bytes = b'{"task":"t"}', attempt: int = 1) -> Outcome:
    tasks = Tasks()
    tasks.add(define(handler, name="t", retry=Retry(attempts=9, jitter=0)))
    return await Executor(Program(tasks), 1).run(Run("q", Taken("a", attempt, 1.0, payload), 1.0, time.monotonic()))


@pytest.mark.parametrize(("asked", "delay"), [(2.5, 2.5), (0, 0.0), (-1.0, 0.0), (math.nan, 0.0)])
async def test_a_delay_that_a_handler_asks_for_is_one_that_redis_takes(asked: float, delay: float) -> None:
    async def later() -> None:
        raise RetryLater(asked)

    assert await run(later) == Retried(delay, "attempt 1 of 9: the handler asked for another attempt")


@pytest.mark.parametrize(
    ("retry", "delay"),
    [
        (b'{"factor":1e200,"max_interval":60}', 60.0),
        (b'{"factor":1e200,"interval":0}', 0.0),
        (b'{"interval":1e300,"factor":1e300,"max_interval":7}', 7.0),
    ],
)
async def test_a_policy_of_a_payload_that_grows_beyond_all_numbers_ends_at_its_bound(
    retry: bytes, delay: float
) -> None:
    async def fail() -> None:
        raise ValueError("no luck")

    outcome = await run(fail, b'{"task":"t","retry":' + retry + b"}", attempt=4)
    assert isinstance(outcome, Retried)
    assert outcome.delay == delay


async def test_a_result_that_is_too_long_to_be_kept_is_told_and_not_tried_again() -> None:
    async def long(more: int) -> str:
        return "x" * (RESULT_MOST - 2 + more)

    outcome = await run(long, b'{"task":"t","args":[0]}')
    assert isinstance(outcome, Done)
    outcome = await run(long, b'{"task":"t","args":[1]}')
    assert isinstance(outcome, Buried)
    assert outcome.reason == f"the result has {RESULT_MOST + 1} bytes, more than {RESULT_MOST}: return a reference"
