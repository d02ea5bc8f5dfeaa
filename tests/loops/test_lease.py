"""The lease is kept in Redis: all processes use it, and a change costs no job its run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import events, keys, process_events, shard_map
from evsched.app import App
from evsched.config import Config
from evsched.dispatcher.janitor import Janitor
from evsched.lease import DEFAULT
from evsched.runtime.loops import Runtime
from evsched.store import server as redis_server
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.patience import PATIENCE
from tests.support.plain import on_primaries
from tests.support.recorder import Recorder
from tests.support.system import system
from tests.support.topology import pause


async def learn(config: Config, sender: BatchingSender, recorder: Recorder) -> Runtime:
    runtime = Runtime(config, sender, recorder)
    await shard_map.learn(runtime)
    return runtime


async def test_first_process_writes_its_lease_and_the_others_use_it(
    config: Config, sender: BatchingSender, recorder: Recorder, raw: Any
) -> None:
    first = await learn(replace(config, lease=30.0), sender, recorder)
    assert (raw.get(keys.LEASE), first.times.lease) == (b"30", 30.0)
    second = await learn(replace(config, lease=None), sender, recorder)
    assert second.times.lease == 30.0
    assert not recorder.of(process_events.LeaseDiffers)
    third = await learn(replace(config, lease=20.0), sender, recorder)
    await shard_map.learn(third)
    assert (raw.get(keys.LEASE), third.times.lease) == (b"30", 30.0)
    assert recorder.of(process_events.LeaseDiffers) == [process_events.LeaseDiffers(given=20.0, lease=30.0)], (
        "once, at the start"
    )


async def test_first_process_without_a_lease_setting_writes_the_default(
    config: Config, sender: BatchingSender, recorder: Recorder, raw: Any
) -> None:
    await learn(config, sender, recorder)
    assert float(raw.get(keys.LEASE)) == DEFAULT
    raw.delete(keys.LEASE)
    raw.set(keys.LEASE, "30")
    runtime = await learn(config, sender, recorder)
    raw.delete(keys.LEASE)
    await shard_map.learn(runtime)
    assert raw.get(keys.LEASE) == b"30", "a running process restores what Redis has lost"


@pytest.mark.parametrize("left", [b"garbage", [b"a", b"list"]])
async def test_value_that_is_not_valid_is_replaced(
    config: Config, sender: BatchingSender, recorder: Recorder, raw: Any, left: bytes | list[bytes]
) -> None:
    if isinstance(left, bytes):
        raw.set(keys.LEASE, left)
    else:
        raw.rpush(keys.LEASE, *left)
    runtime = await learn(replace(config, lease=20.0), sender, recorder)
    assert (runtime.times.lease, raw.get(keys.LEASE)) == (20.0, b"20")


async def test_process_reads_a_new_lease(config: Config, sender: BatchingSender, recorder: Recorder, raw: Any) -> None:
    runtime = await learn(config, sender, recorder)
    raw.set(keys.LEASE, "60")
    await shard_map.learn(runtime)
    await shard_map.learn(runtime)
    assert runtime.times.lease == 60.0
    assert recorder.of(process_events.LeaseChanged) == [process_events.LeaseChanged(lease=60.0)]


@pytest.mark.parametrize("busy", [60.0, 0.2])
async def test_janitor_judges_a_worker_by_the_lease_that_the_worker_says(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, recorder: Recorder, busy: float
) -> None:
    runtime = Runtime(Config(url=server.url, lease=0.2 if busy > 1 else 60.0, heartbeat=0.05), sender, recorder)
    janitor = Janitor(runtime, lambda: [store.queue])
    await sender.send(store.heartbeat("w", 100.0, busy=busy, fresh=True))
    await sender.send(store.enqueue([New("a", b'{"task":"t"}')]))
    await sender.send(store.dispatch(limit=10, cap=1000))
    await sender.send(store.start("w", (), hold=1, lease=50.0))
    await janitor.step(store.queue)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):  # a worker whose lease is 0.2 s is dead by then
            await asyncio.Event().wait()
    await janitor.step(store.queue)
    assert [event.ids for event in recorder.of(events.JobsRequeued)] == ([["a"]] if busy < 1 else [])


async def test_worker_says_its_lease_again_when_it_takes_jobs_after_redis_lost_its_data(
    server: EmbeddedRedis, sender: BatchingSender, store: Store, recorder: Recorder
) -> None:
    await sender.send(store.enqueue([New("a", b'{"task":"t"}')]))
    await sender.send(store.dispatch(limit=10, cap=1000))
    await sender.send(store.start("w", (), hold=1, lease=60.0))
    assert [lease.busy for lease in (await sender.send(store.survey())).leases] == [60.0]


async def test_running_job_outlives_changes_of_the_lease(app: App, queue: str, server: EmbeddedRedis, raw: Any) -> None:
    done = asyncio.Event()

    @app.task
    async def hold() -> None:
        await done.wait()

    leases = f"evsched:{{{queue}}}:leases"
    raw.set(keys.LEASE, "4")
    async with (
        system(Config(url=server.url, queues=(queue,), lease=4.0), app) as running,
        asyncio.timeout(3 * PATIENCE),
    ):
        runtime, recorder = running.runtime, running.recorder
        (worker,) = running.workers
        await shard_map.learn(runtime)
        job = await hold.enqueue()
        await recorder.wait(events.Started)

        async def left() -> float:
            ends, now = raw.zscore(leases, worker.id), await running.sender.send(redis_server.clock())
            return ends - now

        async def renewed(times: int) -> None:
            for _ in range(times):
                ends = raw.zscore(leases, worker.id)
                while raw.zscore(leases, worker.id) == ends:
                    await left()

        await renewed(1)
        assert await left() <= 4.0
        raw.set(keys.LEASE, "30")
        await shard_map.learn(runtime)
        while (seconds := await left()) < 25:
            assert seconds > 0, "it does not wait for the next heartbeat of the longer lease"
        raw.set(keys.LEASE, "4")
        await shard_map.learn(runtime)
        while await left() > 4:
            pass
        await renewed(2)
        done.set()
        await job.result(timeout=PATIENCE)
    assert len(recorder.of(events.Started)) == 1
    assert not recorder.of(events.JobsRequeued)
    assert not recorder.of(events.LeaseLost)


async def test_worker_that_is_idle_after_a_cut_gets_its_long_lease(
    config: Config, app: App, queue: str, raw: Any
) -> None:
    """A heartbeat that fails is sent again soon: until it arrives, the lease is the short one of the last job."""
    done = asyncio.Event()

    @app.task
    async def hold() -> None:
        await done.wait()

    own = replace(config, lease=14.0, heartbeat=1.0, idle_heartbeat=10 * PATIENCE, idle_lease=20 * PATIENCE)
    async with system(own, app) as running, asyncio.timeout(PATIENCE):
        (worker,) = running.workers

        def lease() -> float:
            return raw.zscore(f"evsched:{{{queue}}}:leases", worker.id) or 0.0

        async def until_long() -> None:
            while lease() < raw.time()[0] + PATIENCE:
                await asyncio.to_thread(pause)

        await until_long()
        await hold.enqueue()
        await running.recorder.wait(events.Started)
        ends = lease()
        while lease() == ends:  # until a heartbeat of the run
            await asyncio.to_thread(pause)
        done.set()
        await running.recorder.wait(events.Completed)
        raw.client_kill_filter(_type="normal", skipme=True, **on_primaries(raw))
        await until_long()
        assert not running.recorder.of(events.LeaseLost)
