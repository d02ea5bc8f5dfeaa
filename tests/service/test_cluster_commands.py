"""Commands that look at a whole Redis look at every primary of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from evsched import App, JobDead, Retry, events, keys, process_events
from evsched.client.client import Client, SyncClient
from evsched.client.operations import Wait
from evsched.client.queue_names import find_queues
from evsched.client.target_tasks import ForwardJob, target_task
from evsched.client.task_handle import TaskHandle
from evsched.config import Config
from evsched.diagnostics.standstill import find_standstill
from evsched.errors import StoreRefused
from evsched.lease import Times
from evsched.runtime.loops import Runtime
from evsched.services.scale_to_zero import ReadyWatch
from evsched.services.service import unsafe_settings
from evsched.services.worker_process import WorkerReady
from evsched.store import server as about
from evsched.store.client_calls import New
from evsched.store.queue import Announced
from evsched.store.store import Store
from evsched.targets.forward import RETRY, Forwarder, read_destinations
from evsched.telemetry.metrics import Metrics
from evsched.telemetry.process_telemetry import Depths
from evsched.testing import Clock
from evsched.top import collector
from evsched.top.collector import Top
from evsched.transport.call import Call, text
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from evsched.transport.subscription import Subscription
from evsched.worker.status_reporter import StatusReporter
from tests.service.test_rights import USERS, words_of
from tests.support.cli import Cli
from tests.support.cluster import JOB, Cluster, at, queue_on, schedule
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder
from tests.support.system import system

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def running(server: EmbeddedRedis) -> Generator[Cluster]:
    with Cluster(server.server) as found:
        yield found


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    for node in running.nodes:
        running.client(node).flushdb()
    return running


@pytest.fixture
def queues(cluster: Cluster) -> list[str]:
    """One queue for each of the nodes, in their order."""
    return [queue_on(cluster, node) for node in cluster.nodes]


@pytest.fixture
def cli(cluster: Cluster, tmp_path: Path) -> Cli:
    return Cli(cluster.url, tmp_path)


@contextmanager
def setting(cluster: Cluster, node: EmbeddedRedis, name: str, value: object) -> Generator[None]:
    """Change a setting of one node for a while."""
    client = cluster.client(node)
    (before,) = client.config_get(name).values()
    client.config_set(name, value)
    try:
        yield
    finally:
        client.config_set(name, before)


@pytest.fixture
async def sender(cluster: Cluster) -> Any:
    found = BatchingSender(cluster.url)
    yield found
    await found.close()


# Queues.


async def test_the_queues_of_all_nodes_are_found(cluster: Cluster, queues: list[str], cli: Cli) -> None:
    for queue in queues:
        schedule(cluster, queue)
    rows = await asyncio.to_thread(cli.json, "queues")
    assert {row["queue"]: row["schedule"] for row in rows} == dict.fromkeys(queues, 1)
    client = Client(cluster.url)
    assert await client.run(find_queues()) == sorted(queues)
    await client.close()


@pytest.mark.parametrize("number", range(3))
def test_a_dispatcher_knows_only_the_queues_of_its_node(cluster: Cluster, queues: list[str], number: int) -> None:
    owner = next(node for node in cluster.nodes if _owns(cluster, node, keys.QUEUES))
    cluster.client(owner).sadd(keys.QUEUES, "known")
    for queue in queues:
        schedule(cluster, queue)
    with (
        cluster.client(cluster.nodes[number]).pubsub() as dispatcher,
        closing(SyncClient(cluster.url)) as client,
    ):
        dispatcher.subscribe(keys.canary_message("x"))
        assert dispatcher.get_message(timeout=PATIENCE)["type"] == "subscribe"
        others = [queue for queue in queues if queue != queues[number]]
        assert client.run(find_queues()) == sorted(["known", *others])


def _owns(cluster: Cluster, node: EmbeddedRedis, key: str) -> bool:
    slot = cluster.client(node).execute_command("CLUSTER", "KEYSLOT", key)
    return any(
        first <= slot <= last and port == node.port
        for first, last, (_, port, *_), *_ in cluster.client(node).execute_command("CLUSTER", "SLOTS")
    )


# Workers.


async def test_top_has_the_status_of_workers_of_all_nodes(
    cluster: Cluster, queues: list[str], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "_PATIENCE", PATIENCE)
    waits, reply, wait = asyncio.Event(), StatusReporter._reply, Top._wait  # pyright: ignore[reportPrivateUsage]

    async def wait_noted(top: Top, expected: int) -> None:
        waits.set()
        await wait(top, expected)

    async def reply_late(reporter: StatusReporter) -> None:
        await waits.wait()
        await reply(reporter)

    monkeypatch.setattr(Top, "_wait", wait_noted)
    monkeypatch.setattr(StatusReporter, "_reply", reply_late)
    app, begun, goes_on = App(cluster.url, queue=queues[0]), asyncio.Semaphore(0), asyncio.Event()

    @app.task
    async def hold() -> None:
        begun.release()
        await goes_on.wait()

    top = Top(cluster.url)
    async with system(Config(url=cluster.url, queues=tuple(queues)), app) as here:
        await here.recorder.wait(events.ControlOpened)
        for queue in queues:
            await hold.using(queue=queue, id=f"in-{queue}").enqueue()
            await asyncio.wait_for(begun.acquire(), PATIENCE)
        try:
            look = await top.look()
            assert set(look.stats) == {*queues}
            assert {status.queue: [run.id for run in status.runs] for status in look.statuses} == {
                queue: [f"in-{queue}"] for queue in queues
            }
            rows = await asyncio.to_thread(cli.json, "workers")
            assert {row["queue"]: row["held"] for row in rows} == dict.fromkeys(queues, 1)
        finally:
            goes_on.set()
            await top.close()


async def test_top_finds_the_queues_of_all_nodes(cluster: Cluster, queues: list[str]) -> None:
    for queue in queues:
        schedule(cluster, queue)
    top = Top(cluster.url)
    try:
        assert set((await top.look()).stats) == {*queues}
    finally:
        await top.close()


async def test_message_published_at_one_node_is_received_at_all(cluster: Cluster, sender: BatchingSender) -> None:
    """Progress, cancellations and requests for the status are published at the node of their queue."""
    for node in await sender.nodes():
        subscription = Subscription(cluster.url, node=node)
        await subscription.open([], ["channel"])
        for other in cluster.nodes:
            cluster.client(other).publish("channel", str(other.port))
        received = set[str]()
        async with asyncio.timeout(PATIENCE):
            async for _, message in subscription.messages():
                received.add(message.decode())
                if len(received) == 3:
                    break
        assert received == {str(other.port) for other in cluster.nodes}
        await subscription.close()


async def test_a_client_waits_for_a_reply_at_the_node_of_its_queue(cluster: Cluster, queues: list[str]) -> None:
    client = Client(cluster.url)
    for queue in queues:
        raw = cluster.client(cluster.primary(queue))
        raw.rpush(f"{keys.root(queue)}reply:x", "end")
        assert await client.perform(Wait(client.store(queue).wait_reply("x", PATIENCE), PATIENCE)) == b"end"
    await client.close()


async def test_a_parent_without_processes_is_woken_at_the_node_of_its_queue(
    cluster: Cluster, queues: list[str], sender: BatchingSender
) -> None:
    recorder = Recorder()
    for queue in queues:
        store, config = Store(queue), Config(url=cluster.url)
        last = WorkerReady("w", [queue], cluster.url)
        async with ReadyWatch(config, Times(config), last, recorder, lambda _: Announced()) as watch:
            waiting = asyncio.ensure_future(watch.wait(asyncio.Event()))
            clients = Call(("INFO", "clients"), text, near=keys.root(queue))
            async with asyncio.timeout(PATIENCE):  # Redis sends no event when a client blocks
                while "blocked_clients:1\r" not in await sender.send(clients):
                    assert not recorder.of(process_events.RedisFailed)
            await sender.send(store.enqueue([New("a", JOB.encode())]))
            await sender.send(store.dispatch(limit=10, cap=1000))
            assert await asyncio.wait_for(waiting, PATIENCE) == (queue, "ready")


# The doctor.


def test_the_doctor_names_the_node_of_each_finding(cluster: Cluster, cli: Cli) -> None:
    first, second, third = cluster.nodes
    with (
        setting(cluster, first, "notify-keyspace-events", ""),
        setting(cluster, second, "maxmemory", 10**9),
        setting(cluster, second, "maxmemory-policy", "allkeys-lru"),
        setting(cluster, third, "appendfsync", "always"),
    ):
        found = cli.findings()
        assert {(one["check"], one["where"]) for one in found} == {
            ("cluster-replicas", "Redis Cluster"),
            ("notifications", f"Redis, notify-keyspace-events, {at(first)}"),
            ("canary", f"evsched:{{{canary_queue(cluster, first)}}}:canary, {at(first)}"),
            ("eviction", f"Redis, maxmemory-policy, {at(second)}"),
            ("appendfsync", f"Redis, appendfsync, {at(first)}"),
            ("appendfsync", f"Redis, appendfsync, {at(second)}"),
        }
        (repaired,) = [one for one in cli.findings("--repair") if one["repaired"]]
        assert (repaired["check"], repaired["where"]) == (
            "notifications",
            f"Redis, notify-keyspace-events, {at(first)}",
        )
        assert not [one for one in cli.findings() if one["check"] in ("notifications", "canary")]


def canary_queue(cluster: Cluster, node: EmbeddedRedis) -> str:
    """Return the queue with which the doctor tests a node: the default one, if the node has it."""
    return "default" if cluster.primary("default") is node else queue_on(cluster, node, "evsched-idle-")


def test_the_doctor_of_one_queue_looks_at_its_node_alone(cluster: Cluster, queues: list[str], cli: Cli) -> None:
    schedule(cluster, queues[1])
    found = cli.findings("--queue", queues[1])
    assert {one["where"] for one in found if one["check"] == "appendfsync"} == {
        f"Redis, appendfsync, {at(cluster.nodes[1])}"
    }


def test_the_audit_checks_the_jobs_of_all_nodes(cluster: Cluster, queues: list[str], cli: Cli) -> None:
    for queue in queues:
        cluster.client(cluster.primary(queue)).hset(f"{keys.root(queue)}job:lost", "payload", JOB)
    found = [one["where"] for one in cli.findings() if one["where"].endswith("job lost")]
    assert sorted(found) == sorted(f"queue {queue}, job lost" for queue in queues)


def test_a_node_that_is_named_as_one_redis_is_reported(cluster: Cluster, cli: Cli) -> None:
    (found,) = cli.findings("--url", f"redis://127.0.0.1:{cluster.nodes[1].port}")
    assert (found["check"], found["level"]) == ("cluster", "fault")
    assert "redis+cluster://" in found["mend"]


async def test_a_standstill_counts_the_dispatchers_of_the_queues_node(
    cluster: Cluster, queues: list[str], sender: BatchingSender
) -> None:
    with cluster.client(cluster.nodes[1]).pubsub() as dispatcher:
        dispatcher.subscribe(keys.canary_message("x"))
        assert dispatcher.get_message(timeout=PATIENCE)["type"] == "subscribe"
        for queue in queues:
            schedule(cluster, queue, due=0)
        found = await find_standstill(sender, queues, watch=0.05)
    said = {one.where: one.what.partition(": ")[2] for one in found if one.check == "not-dispatched"}
    none = "no dispatcher is connected"
    assert said == {
        f"queue {queues[0]}": none,
        f"queue {queues[1]}": "1 dispatcher on this Redis, but none serves this queue",
        f"queue {queues[2]}": none,
    }


def test_users_of_redis_conf_may_view_a_cluster_and_are_checked_per_node(
    cluster: Cluster, queues: list[str], cli: Cli
) -> None:
    for queue, node in zip(queues, cluster.nodes, strict=True):
        schedule(cluster, queue)
        for name, rules in USERS:
            if name != "default":
                cluster.client(node).execute_command("ACL", "SETUSER", name, *words_of(rules))
    observer, examiner = cluster.url_of("observer"), cluster.url_of("doctor")
    assert {row["queue"] for row in cli.json("queues", "--url", observer)} == {*queues}
    found = cli.findings("--role", "worker", "--url", examiner)
    assert {one["check"] for one in found} == {"appendfsync", "cluster-replicas", "no-dispatcher"}, found
    cluster.client(cluster.nodes[1]).execute_command("ACL", "SETUSER", "worker", "-cluster|slots")
    (lacking,) = [one for one in cli.findings("--role", "worker", "--url", examiner) if one["check"] == "rights"]
    assert lacking["where"] == f"user worker, {at(cluster.nodes[1])}"
    assert "CLUSTER SLOTS" in lacking["what"]


# Services.


async def test_unsafe_settings_of_any_node_are_reported_at_the_start(cluster: Cluster, sender: BatchingSender) -> None:
    node = cluster.nodes[2]
    with setting(cluster, node, "maxmemory", 10**9), setting(cluster, node, "maxmemory-policy", "allkeys-lru"):
        (found,) = await unsafe_settings(sender)
    assert found.what.endswith(f"({at(node)})")
    assert await unsafe_settings(sender) == []


@pytest.mark.parametrize("number", range(3))
async def test_the_memory_of_the_fullest_node_is_measured(
    cluster: Cluster, sender: BatchingSender, number: int
) -> None:
    metrics, recorder = Metrics("0"), Recorder()
    used = cluster.client(cluster.nodes[number]).info("memory")["used_memory"]
    with setting(cluster, cluster.nodes[number], "maxmemory", 2 * used):
        await Depths(metrics, Runtime(Config(url=cluster.url), sender, recorder), list).refresh()
    assert not recorder.events
    assert 0.3 < (metrics.registry.get_sample_value("evsched_redis_memory_used_ratio") or 0.0) < 0.9
    assert abs(metrics.registry.get_sample_value("evsched_redis_clock_ahead_seconds") or 0.0) < 1.0


async def test_the_clock_of_a_test_begins_with_an_empty_cluster(
    cluster: Cluster, queues: list[str], sender: BatchingSender
) -> None:
    for queue in queues:
        schedule(cluster, queue)
    Clock(App(cluster.url), cluster.url).close()
    assert await sender.send_all([about.size().at(node) for node in await sender.nodes()]) == [0, 0, 0]


# What cannot work.


def forwarding(url: str, queue: str, *allowed: str, **urls: str) -> tuple[App, TaskHandle[..., Any]]:
    environment = {f"EVSCHED_FORWARD_URL_{name.upper()}": at for name, at in urls.items()}
    forwarder = Forwarder(read_destinations(allowed, environment), cluster=True)
    app = App(url, queue=queue, lifespan=lambda: forwarder)
    app.tasks.add(task := target_task("evsched.forward", ForwardJob, forwarder.forward, RETRY))
    return app, TaskHandle(app, task)


async def test_a_message_for_another_slot_ends_with_the_reason(cluster: Cluster, queues: list[str]) -> None:
    queue = queues[0]
    here, elsewhere = f"{{{queue}}}:news", "news"
    app, forward = forwarding(cluster.url, queue, "list:*", "channel:*")
    async with system(Config(url=cluster.url, queues=(queue,)), app):
        for destination in (f"list:{here}", f"channel:{elsewhere}"):
            assert await (await forward.enqueue(destination, 1)).result(PATIENCE) is None
        job = await forward.using(retry=Retry(attempts=5)).enqueue(f"list:{elsewhere}", 1)
        with pytest.raises(JobDead, match=f"the hash tag of the queue, such as list:{{{queue}}}:NAME"):
            await job.result(PATIENCE)
    assert cluster.client(cluster.primary(queue)).llen(here) == 1


async def test_messages_for_another_redis_arrive_at_all_nodes_of_a_cluster(cluster: Cluster, queues: list[str]) -> None:
    app, forward = forwarding(cluster.url, queues[0], "list@other:*", other=cluster.url)
    async with system(Config(url=cluster.url, queues=(queues[0],)), app):
        for queue in queues:
            job = await forward.using(retry=Retry(attempts=1)).enqueue(f"list@other:{{{queue}}}:l", 1)
            assert await job.result(PATIENCE) is None
            assert cluster.client(cluster.primary(queue)).llen(f"{{{queue}}}:l") == 1


def test_a_relay_of_the_ledger_refuses_a_cluster(cli: Cli) -> None:
    pytest.importorskip("psycopg")
    done = cli.run("ledger", "run", "--ledger-url", "postgresql://nowhere.invalid/x")
    assert done.returncode == 1
    assert "the ledger does not support Redis Cluster" in done.stderr


async def test_a_database_that_a_cluster_does_not_have_is_refused(cluster: Cluster) -> None:
    sender = BatchingSender(f"{cluster.url}/9999")  # Valkey 9 has some more than database 0
    with pytest.raises(StoreRefused, match=r"only database 0|a database that Redis does not have") as refused:
        await sender.send(about.size())
    assert refused.value.kind == "database"
    await sender.close()
