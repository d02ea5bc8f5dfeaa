"""The doctor finds nothing wrong while a system works."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evsched import App, GiveUp, Retry, RetryLater, current_job, events
from evsched.config import Config
from evsched.diagnostics.audit import Audit
from evsched.diagnostics.standstill import find_standstill
from evsched.store.operator_calls import condition
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.examine import problems
from tests.support.patience import PATIENCE
from tests.support.system import system

LOOKS = 25
"""How often the audit runs."""


@pytest.mark.extra
async def test_nothing_is_found_while_a_system_works(server: EmbeddedRedis, queue: str, raw: Any) -> None:
    """The audit runs again and again while jobs of all kinds are scheduled, run, retried, paused and revived."""
    app = App(queue=queue)
    looks, seen = 0, 0
    root = f"evsched:{{{queue}}}:"

    @app.task(retry=Retry(attempts=3, interval=0.02, jitter=0.02), retention=1.0)
    async def work(n: int) -> int:
        job = current_job()
        if n % 11 == 0:
            raise GiveUp("no")
        if n % 7 == 0:
            raise ValueError("once more")
        if n % 5 == 0 and job.attempt == 1:
            raise RetryLater(0.01, "later")
        return n

    @app.task(retention=0.0)
    async def forgotten() -> None: ...

    @app.recurring(every=1, overlap="wait")
    @app.task(retry=Retry(attempts=1, jitter=0.0, interval=0.1))
    async def tick() -> None: ...

    async def produce(whole: Any) -> None:
        store, send = Store(queue), whole.sender.send
        await send(store.limit({"concurrency": 40, "rate": 4000, "concurrency:a": 3, "rate:b": 300, "weight:c": 2}))
        n = 0
        while looks < LOOKS or not whole.recorder.of(events.Recurred):
            n += 1
            for group in ("a", "b", "c"):
                await work.using(group=group, delay=0.01 * (n % 3)).enqueue_many([(i,) for i in range(40)])
            await forgotten.using(priority=9).enqueue_many([()] * 20)
            pipe = raw.pipeline(transaction=False)
            for i in range(20):  # ids that are used again, whatever place their jobs are in
                pipe.hset(f"{root}job:again-{i}", "payload", f'{{"task":"work","args":[{i}]}}')
                pipe.persist(f"{root}job:again-{i}")
                pipe.zadd(f"{root}schedule", {f"again-{i}": 0})
                pipe.zadd(f"{root}schedule", {f'{{"task":"forgotten","id":"inline-{i}"}}': 0})
            await asyncio.to_thread(pipe.execute)
            if n % 4 == 0:
                await send(store.pause())
                dead = [job for job, _ in await send(store.front("dead", 20))]
                await send(store.revive_matching(dead, condition()))
                await send(store.resume())
            await send(store.limit({"concurrency": 10.0 * (n % 4 + 1)}))
            last = await work.using(priority=0).enqueue(1)
            await last.result(PATIENCE)  # so that the workers keep up

    config = Config(url=server.url, queues=(queue,), concurrency=32)
    async with system(config, app, workers=2) as whole:
        producing = asyncio.create_task(produce(whole))
        while not producing.done():
            audit = Audit(whole.sender, [queue], pause=0.2)
            assert await audit.run() == []
            assert problems(await find_standstill(whole.sender, [queue], watch=0.2)) == []
            looks, seen = looks + 1, seen + audit.seen
        await producing
        assert len(whole.recorder.of(events.Started)) > LOOKS
        assert whole.recorder.of(events.Retrying)
        assert whole.recorder.of(events.JobBuried)
    assert seen > 100 * LOOKS
