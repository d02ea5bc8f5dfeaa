"""Redis's clock is set ahead and back: the jump is reported, due jobs follow it, and recurrences continue."""

from __future__ import annotations

import time
from collections.abc import Generator
from pathlib import Path

import pytest

from evsched import App, Retry, current_job, events
from evsched.config import Config
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.clock import SetClock, server_with_clock
from tests.support.clock_scene import Cell, ClockScene
from tests.support.plain import plain_client
from tests.support.system import System, system

HOUR = 3600


@pytest.fixture
def clocked(tmp_path: Path) -> Generator[tuple[EmbeddedRedis, SetClock]]:
    with server_with_clock(tmp_path) as both:
        yield both


@pytest.fixture
def ran() -> list[float]:
    """The planned times of the occurrences, as they ran."""
    return []


def ticking(queue: str, ran: list[float]) -> App:
    app = App(queue=queue)

    @app.recurring(every=1, overlap="allow")
    @app.task(retry=Retry(attempts=1, interval=0, jitter=0))
    async def tick() -> None:
        ran.append(float(current_job().id.removeprefix("tick@")))

    return app


async def more(running: System, ran: list[float], count: int, after: float) -> list[float]:
    """Wait until `count` more occurrences planned after the moment `after` have run; return their planned times."""
    before = len(ran)
    await running.recorder.until(lambda: len([at for at in ran[before:] if at >= after]) >= count)
    return [at for at in ran[before:] if at >= after]


async def test_recurrences_follow_a_clock_set_an_hour_ahead_and_back(
    clocked: tuple[EmbeddedRedis, SetClock], queue: str, ran: list[float]
) -> None:
    server, clock = clocked
    async with system(Config(url=server.url, queues=(queue,)), ticking(queue, ran)) as running:
        await more(running, ran, 2, 0)
        clock.set(HOUR)
        jump = await running.recorder.wait(events.ClockJumped)
        assert abs(jump.seconds - HOUR) < 5
        await more(running, ran, 3, time.time() + HOUR / 2)
        clock.set(0)
        jump = await running.recorder.wait(events.ClockJumped, count=2)
        assert abs(jump.seconds + HOUR) < 5
        rewound = await running.recorder.wait(events.Rewound)
        assert rewound.names == ["tick"]
        began = time.time()
        again = await more(running, ran, 3, 0)
        assert all(abs(at - began) < 15 for at in again)
        assert len(set(again)) == len(again)
    assert len(running.recorder.of(events.ClockJumped)) == 2


async def test_dispatchers_started_after_a_clock_set_back_rewind_recurrences(
    clocked: tuple[EmbeddedRedis, SetClock], queue: str, ran: list[float]
) -> None:
    """All are started after the clock was set back, and find recurrences whose next time is an hour ahead."""
    server, clock = clocked
    config = Config(url=server.url, queues=(queue,))
    clock.set(HOUR)
    async with system(config, ticking(queue, ran)) as running:
        await more(running, ran, 2, time.time() + HOUR / 2)
    clock.set(0)
    async with system(config, ticking(queue, ran)) as running:
        await running.recorder.wait(events.Rewound)
        await more(running, ran, 2, 0)
        assert abs(ran[-1] - time.time()) < 15
        assert running.recorder.of(events.ClockJumped) == []


async def test_recurrences_not_advanced_by_a_clock_ahead_are_unchanged(
    clocked: tuple[EmbeddedRedis, SetClock], queue: str, ran: list[float]
) -> None:
    server, clock = clocked
    raw = plain_client(server.url)
    key = f"evsched:{{{queue}}}:recurrences"
    app = ticking(queue, ran)

    @app.recurring(every=1e9, name="rare")  # planned next in 2033, so the hour makes none due
    @app.task
    async def rare() -> None: ...

    @app.recurring(every=1, name="paused", overlap="allow")
    @app.task
    async def paused() -> None: ...

    async with system(Config(url=server.url, queues=(queue,)), app) as running:
        await more(running, ran, 1, 0)
        score = raw.zscore(key, "rare")
        clock.set(HOUR)
        await more(running, ran, 2, time.time() + HOUR / 2)
        await running.sender.send(Store(queue).hold("paused", True))
        clock.set(0)
        assert (await running.recorder.wait(events.Rewound)).names == ["tick"]
        assert (raw.zscore(key, "rare"), raw.zscore(key, "paused")) == (score, float("inf"))
    raw.close()


async def test_no_occurrence_runs_twice_after_the_clock_is_set_back_by_seconds(
    clocked: tuple[EmbeddedRedis, SetClock], queue: str, ran: list[float]
) -> None:
    server, clock = clocked
    async with system(Config(url=server.url, queues=(queue,)), ticking(queue, ran)) as running:
        await more(running, ran, 2, 0)
        clock.set(-4)
        assert abs((await running.recorder.wait(events.ClockJumped)).seconds + 4) < 3
        await more(running, ran, 2, ran[-1] + 1)
    assert len(set(ran)) == len(ran)
    assert running.recorder.of(events.Rewound) == []


async def test_a_job_that_the_jump_makes_due_starts_at_once(
    clocked: tuple[EmbeddedRedis, SetClock], queue: str, ran: list[float]
) -> None:
    """The dispatcher sleeps for an hour, and no event wakes it."""
    server, clock = clocked
    app = ticking(queue, ran)

    @app.task(name="later")
    async def later() -> None: ...

    async with system(Config(url=server.url, queues=(queue,)), app) as running:
        await more(running, ran, 1, 0)
        await later.using(delay=HOUR, id="later").enqueue()
        clock.set(HOUR + 10)
        await running.recorder.wait(events.Completed, lambda event: "later" in event.ids)


@pytest.mark.parametrize(
    "cell", [Cell("both", -3600, "killed"), Cell("redis", 86400, "running")], ids=lambda cell: str(cell)
)
def test_clocks_that_jump_lose_nothing_and_start_nothing_early_or_twice(cell: Cell, tmp_path: Path) -> None:
    """All cells: tests/chaos/test_clocks.py."""
    ClockScene(tmp_path, cell).run()
