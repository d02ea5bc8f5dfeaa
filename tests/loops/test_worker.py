"""A worker in trouble: it is stopped, it loses its lease, a reply is lost, its handlers misbehave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from evsched import App, current_job, events, process_events
from evsched.config import Config
from evsched.jobs.job import encode
from evsched.store.worker_calls import Renewed
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE
from tests.support.plain import on_primaries
from tests.support.system import system


@pytest.fixture
def hold(app: App) -> Any:
    """A task whose runs end only when the test opens the gate."""
    gate = asyncio.Event()

    @app.task
    async def hold() -> int:
        await gate.wait()
        return current_job().attempt

    hold.gate = gate  # pyright: ignore[reportAttributeAccessIssue]
    return hold


async def test_a_stop_hands_back_jobs_that_do_not_end(
    config: Config, app: App, hold: Any, raw: Any, queue: str
) -> None:
    async with system(config, app) as running:
        job = await hold.enqueue()
        await running.recorder.wait(events.Started)
        running.workers[0].stop()
        stopped = await running.recorder.wait(events.WorkerStopped)
        assert stopped.handed_back == 1
        assert not raw.exists(f"evsched:{{{queue}}}:leases", f"evsched:{{{queue}}}:processing:{stopped.worker}")
        assert raw.lrange(f"evsched:{{{queue}}}:ready", 0, -1) == [job.id.encode()]
        hold.gate.set()
        running.work()
        assert await job.result(PATIENCE) == 1  # an orderly stop costs no attempt


async def test_worker_whose_loop_is_late_to_hand_back_is_not_blocked(config: Config) -> None:
    """The lifespan of its app is late to begin: it does not end when it is cancelled."""
    entered, cancelled, end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def lifespan() -> AsyncGenerator[None]:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            await end.wait()
            raise
        yield

    async with system(config, App(config.url, lifespan=lifespan), workers=0) as running:
        worker = running.work()
        await entered.wait()
        worker.stop()
        await cancelled.wait()
        rescued = await asyncio.to_thread(worker.rescue)
        end.set()
        assert not rescued
        assert not running.recorder.of(events.WorkerBlocked)


async def test_a_stop_lets_running_jobs_end(server: EmbeddedRedis, app: App, hold: Any, queue: str) -> None:
    config = Config(url=server.url, queues=(queue,), shutdown_grace=10.0)
    async with system(config, app) as running:
        job = await hold.enqueue()
        await running.recorder.wait(events.Started)
        running.workers[0].stop()
        await running.recorder.wait(events.WorkerDraining)
        hold.gate.set()
        stopped = await running.recorder.wait(events.WorkerStopped)
        assert stopped.handed_back == 0
        assert await job.result(PATIENCE) == 1


async def test_a_lost_lease_stops_the_run_and_the_newer_run_counts(
    config: Config, app: App, hold: Any, raw: Any, queue: str
) -> None:
    async with system(config, app) as running:
        job = await hold.enqueue()
        await running.recorder.wait(events.Started)
        worker = running.workers[0]
        consumer = worker.consumers[queue]
        store = consumer.served.store
        await running.sender.send(store.begin(worker.id, [(consumer.held.runs[job.id].job, "1")]))
        (lease,) = (await running.sender.send(store.survey())).leases
        await running.sender.send(store.requeue(worker.id, "the test says so", lease=lease.end))
        # The worker fetches the job again. The reply to its start says that its lease was lost.
        await running.recorder.wait(events.LeaseLost)
        await running.recorder.wait(events.Started, count=2)
        hold.gate.set()
        assert await job.result(PATIENCE) == 2
    assert not running.recorder.of(events.RunLost)
    assert [lost.held for lost in running.recorder.of(events.LeaseLost)] == [1]


async def test_an_idle_worker_keeps_its_long_lease(server: EmbeddedRedis, queue: str) -> None:
    app = App(queue=queue)

    @app.task
    async def noop() -> None: ...

    config = Config(url=server.url, queues=(queue,), lease=10, heartbeat=0.1, idle_lease=60, idle_heartbeat=20)
    async with system(config, app) as running:
        store = running.workers[0].consumers[queue].served.store
        for _ in range(10):
            await (await noop.enqueue()).result(PATIENCE)
            # The start of a job made the lease short. A heartbeat makes it long again before it ends.
            async with asyncio.timeout(PATIENCE):
                while (await running.sender.send(store.survey())).leases[0].left <= 10:
                    pass
    assert not running.recorder.of(events.LeaseLost)


async def test_jobs_of_a_lost_reply_are_started(
    config: Config, app: App, raw: Any, queue: str, server: EmbeddedRedis
) -> None:
    @app.task
    async def noop() -> None: ...

    async with system(config, app, dispatch=False) as running:
        worker = running.workers[0]
        raw.hset(f"evsched:{{{queue}}}:job:lost", "payload", '{"task":"noop"}')
        raw.rpush(f"evsched:{{{queue}}}:processing:{worker.id}", "lost")
        consumer = worker.consumers[queue]
        consumer.counted(Renewed(True, 1, [], True, False, 0.0), 0.0)
        consumer.counted(Renewed(True, 1, [], True, False, 0.0), 0.0)
        await running.recorder.wait(events.Completed, lambda event: event.ids == ["lost"])
    assert not raw.exists(f"evsched:{{{queue}}}:processing:{worker.id}")


async def test_jobs_of_a_lost_reply_are_started_even_over_several_replies(
    config: Config, app: App, raw: Any, queue: str
) -> None:
    @app.task
    async def take(data: str) -> None: ...

    ids = [f"large-{n}" for n in range(9)]
    async with system(config, app, dispatch=False) as running:
        worker = running.workers[0]
        for job_id in ids:
            payload = encode({"task": "take", "args": ["x" * 250_000]})
            raw.hset(f"evsched:{{{queue}}}:job:{job_id}", "payload", payload)
        raw.rpush(f"evsched:{{{queue}}}:processing:{worker.id}", *ids)
        consumer = worker.consumers[queue]
        consumer.counted(Renewed(True, 9, [], True, False, 0.0), 0.0)
        consumer.counted(Renewed(True, 9, [], True, False, 0.0), 0.0)
        await running.recorder.until(
            lambda: {one for event in running.recorder.of(events.Completed) for one in event.ids} == {*ids}
        )


async def test_a_cut_connection_loses_nothing(config: Config, app: App, raw: Any) -> None:
    @app.task
    async def noop() -> None: ...

    async with system(config, app) as running:
        for n in range(1, 6):
            await noop.enqueue()
            raw.client_kill_filter(_type="normal", skipme=True, **on_primaries(raw))
            await running.recorder.until(
                lambda: sum(len(event.ids) for event in running.recorder.of(events.Completed)) >= n  # noqa: B023
            )


async def test_running_jobs_continue_while_redis_is_down(server: EmbeddedRedis, queue: str) -> None:
    app, gate = App(queue=queue), asyncio.Event()

    @app.task
    async def hold() -> int:
        await gate.wait()
        return current_job().attempt

    with EmbeddedRedis(appendfsync="always") as own:
        config = Config(url=own.url, queues=(queue,), shutdown_grace=5.0)
        async with system(config, app) as running:
            job = await hold.enqueue()
            await running.recorder.wait(events.Started)
            own.kill()
            gate.set()
            await running.recorder.wait(process_events.RedisDown)
            await asyncio.to_thread(own.restart)
            assert await job.result(PATIENCE) == 1
            await running.recorder.wait(process_events.RedisUp)


async def test_a_worker_that_has_ended_has_no_heartbeat_thread(config: Config, app: App, hold: Any) -> None:
    async with system(config, app) as running:
        await hold.enqueue()
        await running.recorder.wait(events.Started)
    assert not [thread for thread in threading.enumerate() if thread.name == "evsched-heartbeat"]
