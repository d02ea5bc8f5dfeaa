"""Which runs are begun with care, what becomes of a run that failed, and who may be alone."""

from __future__ import annotations

import asyncio

import pytest
from anyio.lowlevel import checkpoint

from evsched.jobs.job import Buried, FetchedJob, Retried
from evsched.jobs.retry import Retry
from evsched.worker.care import Care, Turnstile, care_for, patience
from evsched.worker.verdict import Failed, judge


def job(attempt: int = 1, deaths: int = 0, doubts: int = 0) -> FetchedJob:
    return FetchedJob("a", attempt, 1.0, b"", 1.0, deaths, doubts)


@pytest.mark.parametrize(
    ("run", "attempts", "can_part", "care"),
    [
        (job(), 5, True, Care()),
        (job(5), 5, True, Care()),
        (job(), 1, True, Care(marked=True)),
        (job(1, 1, 1), 5, True, Care()),
        (job(1, 1, 1), 2, True, Care(apart=True)),
        (job(1, 1, 1), 1, True, Care(marked=True, apart=True)),
        (job(1, 2, 2), 5, True, Care(apart=True)),
        (job(1, 2, 2), 5, False, Care(marked=True, alone=True)),
        (job(1, 4, 3), 9, True, Care(marked=True, apart=True, alone=True)),
    ],
)
def test_care_grows_with_the_deaths(run: FetchedJob, attempts: int, can_part: bool, care: Care) -> None:
    assert care_for(run, attempts, can_part=can_part) == care


def test_who_killed_its_process_is_charged_for_the_doubtful_runs() -> None:
    policy = Retry(attempts=3, interval=0, jitter=0)
    assert judge(job(1, 2, 2), policy, Failed("no luck"), reply=False) == Retried(0, "attempt 1 of 3: no luck")
    assert judge(job(1, 2, 1), policy, Failed("it died", killed=True), reply=False) == Retried(
        0, "attempt 2 of 3: it died", killed=True
    )
    assert judge(job(1, 2, 2), policy, Failed("it died", killed=True), reply=True) == Buried(
        "attempt 3 of 3: it died", True, killed=True
    )


def test_patience_doubles_and_is_bounded() -> None:
    assert [patience(job(deaths=deaths)) for deaths in (2, 4, 5, 6, 100)] == [0.25, 0.25, 0.5, 1.0, 60.0]


async def test_one_is_alone_when_the_others_have_left_and_they_wait_meanwhile() -> None:
    opened, order = list[str](), list[str]()
    turnstile = Turnstile(lambda: opened.append("opened"))
    await turnstile.enter()

    async def alone() -> None:
        async with turnstile.alone(10) as open_again:
            order.append(f"alone {open_again is not None}")
            await checkpoint()

    async def among_others() -> None:
        await turnstile.enter()
        order.append("other")
        turnstile.leave()

    first = asyncio.create_task(alone())
    await checkpoint()
    assert turnstile.closed
    second = asyncio.create_task(among_others())
    await checkpoint()
    assert order == []
    turnstile.leave()
    await asyncio.gather(first, second)
    assert (order, opened, turnstile.closed, turnstile.past) == (["alone True", "other"], ["opened"], False, 0)


async def test_who_waits_too_long_to_be_alone_runs_among_the_others() -> None:
    turnstile = Turnstile(lambda: None)
    await turnstile.enter()
    async with turnstile.alone(0.01) as open_again:
        assert open_again is None
        assert not turnstile.closed
        assert turnstile.past == 2
    assert turnstile.past == 1


async def test_one_that_lasts_lets_the_others_begin() -> None:
    turnstile = Turnstile(lambda: None)
    async with turnstile.alone(10) as open_again:
        assert open_again is not None
        open_again()
        assert not turnstile.closed
        await turnstile.enter()
    assert turnstile.past == 1
