"""A message that a handler returns is sent with the end of its run; if Redis refuses it, the run has failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evsched import App, JobDead, Retry, events
from evsched.client.task_handle import AsyncTask
from evsched.config import Config
from evsched.execution.run import Delivery
from evsched.jobs.job import Done, Forwarded, Message, Retried
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.worker.drain import hand_back
from evsched.worker.exchange import HeldRuns, ServedQueue
from tests.support.patience import PATIENCE
from tests.support.system import system

Forward = AsyncTask[[int], Any]

SLOTS = 5

SOON = Retry(attempts=100, interval=0.05, max_interval=0.05, jitter=0)


@pytest.fixture
def news(queue: str) -> str:
    return f"{queue}:news"


@pytest.fixture
def forward(app: App, news: str) -> Forward:
    @app.task(retry=SOON)
    async def forward(n: int) -> Message | None:
        return Message("stream", news, b"%d" % n)

    return forward


def messages(raw: Any, news: str) -> list[bytes]:
    return [fields[b"message"] for _, fields in raw.xrange(news)]


@pytest.mark.one_server
async def test_each_message_is_sent_once_and_the_job_is_done(
    config: Config, app: App, forward: Forward, raw: Any, news: str
) -> None:
    async with system(config, app) as running:
        jobs = await forward.enqueue_many([(n,) for n in range(100)])
        for job in jobs:
            assert await job.result(PATIENCE) is None
        assert sorted(int(n) for n in messages(raw, news)) == [*range(100)]
        await running.recorder.until(
            lambda: sum(len(one.ids) for one in running.recorder.of(events.Completed)) == len(jobs)
        )


@pytest.mark.one_server
async def test_a_run_whose_message_is_refused_is_tried_again(
    config: Config, app: App, forward: Forward, raw: Any, news: str
) -> None:
    raw.set(news, "a string")
    async with system(config, app) as running:
        job = await forward.enqueue(7)
        retrying = await running.recorder.wait(events.Retrying, count=3)
        assert retrying.reason.startswith(
            f"attempt 3 of 100: Redis refused the message to {news}: WRONGTYPE Operation against"
        )
        raw.delete(news)
        assert await job.result(PATIENCE) is None
        assert messages(raw, news) == [b"7"]


@pytest.mark.one_server
async def test_a_job_whose_last_message_is_refused_is_dead_with_the_reason(
    config: Config, app: App, forward: Forward, raw: Any, news: str
) -> None:
    raw.set(news, "a string")
    async with system(config, app):
        job = await forward.using(retry=Retry(attempts=1)).enqueue(1)
        with pytest.raises(JobDead, match=r"attempt 1 of 1: Redis refused the message .* WRONGTYPE"):
            await job.result(PATIENCE)


async def test_messages_wait_while_memory_is_full_and_other_jobs_run(
    own: EmbeddedRedis, client: Any, queue: str, news: str
) -> None:
    app, full = App(queue=queue), asyncio.Event()

    @app.task(retry=Retry(attempts=1))
    async def forward(n: int) -> Message | None:
        await full.wait()
        return Message("right", news, b"%d" % n)

    @app.task
    async def other() -> None: ...

    async with system(Config(url=own.url, concurrency=SLOTS), app) as running:
        jobs = await forward.enqueue_many([(n,) for n in range(3 * SLOTS)])
        others = await other.enqueue_many([()] * SLOTS)  # behind the others: no slot is free
        await running.recorder.wait(events.Started)
        client.config_set("maxmemory", 1)
        full.set()
        for job in others:
            await job.result(PATIENCE)
        assert client.exists(news) == 0
        snoozed = await running.recorder.wait(events.JobSnoozed, lambda event: event.id == jobs[0].id, count=2)
        assert "Redis's memory is full, and its message needs some: raise `maxmemory`" in snoozed.reason
        client.config_set("maxmemory", 0)
        for job in jobs:
            assert await job.result(PATIENCE) is None
        assert sorted(int(n) for n in client.lrange(news, 0, -1)) == [*range(3 * SLOTS)]
        status = await jobs[0].status()
        assert (status.attempt, status.reason) == (1, None)
        assert not running.recorder.of(events.RunLost)
        assert not running.recorder.of(events.Retrying)


async def test_worker_stopping_while_memory_is_full_hands_back_a_forwarding_run(
    own: EmbeddedRedis, client: Any, queue: str, news: str
) -> None:
    app = App(queue=queue)
    async with system(Config(url=own.url), app, workers=0) as running:
        store, held = Store(queue), HeldRuns()
        await running.sender.send(store.enqueue([New(job_id, b'{"task":"t"}') for job_id in "ab"]))
        await running.recorder.wait(events.Dispatched)
        fetched = await running.sender.send(store.start("w", (), hold=2, lease=60))
        first, second = held.add(fetched.jobs, Delivery(queue, fetched.now, 0.0))
        first.outcome = Forwarded(b"null", 60, False, message=Message("right", news, b"1"), otherwise=Retried(1, "x"))
        second.outcome = Done(b"null", 60, False)
        held.end(first)
        held.end(second)
        client.config_set("maxmemory", 1)
        assert await hand_back(ServedQueue(running.runtime, store, "w"), held) == 1
        client.config_set("maxmemory", 0)
        assert client.lrange(f"evsched:{{{queue}}}:ready", 0, -1) == [first.job.id.encode()]
        assert client.hmget(f"evsched:{{{queue}}}:job:{first.job.id}", "attempt", "worker") == [b"0", None]
        assert client.hget(f"evsched:{{{queue}}}:job:{second.job.id}", "outcome") == b"done"
        assert client.exists(news) == 0


async def test_a_worker_that_stops_hands_back_a_run_whose_message_is_refused(
    config: Config, app: App, forward: Forward, queue: str, raw: Any, news: str
) -> None:
    raw.set(news, "a string")
    async with system(config, app, workers=0) as running:
        await forward.using(id="a").enqueue(1)
        await running.recorder.wait(events.Dispatched)
        store, held = Store(queue), HeldRuns()
        fetched = await running.sender.send(store.start("w", (), hold=1, lease=60))
        (run,) = held.add(fetched.jobs, Delivery(queue, fetched.now, 0.0))
        run.outcome = Forwarded(b"null", 60, False, message=Message("right", news, b"1"), otherwise=Retried(1, "x"))
        held.end(run)
        assert await hand_back(ServedQueue(running.runtime, store, "w"), held) == 1
        assert not running.recorder.of(events.Completed)
    assert raw.lrange(f"evsched:{{{queue}}}:ready", 0, -1) == [b"a"]
    assert raw.hmget(f"evsched:{{{queue}}}:job:a", "attempt", "worker") == [b"0", None]
