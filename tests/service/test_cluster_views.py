"""A Redis Cluster whose nodes disagree: nodes that were removed, that have not joined, and that hear no other node."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from evsched import App, keys, process_events
from evsched.config import Config
from evsched.errors import StoreDown
from evsched.services.service import check_server, unsafe_settings
from evsched.telemetry.process_telemetry import Telemetry
from evsched.transport.address import parse
from evsched.transport.embedded import EmbeddedRedis, find_server
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import Topology, topology
from tests.service.test_cluster import queues_of_all, serving
from tests.support.cli import Cli
from tests.support.cluster import Cluster, slot_of
from tests.support.system import System, system
from tests.support.web import get, scrape

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


@contextmanager
def with_spare(server: EmbeddedRedis) -> Generator[tuple[Cluster, EmbeddedRedis, str]]:
    """Start a cluster; yield it, a replica in it, and the URL that names the replica first."""
    with Cluster(server.server, replicas=1) as cluster:
        cluster.wait_for_replicas()
        spare = cluster.nodes[-1]
        cluster.until(lambda: all(knows_replica(cluster, node) for node in cluster.nodes), "a node does not know it")
        yield cluster, spare, f"redis+cluster://127.0.0.1:{spare.port},127.0.0.1:{cluster.nodes[0].port}"


def knows_replica(cluster: Cluster, node: EmbeddedRedis) -> bool:
    return any(len(nodes) > 1 for _, _, *nodes in cluster.client(node).execute_command("CLUSTER", "SLOTS"))


def remove(cluster: Cluster, node: EmbeddedRedis) -> None:
    """Remove a node, as `redis-cli --cluster del-node` does: it runs on, alone and without slots."""
    name = cluster.id_of(node)
    for other in cluster.nodes:
        if other is not node:
            cluster.client(other).execute_command("CLUSTER", "FORGET", name)
    cluster.client(node).execute_command("CLUSTER", "RESET", "SOFT")


@pytest.mark.extra
async def test_processes_that_start_do_not_believe_a_removed_node(server: EmbeddedRedis) -> None:
    with with_spare(server) as (cluster, spare, url):
        queues = queues_of_all(cluster)
        await asyncio.to_thread(remove, cluster, spare)
        sender = BatchingSender(url)
        assert await check_server(sender, url)
        await sender.close()
        async with serving(url, queues) as scene:
            for queue in queues:
                await scene.handle.using(queue=queue).enqueue(queue, 0)
                await scene.all_ran(queue, 1)


@pytest.mark.extra
async def test_running_processes_do_not_believe_a_node_that_is_removed(server: EmbeddedRedis) -> None:
    with with_spare(server) as (cluster, spare, url):
        queues, known = queues_of_all(cluster), topology(url)
        assert known is not None
        async with serving(url, queues) as scene:
            await asyncio.to_thread(remove, cluster, spare)
            known.outdated()  # as after the safety cap
            for queue in queues:
                await scene.handle.using(queue=queue).enqueue(queue, 0)
                await scene.all_ran(queue, 1)
            assert not scene.recorder.of(process_events.RedisDown)


@pytest.fixture(scope="module")
def alone(server: EmbeddedRedis) -> Generator[Cluster]:
    """A node that has not joined a cluster: it has no slots."""
    with Cluster(server.server, primaries=1) as cluster:
        cluster.client(cluster.nodes[0]).execute_command("CLUSTER", "DELSLOTSRANGE", 0, 16383)
        yield cluster


async def test_without_a_node_that_has_slots_a_process_that_starts_says_so(alone: Cluster) -> None:
    sender = BatchingSender(alone.url)
    for check in (check_server(sender, alone.url), unsafe_settings(sender)):
        with pytest.raises(StoreDown, match="belongs to no cluster: it was removed, or has not joined yet"):
            await check
    await sender.close()


def test_without_a_node_that_has_slots_the_doctor_reports_a_fault(alone: Cluster, tmp_path: Path) -> None:
    done = Cli(alone.url, tmp_path).run("doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert "fault   cluster: no node of the cluster" in done.stdout
    assert "redis-cli --cluster check" in done.stdout


@asynccontextmanager
async def pages(config: Config, *, dispatch: bool) -> AsyncGenerator[tuple[System, str]]:
    """Yield the URL of the pages of a dispatcher, or else of a worker, in a cluster."""
    async with (
        system(config, App(queue=config.queues[0]), workers=not dispatch, dispatch=dispatch) as running,
        Telemetry(running.runtime, running.events, "1") as telemetry,
    ):
        if dispatch:
            assert running.cluster is not None
            telemetry.of_dispatcher(running.cluster)
        else:
            telemetry.of_worker(running.workers[0])
        yield running, (await running.recorder.wait(process_events.Listening)).url


@pytest.mark.parametrize("dispatch", [False, True])
async def test_process_is_not_ready_but_serves_metrics_while_no_node_has_slots(
    server: EmbeddedRedis, *, dispatch: bool
) -> None:
    with Cluster(server.server, primaries=1) as cluster:
        client = cluster.client(cluster.nodes[0])
        config = Config(url=cluster.url, queues=("q",), metrics_port=0, probe_interval=0.2)
        async with pages(config, dispatch=dispatch) as (running, url):
            if dispatch:
                await running.recorder.wait(process_events.NotificationsProven)
            assert (await get(f"{url}/readyz"))[0] == 200
            client.execute_command("CLUSTER", "DELSLOTSRANGE", 0, 16383)
            down = await running.recorder.wait(process_events.RedisDown)
            assert (await get(f"{url}/readyz"))[0] == 503
            assert (await scrape(url))("redis_up") == 0
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            await running.recorder.wait(process_events.RedisUp, lambda event: event.who == down.who)


@pytest.mark.extra
async def test_a_node_that_hears_no_other_node_is_not_believed() -> None:
    with Cluster(find_server("valkey"), replicas=3, enable_debug_command="yes") as cluster:
        cluster.wait_for_replicas()
        queue, other, *_ = queues_of_all(cluster)
        deaf = cluster.primary(queue)
        url = f"redis+cluster://127.0.0.1:{deaf.port}," + cluster.url.partition("://")[2]
        async with serving(url, (queue, other)) as scene:
            cluster.client(deaf).execute_command("DEBUG", "DROP-CLUSTER-PACKET-FILTER", -2)
            heir = await asyncio.to_thread(cluster.wait_for_failover, deaf, queue)
            cluster.until(lambda: "cluster_state:fail" in info(cluster, deaf), "it does not notice that it is deaf")
            for number in range(3):
                await scene.handle.using(queue=queue).enqueue(queue, number)
            await scene.all_ran(queue, 3)
            for blocking in (False, True):
                started = Topology(parse(url))  # of a program that starts now
                assert await started.owner(keys.root(queue), blocking=blocking) == ("127.0.0.1", heir.port)


def info(cluster: Cluster, node: EmbeddedRedis) -> str:
    return cluster.client(node).execute_command("CLUSTER", "INFO")


async def test_a_slot_without_an_owner_is_looked_for_at_other_nodes(server: EmbeddedRedis) -> None:
    with Cluster(server.server) as cluster:
        queue, other, _ = queues_of_all(cluster)
        owner, ignorant = cluster.primary(queue), cluster.primary(other)
        known = Topology(parse(f"redis+cluster://127.0.0.1:{ignorant.port},127.0.0.1:{owner.port}"))
        cluster.client(ignorant).execute_command("CLUSTER", "DELSLOTS", slot_of(queue))
        assert await known.owner(keys.root(queue)) == ("127.0.0.1", owner.port)


@pytest.mark.extra
def test_the_doctor_examines_the_cluster_as_a_whole(server: EmbeddedRedis, tmp_path: Path) -> None:
    with with_spare(server) as (cluster, spare, url):
        for node in cluster.nodes:
            cluster.client(node).config_set("cluster-require-full-coverage", "yes")
        found = findings(url, tmp_path)
        assert found["cluster-coverage"] == ["warning"] * 3
        assert found["cluster-replicas"] == ["warning"] * 2
        assert found["min-replicas"] == ["info"]
        assert not found.keys() & {"cluster-node", "cluster-slots", "cluster-versions", "replica-lag"}
        remove(cluster, spare)
        cluster.client(cluster.nodes[0]).config_set("min-replicas-to-write", "1")
        found = findings(url, tmp_path)
        assert found["cluster-node"] == ["warning"]
        assert found["cluster-replicas"] == ["info"]
        assert found["min-replicas"] == ["fault"]


def findings(url: str, folder: Path) -> dict[str, list[str]]:
    """Return the levels of the doctor's findings, by check."""
    found = defaultdict[str, list[str]](list)
    for one in json.loads(Cli(url, folder).run("doctor", "--json").stdout):
        found[one["check"]].append(one["level"])
    return found
