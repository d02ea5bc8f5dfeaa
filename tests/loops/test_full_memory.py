"""While Redis's memory is full, processes start and run the jobs in Redis, because only that frees memory."""

from __future__ import annotations

from typing import Any

from evsched import App, events
from evsched.config import Config
from evsched.keys import schedule
from evsched.transport.embedded import EmbeddedRedis
from tests.support.system import System, system

COUNT = 40


async def completed(running: System) -> None:
    recorder = running.recorder
    await recorder.until(lambda: sum(len(event.ids) for event in recorder.of(events.Completed)) == COUNT)


async def test_a_worker_and_a_dispatcher_that_start_run_the_jobs_in_redis(
    own: EmbeddedRedis, client: Any, app: App
) -> None:
    @app.recurring(every=1e9)  # planned next in 2033
    async def job() -> None: ...

    client.zadd(schedule(app.queue), {f'{{"task":"job","id":"j{n}"}}': 0 for n in range(COUNT)})
    client.config_set("maxmemory", 1)
    async with system(Config(url=own.url, concurrency=5), app) as running:
        assert running.dispatcher.queues
        await completed(running)
        assert [event.done for event in running.recorder.of(events.RecurrenceDeclared)] == ["made"]


async def test_a_worker_runs_jobs_although_the_set_of_queues_cannot_be_written(
    own: EmbeddedRedis, client: Any, app: App
) -> None:
    @app.task
    async def job() -> None: ...

    client.set("evsched:{}:queues", "a string")
    async with system(Config(url=own.url), app) as running:
        await job.enqueue_many([()] * COUNT)
        await completed(running)
