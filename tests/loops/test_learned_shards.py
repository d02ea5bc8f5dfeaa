"""Processes that started before they could read how many shards a queue has serve its shards once they can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest
from msgspec import structs

from evsched import App, events, keys, process_events
from evsched.config import Config
from evsched.dispatcher.dispatcher import ClusterDispatcher
from evsched.runtime.loops import Runtime
from evsched.services.app_shards import AppShards
from evsched.store import server as redis_server
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import Topology, topology
from evsched.worker.worker import Worker
from tests.support.cluster import Cluster
from tests.support.recorder import Recorder
from tests.support.system import system


def for_shard(queue: str) -> Callable[[Any], bool]:
    return lambda event: event.queue == queue


async def test_named_dispatcher_serves_shards_that_are_added(own: EmbeddedRedis, app: App) -> None:
    config = Config(url=own.url, queues=("big",), safety_cap=3600.0)
    async with system(config, app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        await running.sender.send(redis_server.set_shards("big", 2))
        assert running.dispatcher.queues == ["big"]
        running.dispatcher.look()
        await running.recorder.wait(events.QueueFound, for_shard("big:1"))
        await running.recorder.until(lambda: running.dispatcher.queues == ["big", "big:0", "big:1"])
        # By the event of its schedule, for which it has subscribed: the safety cap is an hour.
        await subscribed(running.sender, "big:1")
        await running.sender.send(Store("big:1").enqueue([New("x", b'{"task":"t"}', delay=0.05)]))
        await running.recorder.wait(events.Dispatched, for_shard("big:1"))


async def subscribed(sender: BatchingSender, queue: str) -> None:
    async with asyncio.timeout(25.0):
        while not await sender.send(redis_server.gate_listeners(queue)):
            pass


async def test_named_dispatcher_learns_of_shards_when_the_lost_node_returns(server: EmbeddedRedis) -> None:
    with Cluster(server.server) as cluster:
        cluster_topology = topology(cluster.url)
        assert cluster_topology is not None
        _, port = await cluster_topology.owner(keys.SHARDS)
        victim = next(node for node in cluster.nodes if node.port == port)
        queue = next(f"q{n}" for n in range(99) if cluster.primary(f"q{n}") is not victim)
        parts = [f"{queue}:{number}" for number in range(6)]
        nodes = {cluster.primary(part).port for part in parts}
        assert len(nodes) == 3
        with closing(cluster.client(victim)) as raw:
            raw.zadd(keys.SHARDS, {queue: 6})
        victim.kill()
        recorder, sender = Recorder(), BatchingSender(cluster.url)
        async with dispatching(cluster_topology, sender, Config(url=cluster.url, queues=(queue,)), recorder) as found:
            await recorder.until(lambda: found.queues == [queue])
            await asyncio.to_thread(victim.start)
            await asyncio.to_thread(cluster.until_ready)
            await recorder.wait(process_events.ShardsFound, for_shard(queue))
            await recorder.until(lambda: found.queues == sorted([queue, *parts]))


@asynccontextmanager
async def dispatching(
    of: Topology, sender: BatchingSender, config: Config, recorder: Recorder
) -> AsyncGenerator[ClusterDispatcher]:
    heard = events.Events(recorder)
    dispatcher = ClusterDispatcher(Runtime(config, sender, heard.emit), of)
    heard.subscribe(dispatcher.on_event)
    running = asyncio.create_task(dispatcher.run())
    try:
        yield dispatcher
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await sender.close()


async def test_named_dispatcher_serves_found_shards_while_their_count_is_unknown(
    server: EmbeddedRedis,
) -> None:
    """The queue itself is on the node that is lost, too."""
    with Cluster(server.server) as cluster:
        cluster_topology = topology(cluster.url)
        assert cluster_topology is not None
        _, port = await cluster_topology.owner(keys.SHARDS)
        victim = next(node for node in cluster.nodes if node.port == port)
        queue = next(f"q{n}" for n in range(99) if cluster.primary(f"q{n}") is victim)
        healthy = [part for n in range(12) if cluster.primary(part := f"{queue}:{n}") is not victim]
        sender = BatchingSender(cluster.url)
        late = healthy.pop()
        for name in (*healthy, f"other{queue}:1"):
            await sender.send(Store(name).enqueue([New("x", b'{"task":"t"}', delay=0.05)]))
        victim.kill()
        recorder = Recorder()
        config = Config(url=cluster.url, queues=(queue,), safety_cap=2.0)
        async with dispatching(cluster_topology, sender, config, recorder) as found:
            for part in healthy:
                await recorder.wait(events.Dispatched, for_shard(part))
            # One that gets its first job later is found as a queue is: in a safety cap.
            await sender.send(Store(late).enqueue([New("x", b'{"task":"t"}', delay=0.05)]))
            await recorder.wait(events.Dispatched, for_shard(late))
            # From then on it serves it by its events.
            await subscribed(sender, late)
            assert set(found.queues) == {queue, *healthy, late}
            assert len(recorder.of(process_events.ShardsUnknown)) == 1


@asynccontextmanager
async def working(runtime: Runtime, app: App) -> AsyncGenerator[Worker]:
    """Run a worker of the queue alone, as one does that could not read its number of shards."""
    program = structs.replace(app.program, shards=runtime.shards)
    worker = Worker(runtime, program, ["big"])
    shards = AppShards(structs.replace(runtime, config=structs.replace(runtime.config, queues=("big",))), app)
    await shards.declare()
    tasks = [asyncio.ensure_future(worker.run()), asyncio.ensure_future(shards.keep(worker, learned=False))]
    try:
        yield worker
    finally:
        worker.stop()
        await tasks[0]
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await app.close()


async def test_worker_serves_learned_shards_with_their_parts_of_the_limits(
    own: EmbeddedRedis, recorder: Recorder
) -> None:
    app = App(own.url, queue="big")
    app.limit(concurrency=6)
    ran = list[str]()

    @app.task
    async def note(name: str) -> None:
        ran.append(name)
        recorder(events.QueueFound(queue=name))

    sender = BatchingSender(own.url)
    runtime = Runtime(Config(url=own.url), sender, recorder)
    async with working(runtime, app) as worker:
        await recorder.wait(events.WorkerStarted)
        await sender.send(redis_server.set_shards("big", 2))
        await sender.send(Store("big:1").enqueue([New("x", b'{"task":"note","args":["x"]}')]))
        await recorder.wait(process_events.ShardsFound, for_shard("big"))
        await recorder.until(lambda: list(worker.consumers) == ["big", "big:0", "big:1"])
        await sender.send(Store("big:1").dispatch(limit=10, cap=10_000))
        await recorder.wait(events.QueueFound, for_shard("x"))
        for part in ("big", "big:0", "big:1"):
            await limited(sender, part, 2.0)
    assert {event.worker for event in recorder.of(events.WorkerStopped)} == {worker.id}
    assert ran == ["x"]
    await sender.close()


async def limited(sender: BatchingSender, queue: str, value: float) -> None:
    async with asyncio.timeout(25.0):
        while (await sender.send(Store(queue).limits())).queue.get("concurrency") != value:
            pass


@pytest.mark.extra
async def test_worker_writes_its_number_of_shards_once_it_can(own: EmbeddedRedis, recorder: Recorder) -> None:
    app = App(own.url, queue="big", shards=3)
    app.task(name="note")(_note)
    sender = BatchingSender(own.url)
    runtime = Runtime(Config(url=own.url), sender, recorder)
    await sender.send(redis_server.set_shards("big", 2))  # so that restoring a lost number is not enough
    own.kill()
    async with working(runtime, app):
        await asyncio.to_thread(own.start)
        async with asyncio.timeout(25.0):
            while (await sender.attempt_all([redis_server.shards()])) != [{"big": 3}]:
                pass
    await sender.close()


async def _note() -> None:
    raise NotImplementedError
