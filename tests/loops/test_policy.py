"""Limits, pause, expiry, ids, middleware and progress, with a dispatcher and workers."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from evsched import App, CurrentJob, JobDead, JobExists, Retry, current_job, events, process_events
from evsched.config import Config
from evsched.store.server import clock
from evsched.store.store import Store
from tests.support import heavy
from tests.support.patience import PATIENCE
from tests.support.plain import on_primaries
from tests.support.system import system


async def test_a_concurrency_limit_holds_across_workers_and_all_jobs_run(config: Config, app: App, queue: str) -> None:
    running, most, five = 0, 0, asyncio.Barrier(5)

    @app.task
    async def meet() -> None:
        """Wait for five runs at a time. If the limit let fewer pass, they would wait for ever."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await five.wait()
        running -= 1

    async with system(config, app, workers=3) as whole:
        await whole.sender.send(Store(queue).limit({"concurrency": 5}))
        jobs = await meet.enqueue_many([()] * 200)
        await asyncio.gather(*(job.result(PATIENCE) for job in jobs))
    assert most == 5


async def test_jobs_behind_a_concurrency_limit_are_fetched_while_memory_is_full(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    """No call of a worker needs memory then, so none is refused and sent again, which would be slow."""
    count, limit = 180, 3

    @app.task
    async def noop() -> None: ...

    async with system(config, app) as whole:
        await whole.sender.send(Store(queue).limit({"concurrency": limit}))
        await whole.sender.send(Store(queue).pause())
        await noop.enqueue_many([()] * count)
        await whole.recorder.until(
            lambda: sum(len(event.lateness) for event in whole.recorder.of(events.Dispatched)) == count
        )
        raw.config_set("maxmemory", 1, **on_primaries(raw))
        try:
            await whole.sender.send(Store(queue).resume())
            await whole.recorder.until(
                lambda: sum(len(event.ids) for event in whole.recorder.of(events.Completed)) == count
            )
        finally:
            raw.config_set("maxmemory", 0, **on_primaries(raw))
        assert not [event for event in whole.recorder.of(process_events.RedisFailed) if event.kind == "oom"]


async def test_a_rate_that_is_used_up_opens_when_the_dispatcher_wakes(config: Config, app: App, queue: str) -> None:
    """With one job at a time, the workers' calls use up the rate, and only the dispatcher's step opens it again."""
    moments: list[float] = []

    @app.task
    async def note() -> None:
        moments.append(time.monotonic())

    async with system(config, app) as whole:
        await whole.sender.send(Store(queue).limit({"rate": 40, "burst": 2, "concurrency": 1}))
        jobs = await note.enqueue_many([()] * 12)
        await asyncio.gather(*(job.result(PATIENCE) for job in jobs))
        assert not whole.recorder.of(process_events.RedisDown)
    # The burst of two may be refilled before the first job runs, so at least eight jobs waited for the rate.
    assert 8 / 40 <= moments[-1] - moments[0] + 0.001 < PATIENCE


async def test_nothing_starts_while_a_queue_is_paused(config: Config, app: App, queue: str) -> None:
    @app.task
    async def noop() -> None: ...

    async with system(config, app) as whole:
        store = Store(queue)
        await whole.sender.send(store.pause())
        job = await noop.enqueue()
        await whole.recorder.wait(events.Dispatched)
        assert (await job.status()).place == "backlog"
        assert not whole.recorder.of(events.Started)
        await whole.sender.send(store.resume())
        await job.result(PATIENCE)


async def test_a_pause_ends_by_itself(config: Config, app: App, queue: str) -> None:
    @app.task
    async def noop() -> None: ...

    assert (config.safety_cap or 0) > PATIENCE, "else it would end because of that"
    async with system(config, app) as whole:
        now = await whole.sender.send(clock())
        await whole.sender.send(Store(queue).pause(until=now + 0.5))
        job = await noop.enqueue()
        await whole.recorder.wait(events.Dispatched)
        await job.result(PATIENCE)
        started = (await job.status()).started
        assert started is not None
        assert started >= now + 0.5


async def test_a_job_is_not_started_after_it_expires(config: Config, app: App, queue: str) -> None:
    @app.task
    async def noop() -> None: ...

    async with system(config, app) as whole:
        await whole.sender.send(Store(queue).pause())
        job = await noop.using(expires=time.time() - 1).enqueue()
        await whole.recorder.wait(events.Dispatched)
        await whole.sender.send(Store(queue).resume())
        with pytest.raises(JobDead, match="is expired: expired"):
            await job.result(PATIENCE)
        buried = await whole.recorder.wait(events.JobBuried)
        assert (buried.outcome, buried.attempt) == ("expired", 0)
        status = await job.status()
        assert (status.place, status.outcome) == ("dead", "expired")


async def test_a_retry_that_expires_is_dead_with_the_failure_of_its_last_attempt(
    config: Config, app: App, raw: Any
) -> None:
    @app.task(retry=Retry(attempts=3, interval=0.01))
    async def pay() -> None:
        key = f"evsched:{{{current_job().queue}}}:job:{current_job().id}"
        raw.hset(key, "payload", '{"task":"pay","expires":1}')
        raise ValueError("no such account")

    async with system(config, app):
        job = await pay.enqueue()
        with pytest.raises(JobDead, match="no such account"):
            await job.result(PATIENCE)
        status = await job.status()
    assert (status.place, status.outcome, status.attempt) == ("dead", "expired", 1)
    assert "while it waited for attempt 2; before that: attempt 1 of 3: ValueError: no such account" in str(
        status.reason
    )
    assert "in pay" in str(status.traceback)


async def test_an_id_that_exists_is_refused_kept_or_replaced(config: Config, app: App) -> None:
    ran: list[str] = []

    @app.task
    async def index(text: str) -> str:
        ran.append(text)
        return text

    async with system(config, app):
        first = await index.using(id="page-7", delay=3600).enqueue("a")
        with pytest.raises(JobExists):
            await index.using(id="page-7").enqueue("b")
        await index.using(id="page-7", on_conflict="keep").enqueue("c")
        assert (await first.status()).payload["args"] == ["a"]
        for text, delay in (("d", 3600), ("e", 3600), ("f", 0.05)):  # a debounce: the newest counts
            await index.using(id="page-7", delay=delay, on_conflict="replace").enqueue(text)
        assert await first.result(PATIENCE) == "f"
    assert ran == ["f"]


async def test_a_job_that_is_replaced_while_it_runs_runs_again_afterwards(config: Config, app: App) -> None:
    gate, ran = asyncio.Event(), list[str]()

    @app.task
    async def index(text: str) -> None:
        ran.append(text)
        await gate.wait()

    async with system(config, app) as whole:
        await index.using(id="x").enqueue("first")
        await whole.recorder.wait(events.Started)
        await index.using(id="x", on_conflict="replace").enqueue("second")
        gate.set()
        await whole.recorder.until(lambda: len(whole.recorder.of(events.Completed)) == 2)
    assert ran == ["first", "second"]


async def test_lifespan_and_middleware_wrap_the_runs(config: Config, queue: str) -> None:
    calls: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[dict[str, int]]:
        calls.append("opened")
        yield {"pool": 7}
        calls.append("closed")

    app = App(queue=queue, lifespan=lifespan)

    @app.middleware
    async def outer(job: CurrentJob, call_next: Callable[[], Awaitable[Any]]) -> Any:
        calls.append(f"outer {job.task}")
        return await call_next()

    @app.middleware
    async def inner(job: CurrentJob, call_next: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return 10 * await call_next()
        except ValueError as error:
            return f"inner caught {error}"

    @app.task
    async def state() -> int:
        return current_job().state["pool"]

    @app.task
    def in_thread() -> int:
        return current_job().state["pool"] + 1

    @app.task
    async def fail() -> int:
        raise ValueError("no luck")

    async with system(config, app):
        assert await (await state.enqueue()).result(PATIENCE) == 70
        assert await (await in_thread.enqueue()).result(PATIENCE) == 80
        assert await app.client.result(queue, (await fail.enqueue()).id, 5) == "inner caught no luck"
    assert calls == ["opened", "outer state", "outer in_thread", "outer fail", "closed"]


async def test_progress_is_stored_and_published(config: Config, app: App, queue: str, raw: Any) -> None:
    gates = [asyncio.Event() for _ in range(2)]

    @app.task
    async def climb() -> None:
        for n in range(100):
            await current_job().progress(n, 100, "camp one")
        await gates[0].wait()
        await current_job().progress(100, 100, "the top")
        await gates[1].wait()

    with raw.pubsub() as channel:
        channel.subscribe(f"evsched:{{{queue}}}:progress:everest")
        channel.get_message(timeout=PATIENCE)

        async def next_progress() -> Any:
            return (await asyncio.to_thread(channel.get_message, timeout=PATIENCE))["data"]

        async with system(config, app):
            job = await climb.using(id="everest").enqueue()
            assert await next_progress() == b'{"done":99,"total":100,"note":"camp one"}'
            assert (await job.status()).progress["done"] == 99
            gates[0].set()
            assert await next_progress() == b'{"done":100,"total":100,"note":"the top"}'
            gates[1].set()
            await job.result(PATIENCE)


async def test_a_plain_function_reports_its_progress_without_await(config: Config, app: App) -> None:
    gate = threading.Event()

    @app.task
    def climb() -> None:
        current_job().progress(1, 3)
        gate.wait(PATIENCE)

    async with system(config, app) as whole:
        job = await climb.enqueue()
        async with asyncio.timeout(PATIENCE):
            while (await job.status()).progress != {"done": 1, "total": 3}:
                pass
        gate.set()
        await job.result(PATIENCE)
        await whole.recorder.wait(events.Completed)  # emitted after the caller that waits has its result


@pytest.mark.extra
@pytest.mark.parametrize("fail", [False, True])
async def test_process_task_reports_progress_during_its_run_and_at_its_end(
    config: Config, queue: str, tmp_path: Path, raw: Any, fail: bool
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with raw.pubsub() as channel:
        channel.subscribe(f"evsched:{{{queue}}}:progress:everest")
        channel.get_message(timeout=PATIENCE)
        async with system(config, heavy.app) as whole:
            job = await heavy.climb.using(queue=queue, id="everest").enqueue(str(gate), fail)
            progress: dict[str, Any] = {}
            while progress.get("done") != 999:
                progress = json.loads((await asyncio.to_thread(channel.get_message, timeout=PATIENCE))["data"])
            assert (await job.status()).progress == {"done": 999, "total": 1000, "note": "on the way"}
            await asyncio.to_thread(gate.write_text, "go")
            await whole.recorder.wait(events.JobBuried if fail else events.Completed)
            assert (await job.status()).progress == {"done": 1000, "total": 1000, "note": "the top"}


async def test_the_last_progress_is_stored_when_the_job_ends_at_once(config: Config, app: App, queue: str) -> None:
    @app.task(retry=Retry(attempts=1))
    async def climb(n: int) -> None:
        for step in range(n):
            current_job().progress(step, n)
        await app.client.status(queue, current_job().id)  # the progress is sent meanwhile
        current_job().progress(n, n)
        if n % 3 == 0:
            raise ValueError("the way down")

    async with system(config, app) as whole:
        jobs = await climb.enqueue_many([(n,) for n in range(1, 101)])
        await whole.recorder.until(
            lambda: (
                sum(len(one.ids) for one in whole.recorder.of(events.Completed)) == 67
                and len(whole.recorder.of(events.JobBuried)) == 33
            )
        )
        progress = [(await job.status()).progress for job in jobs]
        assert progress == [{"done": n, "total": n} for n in range(1, 101)]
