"""A worker of many queues or shards waits on one connection; no job waits while a slot is free in any worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from typing import Any

import pytest
from msgspec import structs

from evsched import App, current_job, events, keys
from evsched.config import Config
from evsched.execution import beginning
from evsched.store.store import Store
from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.subscription import Subscription
from evsched.worker.exchange import Exchange, ExchangeSender
from evsched.worker.fetcher import Fetcher
from tests.support.cluster import Cluster
from tests.support.patience import PATIENCE
from tests.support.proxy import Proxy
from tests.support.system import System, system
from tests.support.topology import pause

COUNT = 3


class Shards:
    """A queue with shards, a dispatcher, and a task whose jobs may be held up."""

    def __init__(self, url: str, raw: Any, queue: str) -> None:
        self.raw = raw
        self.queue = queue
        self.queues = [*(f"{queue}:{n}" for n in range(COUNT)), queue]
        self.gate = asyncio.Event()
        self.config = Config(url=url, queues=tuple(self.queues), concurrency=1, shutdown_grace=PATIENCE)
        self.app = app = App(queue=queue, shards=COUNT)

        @app.task
        async def hold() -> None:
            await self.gate.wait()

        @app.task
        async def quick() -> str:
            return current_job().queue

    def schedule(self, queue: str, job: str, task: str = "quick") -> None:
        self.raw.hset(keys.job(queue, job), "payload", f'{{"task":"{task}"}}')
        self.raw.zadd(keys.schedule(queue), {job: 0})

    def waiting(self, queue: str) -> list[str]:
        found = self.raw.zrange(f"{keys.root(queue)}idle", 0, -1)
        return [worker if isinstance(worker, str) else worker.decode() for worker in found]

    async def all_wait(self, running: System) -> None:
        """Wait until each worker waits in each shard."""
        workers = {worker.id for worker in running.workers}
        await until(lambda: all({*self.waiting(queue)} == workers for queue in self.queues))

    def scripts(self) -> int:
        """Return how many calls of scripts Redis has executed."""
        return self.raw.info("commandstats")["cmdstat_evalsha"]["calls"]

    def connections(self) -> list[dict[str, str]]:
        """Return the connections that receive notifications for idle workers."""
        return [client for client in self.raw.client_list() if client["ssub"] != "0"]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state of Redis that no event announces."""
    async with asyncio.timeout(PATIENCE):
        while not await asyncio.to_thread(condition):
            await asyncio.to_thread(pause)


@pytest.fixture
async def shards(own: EmbeddedRedis, client: Any, queue: str) -> AsyncGenerator[Shards]:
    shards = Shards(own.url, client, queue)
    yield shards
    shards.gate.set()


async def started(running: System, job: str) -> str:
    """Return the worker that starts a job."""
    event = await running.recorder.wait(events.Started, lambda event: job in event.ids)
    return event.worker


async def test_one_connection_brings_the_jobs_of_all_shards(shards: Shards) -> None:
    async with system(shards.config, shards.app) as running:
        await shards.all_wait(running)
        for n, queue in enumerate(shards.queues):
            shards.schedule(queue, f"job-{n}")
            await started(running, f"job-{n}")
        await shards.all_wait(running)
        (hears,) = shards.connections()
        assert int(hears["ssub"]) == COUNT + 1


@pytest.mark.parametrize("count", [8, 9])
async def test_up_to_eight_queues_have_own_connections_and_more_share_one(shards: Shards, count: int) -> None:
    """For the exchanges. The messages of all come on one connection in any case."""
    shards.queues = [f"{shards.queue}-{n}" for n in range(count)]
    config, app = structs.replace(shards.config, queues=tuple(shards.queues)), App(queue=shards.queues[0])
    app.task(name="quick")(nothing)
    others = len(shards.raw.client_list())
    async with system(config, app) as running:
        for n, queue in enumerate(shards.queues):
            shards.schedule(queue, f"job-{n}")
            await started(running, f"job-{n}")
        await shards.all_wait(running)
        opened = len(shards.raw.client_list()) - others
        assert len(shards.connections()) == 1
        assert opened <= 10 if count == 9 else opened > count


async def nothing() -> None:
    """A task."""


async def test_busy_worker_passes_jobs_on_to_a_free_one(shards: Shards) -> None:
    """The first to wait is notified first. It is busy, so the first job of each shard costs one more message."""
    async with system(shards.config, shards.app, workers=1) as running:
        await shards.all_wait(running)
        shards.schedule(shards.queue, "long", "hold")
        busy = await started(running, "long")
        free = running.work()
        await until(lambda: all(free.id in shards.waiting(queue) for queue in shards.queues))
        for n, queue in enumerate(shards.queues):
            shards.schedule(queue, f"job-{n}")
            assert await started(running, f"job-{n}") == free.id != busy
        shards.gate.set()


async def test_jobs_without_a_free_slot_run_when_one_is_free(shards: Shards) -> None:
    async with system(shards.config, shards.app) as running:
        await shards.all_wait(running)
        shards.schedule(shards.queue, "long", "hold")
        await started(running, "long")
        for n, queue in enumerate(shards.queues):
            shards.schedule(queue, f"job-{n}")
        await until(lambda: all(shards.raw.llen(keys.ready(queue)) == 1 for queue in shards.queues))
        shards.gate.set()
        for n in range(len(shards.queues)):
            await started(running, f"job-{n}")


async def test_worker_notified_while_writing_an_outcome_asks_before_declining(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exchange that writes the outcome asks for nothing, since ready was empty before. A slot is free."""
    send, receive, decline = ExchangeSender.send, Fetcher.on_notice, Store.decline
    notified, declined = asyncio.Event(), list[str]()

    async def send_until_notified(self: ExchangeSender, exchange: Exchange) -> None:
        await send(self, exchange)
        if [run.job.id for run in exchange.ended] == ["first"]:
            shards.schedule(shards.queue, "second")
            await notified.wait()

    async def note_notice(self: Fetcher, message: bytes) -> None:
        await receive(self, message)
        notified.set()

    def note_decline(self: Store, worker: str = "") -> Call[bool]:
        declined.append(worker)
        return decline(self, worker)

    async with system(structs.replace(shards.config, concurrency=2), shards.app) as running:
        await shards.all_wait(running)
        shards.schedule(shards.queue, "first", "hold")
        await started(running, "first")
        await shards.all_wait(running)
        monkeypatch.setattr(Fetcher, "on_notice", note_notice)
        monkeypatch.setattr(ExchangeSender, "send", send_until_notified)
        monkeypatch.setattr(Store, "decline", note_decline)
        shards.gate.set()
        await started(running, "second")
        assert declined == []


async def test_a_worker_notified_by_two_shards_at_once_asks_in_both(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that asks for the job of a notice leaves slots for the others until the reply comes."""
    monkeypatch.setattr(beginning, "BEGIN_WITHIN", float("inf"))
    monkeypatch.setattr(beginning, "KNOWN_FOR", float("inf"))
    send, decline, settled = ExchangeSender.send, Store.decline, asyncio.Event()
    asked, declined = set[ExchangeSender](), list[str]()

    async def send_when_settled(self: ExchangeSender, exchange: Exchange) -> None:
        if exchange.hold:
            asked.add(self)
            if len(asked) == 2:
                settled.set()
            await settled.wait()
        await send(self, exchange)

    def note_decline(self: Store, worker: str = "") -> Call[bool]:
        declined.append(worker)
        settled.set()
        return decline(self, worker)

    async with system(structs.replace(shards.config, concurrency=4), shards.app) as running:
        for n in range(2):  # so that it knows that their jobs begin quickly, and asks for several
            await shards.all_wait(running)
            shards.schedule(shards.queues[n], f"quick-{n}")
            await started(running, f"quick-{n}")
        await shards.all_wait(running)
        monkeypatch.setattr(ExchangeSender, "send", send_when_settled)
        monkeypatch.setattr(Store, "decline", note_decline)
        for n in range(2):
            shards.schedule(shards.queues[n], f"job-{n}")
        for n in range(2):
            await started(running, f"job-{n}")
        assert declined == []


async def test_stopping_worker_leaves_the_waiting_list(shards: Shards) -> None:
    async with system(shards.config, shards.app, workers=2) as running:
        await shards.all_wait(running)
        shards.schedule(shards.queue, "long", "hold")
        stopping = await started(running, "long")
        (other,) = [worker for worker in running.workers if worker.id != stopping]
        next(worker for worker in running.workers if worker.id == stopping).stop()
        await until(lambda: all(shards.waiting(queue) == [other.id] for queue in shards.queues))
        for n, queue in enumerate(shards.queues):
            shards.schedule(queue, f"job-{n}")
            assert await started(running, f"job-{n}") == other.id
        shards.gate.set()


async def test_a_lost_connection_loses_no_job(shards: Shards) -> None:
    async with system(shards.config, shards.app) as running:
        for n in range(5):
            await shards.all_wait(running)
            (hears,) = shards.connections()
            # The job may be ready before the worker listens again, or after.
            shards.raw.client_kill_filter(_id=hears["id"])
            shards.schedule(shards.queues[n % COUNT], f"job-{n}")
            await started(running, f"job-{n}")


async def test_a_silent_connection_is_tested_and_replaced(own: EmbeddedRedis, client: Any, queue: str) -> None:
    async with Proxy(("127.0.0.1", own.port or 0)) as proxy:
        shards = Shards(own.url, client, queue)
        config = structs.replace(
            shards.config,
            url=f"redis://{proxy.host}:{proxy.port}",
            probe_interval=0.2,
            reply_timeout=0.2,
            idle_heartbeat=3600.0,
            idle_lease=7300.0,
        )
        async with system(config, shards.app) as running:
            await shards.all_wait(running)
            (hears,) = shards.connections()
            proxy.swallow("down")
            await until(lambda: hears["id"] not in [client["id"] for client in shards.connections()])
            proxy.heal()
            await until(lambda: bool(shards.connections()))
            await shards.all_wait(running)
            shards.schedule(shards.queues[0], "job")
            await started(running, "job")


async def test_worker_that_hears_canaries_neither_tests_its_connection_nor_asks(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested, ping = list[Subscription](), Subscription.ping

    def note_ping(self: Subscription, answered: Callable[[], None]) -> None:
        tested.append(self)
        ping(self, answered)

    monkeypatch.setattr(Subscription, "ping", note_ping)
    config = structs.replace(shards.config, probe_interval=0.5, idle_heartbeat=3600.0, idle_lease=7300.0)
    async with system(config, shards.app, dispatch=False) as running:
        await shards.all_wait(running)
        tested.clear()
        before, sent, end = shards.scripts(), 0, time.monotonic() + 2 * running.runtime.times.probe_interval
        while time.monotonic() < end:
            await running.sender.send(Store(shards.queue).dispatch(limit=1, cap=1, canary="d"))
            sent += 1
        assert (tested, shards.scripts() - before) == ([], sent)


@pytest.mark.parametrize("found", ["by a heartbeat", "by a test of the connection"])
@pytest.mark.parametrize("lost", ["idle", "everything"])
async def test_a_worker_that_redis_has_forgotten_asks_again(shards: Shards, lost: str, found: str) -> None:
    config = structs.replace(shards.config, heartbeat=0.1, idle_heartbeat=0.1, idle_lease=60.0)
    if found == "by a test of the connection":
        config = structs.replace(config, probe_interval=0.1, idle_heartbeat=3600.0, idle_lease=7300.0)
    async with system(config, shards.app) as running:
        await shards.all_wait(running)
        if lost == "everything":
            shards.raw.flushall()
        else:
            shards.raw.delete(*(f"{keys.root(queue)}idle" for queue in shards.queues))
        await shards.all_wait(running)
        await until(lambda: all(shards.raw.exists(f"{keys.root(queue)}programs") for queue in shards.queues))
        shards.schedule(shards.queue, "job")
        await started(running, "job")


async def test_job_offered_to_a_vanished_worker_goes_to_another(shards: Shards) -> None:
    """Redis does not know yet that its machine is gone."""
    config = structs.replace(shards.config, lease=0.6, heartbeat=0.2)
    with closing(shards.raw.pubsub()) as vanished:
        vanished.ssubscribe(keys.idle(shards.queue, "vanished"))
        assert vanished.get_sharded_message(timeout=PATIENCE)["type"] == "ssubscribe"
        shards.raw.zadd(f"{keys.root(shards.queue)}idle", {"vanished": 0})
        async with system(config, shards.app) as running:
            await until(lambda: len(shards.waiting(shards.queue)) == 2)
            shards.schedule(shards.queue, "job")
            assert await started(running, "job") == running.workers[0].id
        assert vanished.get_sharded_message(timeout=PATIENCE)["type"] == "smessage"


async def test_jobs_fetched_with_a_lost_reply_are_found_without_a_heartbeat(shards: Shards) -> None:
    """They fill the list, so the worker can neither fetch nor wait."""
    config = structs.replace(shards.config, heartbeat=600.0, lease=3600.0, idle_heartbeat=3600.0, idle_lease=7300.0)
    async with system(config, shards.app) as running:
        await shards.all_wait(running)
        worker = running.workers[0].id
        shards.raw.hset(keys.job(shards.queue, "lost"), "payload", '{"task":"quick"}')
        shards.raw.rpush(keys.processing(shards.queue, worker), "lost")
        shards.schedule(shards.queue, "job")  # it wakes the worker
        assert await started(running, "lost") == await started(running, "job") == worker


@pytest.fixture
async def spread(server: EmbeddedRedis, queue: str) -> AsyncGenerator[tuple[Cluster, Shards]]:
    """A queue with shards on the primaries of a cluster. Heartbeats, which would find lost jobs, are rare."""
    with Cluster(server.server, replicas=3) as cluster, cluster.foreign_client() as raw:
        cluster.wait_for_replicas()
        shards = Shards(cluster.url, raw, queue)
        shards.config = structs.replace(shards.config, idle_heartbeat=3600.0, idle_lease=7300.0)
        yield cluster, shards


@pytest.mark.extra
async def test_a_shard_whose_slot_moves_wakes_its_workers_from_the_new_node(spread: tuple[Cluster, Shards]) -> None:
    cluster, shards = spread
    async with system(shards.config, shards.app) as running:
        await shards.all_wait(running)
        for n, queue in enumerate(shards.queues):
            to = next(node for node in cluster.nodes[:3] if node is not cluster.primary(queue))
            await asyncio.to_thread(cluster.move, queue, to)
            shards.schedule(queue, f"job-{n}")
            await started(running, f"job-{n}")
        await shards.all_wait(running)


@pytest.mark.extra
async def test_shards_of_a_primary_that_dies_wake_their_workers_from_the_replica(
    spread: tuple[Cluster, Shards],
) -> None:
    cluster, shards = spread
    async with system(shards.config, shards.app) as running:
        await shards.all_wait(running)
        old = cluster.primary(shards.queue)
        old.kill()
        await asyncio.to_thread(cluster.wait_for_failover, old, shards.queue)
        for n, queue in enumerate(shards.queues):
            shards.schedule(queue, f"job-{n}")
            await started(running, f"job-{n}")
