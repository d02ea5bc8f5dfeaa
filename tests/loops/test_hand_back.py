"""A worker that is stopped past its shutdown grace hands back what runs: no run costs an attempt, and none begins twice
that may begin once. However its handler runs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from evsched import App, Retry, current_job, events
from evsched.config import Config
from evsched.jobs.job import encode
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support import heavy
from tests.support.proxy import Proxy
from tests.support.system import System, system

KINDS = {
    "event loop": ("hang_without_limit", None),
    "thread": ("hang_in_thread", None),
    "process": ("hang_in_process", None),
    "isolated": ("hang_without_limit", "2 0"),
}


@pytest.fixture
def config(server: EmbeddedRedis, queue: str) -> Config:
    return Config(url=server.url, queues=(queue,), concurrency=4, shutdown_grace=0.2, kill_grace=0.5, process_pool=1)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setattr(heavy.app, "origin", "tests.support.heavy:app")
    return heavy.app


async def began(running: System, raw: Any, queue: str) -> None:
    """Wait until the handler has begun, which reports progress then."""
    while not raw.hexists(f"evsched:{{{queue}}}:job:a", "progress"):
        await running.sender.send(Store(queue).survey())


@pytest.mark.extra
@pytest.mark.parametrize("attempts", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
async def test_begun_run_is_handed_back_or_buried_at_a_stop(
    config: Config, app: App, queue: str, raw: Any, tmp_path: Path, kind: str, attempts: int
) -> None:
    (task, suspect), record = KINDS[kind], f"evsched:{{{queue}}}:job:a"
    async with system(config, app) as running:
        payload = {"task": task, "args": [str(tmp_path / "file")], "retry": {"attempts": attempts}}
        raw.hset(record, mapping={"payload": encode(payload)})
        if suspect:
            raw.hset(f"evsched:{{{queue}}}:suspects", "a", suspect)
        raw.zadd(f"evsched:{{{queue}}}:schedule", {"a": 0})
        await began(running, raw, queue)
    if attempts == 1:
        assert raw.zrange(f"evsched:{{{queue}}}:dead", 0, -1) == [b"a"]
        assert b"was stopped while it ran" in raw.hget(record, "reason")
    else:
        assert raw.lrange(f"evsched:{{{queue}}}:ready", 0, -1) == [b"a"]
        assert raw.hmget(record, "attempt", "worker", "begun") == [b"0", None, None]


async def test_ended_runs_are_not_handed_back_while_an_end_is_being_sent(
    own: EmbeddedRedis, client: Any, queue: str
) -> None:
    app = App(queue=queue)
    gates, ended = [asyncio.Event(), asyncio.Event()], asyncio.Event()

    @app.task(retry=Retry(attempts=1), retention=60)
    async def once(n: int) -> int:
        await gates[n].wait()
        if n:
            ended.set()
        return current_job().attempt

    async with Proxy(str(own.socket)) as proxy:
        url = f"redis://{proxy.host}:{proxy.port}/0"
        async with system(Config(url=url, queues=(queue,), shutdown_grace=0.0), app) as running:
            records = [f"evsched:{{{queue}}}:job:{job.id}" for job in await once.enqueue_many([(0,), (1,)])]
            while None in [client.hget(record, "begun") for record in records]:
                await asyncio.to_thread(client.ping)
            before = proxy.received["up"]
            proxy.delay(0.3, "up")
            gates[0].set()
            await proxy.until(lambda: proxy.received["up"] > before)
            proxy.heal()
            gates[1].set()
            await ended.wait()
            running.workers[0].stop()
            stopped = await running.recorder.wait(events.WorkerStopped)
    assert stopped.handed_back == 0
    assert [client.hget(record, "outcome") for record in records] == [b"done", b"done"]
