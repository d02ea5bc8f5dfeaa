"""The whole system in one event loop: jobs that are enqueued run on time, and their outcomes are written."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evsched import (
    App,
    BadResult,
    GiveUp,
    JobDead,
    JobExists,
    JobMissing,
    Retry,
    RetryLater,
    Snooze,
    current_job,
    events,
)
from evsched.config import Config
from evsched.transport.call import Call, raw
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE
from tests.support.system import system


@pytest.fixture
def config(server: EmbeddedRedis, queue: str) -> Config:
    return Config(url=server.url, queues=(queue,), concurrency=20, shutdown_grace=2.0)


async def test_job_runs_and_its_result_is_returned(config: Config, app: App) -> None:
    @app.task
    async def add(a: int, b: int = 1) -> int:
        return a + b

    async with system(config, app):
        job = await add.enqueue(2, b=3)
        assert await job.result(PATIENCE) == 5
        status = await job.status()
    assert (status.place, status.outcome, status.result, status.attempt) == ("finished", "done", 5, 1)


async def test_no_job_starts_early_and_the_handler_knows_its_lateness(config: Config, app: App) -> None:
    @app.task
    async def lateness() -> float:
        return current_job().lateness

    async with system(config, app):
        jobs = [await lateness.using(delay=0.02 * n).enqueue() for n in range(1, 20)]
        late = [await job.result(PATIENCE) for job in jobs]
    assert min(late) >= 0
    assert max(late) < PATIENCE  # by events, and not by the safety cap


async def test_the_handler_knows_its_worker(config: Config, app: App) -> None:
    @app.task
    async def worker() -> str:
        return current_job().worker

    async with system(config, app) as running:
        assert await (await worker.enqueue()).result(PATIENCE) == running.workers[0].id


async def test_an_earlier_job_shortens_the_sleep(config: Config, app: App) -> None:
    @app.task
    async def lateness() -> float:
        return current_job().lateness

    async with system(config, app) as running:
        await lateness.using(delay=3600).enqueue()
        await running.recorder.wait(events.Woken, lambda event: event.reason == "event")
        job = await lateness.using(due=datetime.now(UTC) + timedelta(milliseconds=50)).enqueue()
        assert 0 <= await job.result(PATIENCE) < PATIENCE


async def test_a_plain_function_runs_in_a_thread(config: Config, app: App) -> None:
    @app.task
    def name() -> str:
        return threading.current_thread().name

    async with system(config, app):
        assert await (await name.enqueue()).result(PATIENCE) != threading.current_thread().name


async def test_a_job_that_fails_is_retried_and_then_dead_with_the_reason(config: Config, app: App) -> None:
    attempts: list[int] = []

    @app.task(retry=Retry(attempts=3, interval=0.01, jitter=0))
    async def fail() -> None:
        attempts.append(current_job().attempt)
        raise ValueError("no luck")

    async with system(config, app) as running:
        job = await fail.enqueue()
        with pytest.raises(JobDead, match="attempt 3 of 3: ValueError: no luck"):
            await job.result(PATIENCE)
        assert [event.attempt for event in running.recorder.of(events.Retrying)] == [1, 2]
        status = await job.status()
    assert attempts == [1, 2, 3]
    assert (status.place, status.outcome) == ("dead", "dead")


async def test_a_handler_may_retry_later_or_give_up(config: Config, app: App) -> None:
    @app.task
    async def later() -> int:
        if current_job().attempt == 1:
            raise RetryLater(0.01)
        return current_job().attempt

    @app.task
    async def never() -> None:
        raise GiveUp("the account is closed")

    async with system(config, app):
        assert await (await later.enqueue()).result(PATIENCE) == 2
        with pytest.raises(JobDead, match="the account is closed"):
            await (await never.enqueue()).result(PATIENCE)


async def test_a_job_may_snooze_more_often_than_it_has_attempts(config: Config, app: App) -> None:
    seen = list[tuple[int, str]]()

    @app.task(retry=Retry(attempts=1))
    async def poll() -> int:
        seen.append((current_job().attempt, current_job().idempotency_key))
        if len(seen) <= 3:
            raise Snooze(0.01, "not ready")
        return len(seen)

    async with system(config, app) as running:
        job = await poll.enqueue()
        assert await job.result(PATIENCE) == 4
        assert [event.reason for event in running.recorder.of(events.JobSnoozed)] == [
            "snoozed for at least 10 ms: not ready"
        ] * 3
        status = await job.status()
    assert set(seen) == {seen[0]}
    assert (seen[0][0], status.snoozes, status.reason) == (1, 3, None)


async def test_a_job_that_snoozes_expires_all_the_same(config: Config, app: App) -> None:
    @app.task
    async def poll() -> None:
        raise Snooze(until=datetime.now(UTC) + timedelta(milliseconds=10))

    async with system(config, app):
        job = await poll.using(expires=datetime.now(UTC) + timedelta(seconds=0.2)).enqueue()
        with pytest.raises(JobDead, match="expired"):
            await job.result(PATIENCE)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "thread"])
async def test_a_timeout_ends_a_run_and_counts_as_an_attempt(config: Config, app: App, plain: bool) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    def spin() -> None:
        job, wait = current_job(), threading.Event()
        while not job.cancelled:
            wait.wait(0.005)

    task: Any = app.task(name="slow", timeout=0.05, retry=Retry(attempts=1))(spin if plain else hang)
    async with system(config, app):
        with pytest.raises(JobDead, match="timeout"):
            await (await task.enqueue()).result(PATIENCE)


async def test_a_handler_that_cancels_itself_fails_like_any_other(config: Config, app: App) -> None:
    @app.task(retry=Retry(attempts=1))
    async def inner() -> None:
        raise asyncio.CancelledError

    async with system(config, app):
        with pytest.raises(JobDead, match="cancelled from inside"):
            await (await inner.enqueue()).result(PATIENCE)


async def test_an_id_cannot_be_enqueued_again_until_its_job_ends(config: Config, app: App) -> None:
    @app.task
    async def noop() -> None: ...

    async with system(config, app):
        job = await noop.using(id="once", delay=3600).enqueue()
        with pytest.raises(JobExists):
            await noop.using(id="once").enqueue()
        await job.reschedule()
        await job.result(PATIENCE)
        await (await noop.using(id="once").enqueue()).result(PATIENCE)


async def test_a_cancel_ends_the_wait_for_the_result(config: Config, app: App) -> None:
    @app.task
    async def noop() -> None: ...

    async with system(config, app):
        job = await noop.using(delay=3600).enqueue()
        waiting = asyncio.create_task(job.result(PATIENCE))
        while not (await app.client.send(_wants_reply(config.queues[0], job.id))):
            await asyncio.wait([waiting], timeout=0.01)
        assert await job.cancel() == "schedule"
        with pytest.raises(JobDead, match="cancelled"):
            await waiting
        with pytest.raises(JobMissing):
            await job.status()


def _wants_reply(queue: str, job_id: str) -> Any:
    """Return the call that reads whether a client waits for the job's result."""
    return Call(("HGET", f"evsched:{{{queue}}}:job:{job_id}", "reply"), raw)


async def test_two_callers_that_wait_both_get_the_result(config: Config, app: App) -> None:
    gate = asyncio.Event()

    @app.task
    async def gated() -> str:
        await gate.wait()
        return "open"

    async with system(config, app) as running:
        job = await gated.enqueue()
        await running.recorder.wait(events.Started)
        waiting = [asyncio.create_task(job.result(PATIENCE)) for _ in range(2)]
        gate.set()
        assert await asyncio.gather(*waiting) == ["open", "open"]


async def test_a_result_can_be_awaited_without_an_event_loop(config: Config, app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    def program() -> int:
        with app.sync() as client:
            return client.enqueue(double.using(delay=0.01), 21).result(PATIENCE)

    async with system(config, app):
        assert await asyncio.to_thread(program) == 42


async def test_more_jobs_than_slots_all_run(config: Config, app: App) -> None:
    most, now = 0, 0

    @app.task
    async def count() -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.get_running_loop().run_in_executor(None, time.monotonic)
        now -= 1

    async with system(config, app) as running:
        jobs = await count.enqueue_many([()] * 500)
        await running.recorder.until(
            lambda: sum(len(event.ids) for event in running.recorder.of(events.Completed)) == len(jobs)
        )
    assert most <= config.concurrency


async def test_two_dispatchers_and_five_workers_run_each_job_once(config: Config, app: App) -> None:
    runs: list[int] = []

    @app.task
    async def note(n: int) -> None:
        runs.append(n)

    async with system(config, app, workers=5) as first, system(config, app, first.recorder, workers=0) as second:
        assert first.recorder is second.recorder
        await note.enqueue_many([(n,) for n in range(1000)])
        await first.recorder.until(lambda: len(runs) >= 1000)
    assert sorted(runs) == list(range(1000))


async def test_two_queues_share_the_slots(server: EmbeddedRedis, queue: str) -> None:
    app, runs = App(queue=queue), list[str]()
    other = f"{queue}-b"

    @app.task
    async def note() -> None:
        runs.append(current_job().queue)

    config = Config(url=server.url, queues=(queue, other), concurrency=1, shutdown_grace=2.0)
    async with system(config, app) as running:
        for _ in range(20):
            await note.enqueue()
            await note.using(queue=other).enqueue()
        await running.recorder.until(lambda: len(runs) == 40)
    assert runs.count(queue) == runs.count(other) == 20


async def test_result_that_does_not_fit_its_task_raises_bad_result(config: Config, app: App) -> None:
    wrong: Any = None

    @app.task
    async def count() -> int:
        return wrong

    async with system(config, app):
        job = await count.enqueue()
        with pytest.raises(BadResult, match="does not fit the return type of its task: Expected `int`, got `null`"):
            await job.result(PATIENCE)
        assert (await job.status()).outcome == "done"
        with app.sync() as client, pytest.raises(BadResult, match="Expected `int`"):
            await asyncio.to_thread(client.enqueue(count).result, PATIENCE)


@pytest.mark.parametrize(
    ("reply", "words"),
    [(b"x", "is not JSON"), (b"[1]", "is not an outcome"), (b'{"outcome":"done"}', "is not an outcome")],
)
async def test_malformed_reply_of_another_client_raises_bad_result(
    app: App, server: EmbeddedRedis, queue: str, raw: Any, reply: bytes, words: str
) -> None:
    app.move_to(server.url)
    raw.rpush(f"evsched:{{{queue}}}:reply:a", reply)
    with pytest.raises(BadResult, match=words):
        await app.job("a").result(PATIENCE)
    await app.close()


async def test_non_json_result_of_another_client_raises_bad_result(
    app: App, server: EmbeddedRedis, queue: str, raw: Any
) -> None:
    app.move_to(server.url)
    key = f"evsched:{{{queue}}}:job:a"
    raw.hset(key, mapping={"payload": '{"task":"t"}', "outcome": "done", "finished": "5.5", "result": "x"})
    raw.expire(key, 60)
    with pytest.raises(BadResult, match="a: its result is not JSON"):
        await app.job("a").result(PATIENCE)
    await app.close()
