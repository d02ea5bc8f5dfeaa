"""Runs that an operator requests, with a dispatcher and a worker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from evsched import App, Declared, JobMissing, Retry, current_job, events
from evsched.config import Config
from evsched.store.recurrence_calls import Backfilled
from tests.support.patience import PATIENCE
from tests.support.system import System, system

BERLIN = ZoneInfo("Europe/Berlin")
MONTHS = [  # 31 days each, and the clocks change in both
    (datetime(2025, 3, 1, tzinfo=BERLIN), datetime(2025, 4, 1, tzinfo=BERLIN)),
    (datetime(2024, 10, 1, tzinfo=BERLIN), datetime(2024, 11, 1, tzinfo=BERLIN)),
]


async def ended(running: System, count: int) -> None:
    """Wait until `count` jobs have completed."""
    await running.recorder.until(lambda: sum(len(one.ids) for one in running.recorder.of(events.Completed)) >= count)


@pytest.mark.parametrize(("since", "until"), MONTHS)
async def test_backfill_of_31_days_runs_once_a_day_and_repeats_nothing(
    config: Config, queue: str, raw: Any, since: datetime, until: datetime
) -> None:
    app, ran, running_now = App(queue=queue), list[float](), list[str]()
    minute = (datetime.now(UTC) + timedelta(minutes=30)).minute  # none is due by itself while the test runs

    @app.recurring(f"{minute} 2 * * *", zone="Europe/Berlin")
    @app.task(retention=0, retry=Retry(attempts=1))
    async def nightly() -> None:
        running_now.append(current_job().id)
        ran.append(float(current_job().id.partition("@")[2]))
        assert len(running_now) == 1  # overlap is not allowed
        running_now.pop()

    async with system(config, app) as running:
        assert (await app.client.backfill(queue, "nightly", since, until)).requested == 31
        await ended(running, 31)
        days = [datetime.fromtimestamp(planned, BERLIN).day for planned in ran]
        assert days == list(range(1, 32))
        for _ in range(2):
            assert await app.client.backfill(queue, "nightly", since, until) == Backfilled(known=31)
        # A run that is requested now would run after all those that were requested before.
        await app.client.trigger(queue, "nightly")
        await ended(running, 32)
    assert len(ran) == 32
    assert raw.hget(f"evsched:{{{queue}}}:recurrence:nightly", "runs") == b"32"


async def test_a_recurrence_that_is_removed_while_its_backfill_runs_stops_it(
    config: Config, queue: str, raw: Any
) -> None:
    app, ran = App(queue=queue), list[str]()

    @app.task(retention=0)
    async def tick() -> None:
        ran.append(current_job().id)
        await app.client.remove(queue, "t")

    async with system(config, app) as running:
        await app.client.declare(queue, Declared(name="t", rule="@daily", payload=b'{"task":"tick"}'))
        assert (await app.client.backfill(queue, "t", 1_600_000_000, 1_610_000_000)).requested > 100
        await ended(running, 1)
        with pytest.raises(JobMissing):
            await app.client.backfill(queue, "t", 1_600_000_000, 1_610_000_000)
    assert len(ran) == 1
    left = {key.decode().partition("}:")[2] for key in raw.scan_iter(match=f"evsched:{{{queue}}}:*", count=1000)}
    digest = app.program.digest
    assert {name for name in left if not name.startswith("hour:")} <= {
        "history",
        "leases",
        "tasks",
        "programs",
        "apps",
        f"program:{digest}",
        f"workers:{digest}",
        "revisions:" + queue,
    }


async def test_the_client_triggers_a_run_and_returns_its_id(config: Config, queue: str) -> None:
    app, ran = App(queue=queue), list[str]()

    @app.task(retention=60)
    async def tick() -> str:
        ran.append(current_job().id)
        return "tock"

    async with system(config, app) as running:
        await app.client.declare(queue, Declared(name="t", rule="@yearly", payload=b'{"task":"tick"}'))
        job_id = await app.client.trigger(queue, "t")
        await ended(running, 1)
        assert await app.job(job_id).result(PATIENCE) == "tock"
        with pytest.raises(JobMissing, match="nobody is not a recurrence"):
            await app.client.trigger(queue, "nobody")
    assert ran == [job_id]


async def test_each_of_many_simultaneous_triggers_makes_a_run(config: Config, queue: str) -> None:
    app, ran = App(queue=queue), list[str]()

    @app.task
    async def tick() -> None:
        ran.append(current_job().id)

    async with system(config, app) as running:
        declared = Declared(name="t", rule="@yearly", payload=b'{"task":"tick"}', overlap="allow")
        await app.client.declare(queue, declared)
        ids = await asyncio.gather(*[app.client.trigger(queue, "t") for _ in range(60)])
        await ended(running, 60)
    assert len(set(ids)) == 60
    assert sorted(ran) == sorted(ids)
