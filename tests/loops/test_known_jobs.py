"""Handles for jobs whose ids are known, in programs with an event loop and without one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evsched import App, ConfigError, JobMissing
from evsched.config import Config
from tests.support.patience import PATIENCE
from tests.support.system import system


async def test_handle_for_a_known_id_works_like_a_returned_one(config: Config, app: App) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    async with system(config, app):
        await add.using(id="known", delay=3600).enqueue(1, 2)
        job = app.job("known")
        assert (await job.status()).place == "schedule"
        await job.reschedule()
        assert await job.result(PATIENCE) == 3
        await add.using(id="unwanted", delay=3600).enqueue(1, 2)
        assert await app.job("unwanted").cancel() == "schedule"
        for missing in (app.job("unwanted"), app.job("known", queue=f"{app.queue}-other")):
            with pytest.raises(JobMissing):
                await missing.status()


async def test_reschedule_takes_a_due_or_a_delay(config: Config, app: App) -> None:
    @app.task
    async def noop() -> None: ...

    async with system(config, app):
        job = await noop.using(delay=60).enqueue()
        due = (await job.status()).due
        assert due is not None
        later = await job.reschedule(delay=timedelta(hours=2))
        assert 7100 < later - due < 7200
        assert (await job.status()).due == later
        assert await job.reschedule(delay=3600.5) < later
        moment = datetime(2100, 1, 1, tzinfo=UTC)
        assert await job.reschedule(moment) == moment.timestamp()
        with pytest.raises(ConfigError, match="due and delay: give one of them"):
            await job.reschedule(moment, delay=1)
        with pytest.raises(ConfigError, match="delay is nan"):
            await job.reschedule(delay=float("nan"))
        assert (await job.status()).due == moment.timestamp()


async def test_result_accepts_a_timeout_in_any_form(config: Config, app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with system(config, app):
        job, later = [await task.enqueue(2) for task in (double, double.using(delay=3600))]
        for timeout in (None, timedelta(seconds=PATIENCE), PATIENCE, float("inf")):
            assert await job.result(timeout) == 4
        with pytest.raises(TimeoutError, match=r"did not end within 0\.001 s"):
            await later.result(timedelta(milliseconds=1))
        refused: list[Any] = ["1", True, float("nan"), [1]]
        for timeout in refused:
            with pytest.raises(ConfigError, match=r"timeout is .*: give a timedelta, or seconds"):
                await job.result(timeout)


async def test_the_calls_of_enqueue_many_may_come_from_any_iterable(config: Config, app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    def without_a_loop() -> list[int]:
        with app.sync() as client:
            return [job.result(PATIENCE) for job in client.enqueue_many(double, ((n,) for n in range(3)))]

    async with system(config, app):
        jobs = await double.enqueue_many((n,) for n in range(3))
        assert [await job.result(PATIENCE) for job in jobs] == [0, 2, 4]
        assert await asyncio.to_thread(without_a_loop) == [0, 2, 4]


async def test_a_program_without_an_event_loop_has_the_same_handles(config: Config, app: App) -> None:
    @app.task
    async def noop() -> str:
        return "done"

    def without_a_loop() -> None:
        with app.sync() as client:
            due = client.enqueue(noop.using(id="sync", delay=60)).status().due
            job = client.job("sync")
            assert due is not None
            assert 7100 < job.reschedule(delay=timedelta(hours=2)) - due < 7200
            job.reschedule()
            assert job.result(PATIENCE) == "done"
            with pytest.raises(JobMissing):
                client.job("other").cancel()

    async with system(config, app):
        await asyncio.to_thread(without_a_loop)
