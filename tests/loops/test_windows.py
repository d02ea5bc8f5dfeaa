"""Service windows: a job does not start outside its window, and waiting costs no attempt."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from evsched import (
    App,
    ConfigError,
    Declared,
    JobDead,
    Retry,
    StoreDown,
    TaskHandle,
    current_job,
    events,
    process_events,
)
from evsched.client.explain import explain
from evsched.config import Config
from evsched.execution.deferral import RedisRunStore
from evsched.runtime.loops import Runtime
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.patience import PATIENCE
from tests.support.proxy import Proxy
from tests.support.recorder import Recorder
from tests.support.system import System, system


@pytest.fixture
def app(queue: str) -> App:
    app = App(queue=queue)

    @app.task(name="attempt", retry=Retry(attempts=1))
    async def attempt() -> int:
        return current_job().attempt

    return app


def closed_now() -> str:
    """Return a window that stays closed for hours."""
    now = datetime.now(UTC)
    return f"{now + timedelta(hours=5):%H:%M}-{now + timedelta(hours=6):%H:%M} UTC"


def task(app: App) -> TaskHandle[[], int]:
    return TaskHandle(app, app.tasks["attempt"])


async def test_a_job_outside_its_window_waits_until_the_window_opens(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    async with system(config, app) as running:
        job = await task(app).using(window=closed_now()).enqueue()
        deferred = await running.recorder.wait(events.JobDeferred)
        status = await job.status()
        assert (status.place, status.attempt) == ("schedule", 0)
        assert status.due == deferred.due
        assert 4 * 3600 < deferred.due - raw.time()[0] <= 5 * 3600
        facts = await running.sender.send(Store(queue).explain(job.id))
        assert explain(queue, facts).sentence.startswith("outside its window ")
        await job.reschedule()  # still outside
        await running.recorder.wait(events.JobDeferred, count=2)


async def test_a_change_of_a_named_window_takes_effect_at_once(config: Config, app: App, queue: str) -> None:
    store = Store(queue)
    async with system(config, app) as running:
        await running.sender.send(store.set_window("customer-a", closed_now()))
        job = await task(app).using(window="customer-a").enqueue()
        await running.recorder.wait(events.JobDeferred)
        await running.sender.send(store.set_window("customer-a", "00:00-24:00 UTC"))
        facts = await running.sender.send(store.explain(job.id))
        assert "is open" in explain(queue, facts, window="00:00-24:00 UTC").sentence
        assert await running.sender.send(store.reopen("customer-a")) == (1, 0)
        assert await job.result(PATIENCE) == 1  # its first attempt


async def test_invalid_window_buries_the_job_and_is_named_in_the_reason(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    async with system(config, app):
        job = await task(app).using(window="customer-b").enqueue()
        with pytest.raises(JobDead, match="there is no window 'customer-b'"):
            await job.result(PATIENCE)
        raw.zadd(
            f"evsched:{{{queue}}}:schedule", {'{"task":"attempt","id":"w","window":"always open","reply":true}': 0}
        )
        _, reply = await asyncio.to_thread(raw.blpop, f"evsched:{{{queue}}}:reply:w", timeout=PATIENCE)
        assert b"at 'always open'" in reply
    with pytest.raises(ConfigError, match="at 'always open'"):
        await task(app).using(window="always open").enqueue()


async def test_job_in_the_backlog_is_deferred_when_its_window_closes(config: Config, app: App, queue: str) -> None:
    store = Store(queue)
    async with system(config, app) as running:
        await running.sender.send(store.set_window("w", "00:00-24:00 UTC"))
        await running.sender.send(store.pause())
        job = await task(app).using(window="w").enqueue()
        await running.recorder.wait(events.Dispatched)
        assert (await job.status()).place == "backlog"
        await running.sender.send(store.set_window("w", closed_now()))
        await running.sender.send(store.resume())
        await running.recorder.wait(events.JobDeferred)
        assert (await job.status()).attempt == 0


async def test_windows_that_cannot_be_read_occupy_no_slot_and_are_reported_once(
    server: EmbeddedRedis, queue: str, raw: Any, app: App
) -> None:
    bad = f"{queue}-bad"
    windows = f"evsched:{{{bad}}}:windows"
    raw.set(windows, "a string")
    async with system(
        Config(url=server.url, queues=(bad, queue), concurrency=2, shutdown_grace=0.2, kill_grace=0.2), app
    ) as running:
        jobs = [await task(app).using(queue=bad, window="nights").enqueue() for _ in range(6)]
        await running.recorder.wait(events.JobDeferred, lambda event: event.queue == bad, count=len(jobs))
        assert await (await task(app).enqueue()).result(PATIENCE) == 1
        (refused,) = running.recorder.of(process_events.CallRefused)
        assert (refused.queue, "WRONGTYPE" in refused.reason) == (bad, True)
        # No job has failed, and the record says why it waits. It may have been tried again by now.
        status = await jobs[0].status()
        assert (status.reason or "").startswith("its window 'nights' cannot be read: HGET: WRONGTYPE"), status.reason
        raw.delete(windows)
        await running.sender.send(Store(bad).set_window("nights", "00:00-24:00 UTC"))
        assert [await job.result(PATIENCE) for job in jobs] == [1] * len(jobs)  # each in its first attempt
        await running.recorder.wait(process_events.CallAccepted, lambda event: event.queue == bad)
    for key in raw.keys(f"evsched:{{{bad}}}*"):
        raw.delete(key)


@pytest.mark.parametrize(
    "declared",
    [
        Declared(name="r", rule="@daily", payload=b'{"task":"attempt"}', window="nights"),
        Declared(name="r", rule="@daily", payload=b'{"task":"attempt","window":"nights"}'),
    ],
    ids=["of the recurrence", "of its payload"],
)
async def test_a_recurrence_of_a_window_that_does_not_exist_is_not_declared(
    config: Config, app: App, queue: str, raw: Any, declared: Declared
) -> None:
    async with system(config, app, workers=0, dispatch=False) as running:
        with pytest.raises(ConfigError, match="there is no window nights: evsched windows set nights"):
            await app.client.declare(queue, declared)
        assert not raw.exists(f"evsched:{{{queue}}}:recurrences")
        await running.sender.send(Store(queue).set_window("nights", closed_now()))
        assert await app.client.declare(queue, declared) == "made"


async def open_window(running: System, queue: str) -> None:
    """Do as `evsched windows set`, when the dispatcher has stopped the recurrence."""
    while "reason" not in await running.sender.send(Store(queue).recurrence("r")):
        pass
    await running.sender.send(Store(queue).set_window("nights", "00:00-24:00 UTC"))
    await running.sender.send(Store(queue).replan("r"))


async def test_recurrence_without_its_window_stops_and_buries_no_job(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    root = f"evsched:{{{queue}}}:"
    async with system(config, app) as running:
        payload = '{"task":"attempt","window":"nights"}'  # as other clients declare it
        raw.hset(f"{root}recurrence:r", mapping={"rule": "every 1", "payload": payload, "window": "nights"})
        raw.zadd(f"{root}recurrences", {"r": 0})
        broken = await running.recorder.wait(events.RecurrenceBroken)
        assert (broken.name, "there is no window nights" in broken.reason) == ("r", True)
        await open_window(running, queue)
        await running.recorder.wait(events.Completed)
        assert not running.recorder.of(events.JobBuried)
        assert not raw.hexists(f"{root}recurrence:r", "reason")


@pytest.mark.parametrize("named", ["window", "calendar"])
async def test_worker_runs_jobs_beside_a_missing_window_or_calendar(
    config: Config, app: App, queue: str, raw: Any, named: str
) -> None:
    window, skip = ("nights", None) if named == "window" else (None, "nights")
    app.recurring(every=1.0, name="r", window=window, skip=skip)(task(app))
    async with system(config, app) as running:
        (broken, *_) = running.recorder.of(events.RecurrenceBroken)
        assert (broken.name, "nights" in broken.reason) == ("r", True)
        assert await (await task(app).enqueue()).result(PATIENCE) == 1
        raw.hset(f"evsched:{{{queue}}}:calendars", "nights", "2020-01-01")
        await open_window(running, queue)
        await running.recorder.wait(events.Recurred)


async def test_a_job_of_a_shard_waits_for_a_window_of_its_queue(config: Config, app: App, queue: str) -> None:
    whole, shard = Store(queue), Store(f"{queue}:0")
    async with sharded(config, app, queue) as running:
        await running.sender.send(whole.set_window("w", closed_now()))
        job = await task(app).using(queue=shard.queue, window="w").enqueue()
        await running.recorder.wait(events.JobDeferred)
        assert (await job.status()).place == "schedule"
        await running.sender.send(whole.set_window("w", "00:00-24:00 UTC"))
        assert await running.sender.send(shard.reopen("w")) == (1, 0)
        assert await job.result(PATIENCE) == 1
        assert len(running.recorder.of(events.JobDeferred)) == 1  # it is due again when the window changes, not before


@pytest.mark.parametrize("change", ["set", "removed"])
async def test_shard_job_is_not_deferred_by_an_outdated_window(
    config: Config, app: App, queue: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    whole, shard = Store(queue), Store(f"{queue}:0")
    text = "00:00-24:00 UTC" if change == "set" else None
    read = RedisRunStore.read_window

    async def read_before_the_change(store: RedisRunStore, name: str, window: str) -> str | None:
        found = await read(store, name, window)
        await running.sender.send(whole.set_window("w", text))
        assert await running.sender.send(shard.reopen("w")) == (0, 0)  # the job is not deferred yet
        return found

    async with sharded(config, app, queue) as running:
        monkeypatch.setattr(RedisRunStore, "read_window", read_before_the_change)
        await running.sender.send(whole.set_window("w", closed_now()))
        job = await task(app).using(queue=shard.queue, window="w").enqueue()
        if change == "set":
            assert await job.result(PATIENCE) == 1
        else:
            with pytest.raises(JobDead, match="there is no window 'w'"):
                await job.result(PATIENCE)
        assert len(running.recorder.of(events.JobDeferred)) == 1


async def test_runs_wait_for_all_windows_of_a_queue_together(own: EmbeddedRedis, recorder: Recorder) -> None:
    async with Proxy(("127.0.0.1", own.port or 0)) as proxy:
        config = Config(url=f"redis://{proxy.host}:{proxy.port}")
        sender = BatchingSender(config.url)
        store = RedisRunStore(Runtime(config, sender, recorder), "worker")
        assert await store.read_window("mail", "first") is None
        proxy.swallow("down")
        with pytest.raises(StoreDown, match="no answer within"):
            await store.read_window("mail", "first")
        other = asyncio.ensure_future(store.read_window("other", "first"))
        second = asyncio.ensure_future(store.read_window("mail", "second"))
        done, _ = await asyncio.wait([other, second], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        assert done == {second}  # `other` was asked for before, and waits
        assert isinstance(second.exception(), StoreDown)
        proxy.heal()
        with contextlib.suppress(StoreDown):
            await other
        await sender.close()


@asynccontextmanager
async def sharded(config: Config, app: App, queue: str) -> AsyncGenerator[System]:
    """Run a system that serves a queue and its one shard."""
    async with system(structs.replace(config, queues=(f"{queue}:0", queue)), app, workers=0) as running:
        running.runtime.shards.grow({queue: 1})
        running.work()
        await running.recorder.wait(events.WorkerStarted)
        yield running
