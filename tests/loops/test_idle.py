"""A burst ends only when its worker is idle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from evsched import App, Retry, events
from evsched.config import Config
from tests.support.system import system


async def test_a_worker_that_has_not_begun_to_declare_is_not_idle(config: Config, queue: str, raw: Any) -> None:
    begin = asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        await begin.wait()
        yield

    app = App(queue=queue, lifespan=lifespan)

    @app.recurring("@daily")
    @app.task(retry=Retry(attempts=1))
    async def work() -> None: ...

    async with system(config, app, workers=0, dispatch=False) as running:
        worker = running.work()
        assert not await worker.idle()
        assert not raw.exists(f"evsched:{{{queue}}}:recurrences")
        begin.set()
        await running.recorder.wait(events.WorkerStarted)
        assert await worker.idle()
        assert raw.zcard(f"evsched:{{{queue}}}:recurrences") == 1


async def test_worker_whose_fetched_job_is_still_on_its_way_is_not_idle(config: Config, queue: str, raw: Any) -> None:
    app = App(queue=queue)

    @app.task
    async def work() -> None: ...

    async with system(config, app, dispatch=False) as running:
        (worker,) = running.workers
        assert await worker.idle()
        raw.hset(f"evsched:{{{queue}}}:job:one", "payload", '{"task":"work"}')
        raw.rpush(f"evsched:{{{queue}}}:processing:{worker.id}", "one")  # as BLMOVE does before its reply arrives
        assert not await worker.idle()
