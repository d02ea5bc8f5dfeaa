"""Jobs move between shards of a cluster whose replicas fail: none is lost, and none runs twice, with the primary."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from evsched import events
from evsched.client.client import SyncClient
from evsched.client.reshard import Reshard, finish
from evsched.config import Config
from evsched.dispatcher.janitor import Mover
from evsched.errors import StoreDown
from evsched.runtime.loops import Runtime
from evsched.store import server as redis_server
from evsched.store.client_calls import New
from evsched.store.moves import MovingBatch
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.cli import Cli
from tests.support.cluster import Cluster
from tests.support.recorder import Recorder

JOBS = 30
SOURCE = "big"
TO = "big:0"


@pytest.fixture
def cluster(server: EmbeddedRedis) -> Generator[Cluster]:
    with Cluster(server.server, replicas=3) as found:
        assert found.primary(SOURCE) is not found.primary(TO)
        yield found


@pytest.fixture
def client(cluster: Cluster) -> Generator[SyncClient]:
    with closing(SyncClient(cluster.url)) as found:
        found.enqueue(SOURCE, [New(f"j{number}", b'{"task":"t"}', delay=6000.0) for number in range(JOBS)])
        cluster.wait_for_replicas()
        stores = [Store(queue) for queue in (SOURCE, TO, "near")]
        cluster.until(lambda: all(found.send(store.primary()).replicas for store in stores), "a replica is not known")
        with closing(cluster.client(cluster.primary(SOURCE))) as raw:
            raw.set(f"evsched:{{{SOURCE}}}:written", "")
            assert raw.wait(1, 20_000) == 1
        yield found


def replica_of(cluster: Cluster, queue: str) -> EmbeddedRedis:
    owner = cluster.primary(queue).port
    for node in cluster.nodes:
        with closing(cluster.client(node)) as raw:
            replication: Any = raw.info("replication")
        if replication["role"] == "slave" and replication["master_port"] == owner:
            return node
    raise AssertionError(f"the primary of {queue} has no replica")


def fail_over(cluster: Cluster, queue: str, dead: EmbeddedRedis | None = None) -> None:
    """Have its replica take the place of the primary of a queue. `dead`: the replica, if it is started only then."""
    victim = cluster.primary(queue)
    victim.kill()
    if dead is not None:
        dead.start()
    cluster.wait_for_failover(victim, queue)
    cluster.until_ready()


def depart(client: SyncClient) -> MovingBatch:
    names = [f"j{number}".encode() for number in range(JOBS)]
    batch = client.send(Store(SOURCE).depart(TO, "t", names)).batch
    assert batch is not None
    return batch


def places(client: SyncClient) -> dict[str, list[str]]:
    """Return where each job is: the queue of the schedule that has it, or `moving`."""
    found = dict[str, list[str]]()
    for queue in (SOURCE, TO):
        for job, *_ in client.send(Store(queue).front("schedule", 1000)):
            found.setdefault(job, []).append(queue)
    batch = client.send(Store(SOURCE).depart()).batch
    for member, _ in batch.jobs if batch else ():
        found.setdefault(member.decode(), []).append("moving")
    return found


def test_batch_stays_until_a_replica_of_its_destination_has_it(cluster: Cluster, client: SyncClient) -> None:
    replica, batch = replica_of(cluster, TO), depart(client)
    replica.kill()
    with pytest.raises(StoreDown, match=rf"queue {TO}: no replica has confirmed.*CLUSTER FORGET"):
        client.run(finish(Store(SOURCE), batch))
    fail_over(cluster, TO, replica)
    assert places(client) == {f"j{number}": ["moving"] for number in range(JOBS)}


@pytest.mark.extra
async def test_dispatcher_keeps_a_batch_until_a_destination_replica_has_it(
    cluster: Cluster, client: SyncClient, recorder: Recorder
) -> None:
    replica, _ = replica_of(cluster, TO), depart(client)
    replica.kill()
    sender = BatchingSender(cluster.url)
    mover = Mover(Runtime(Config(url=cluster.url), sender, recorder))
    with pytest.raises(StoreDown, match="no replica has confirmed"):
        await mover.step(SOURCE)
    replica.start()
    cluster.wait_for_replicas()
    await mover.step(SOURCE)
    await sender.close()
    assert [(event.moved, event.back) for event in recorder.of(events.MoveFinished)] == [(JOBS, 0)]
    fail_over(cluster, TO)
    assert places(client) == {f"j{number}": [TO] for number in range(JOBS)}


@pytest.mark.extra
@pytest.mark.parametrize("lost", [SOURCE, TO])
def test_no_job_leaves_while_a_replica_does_not_answer(
    cluster: Cluster, client: SyncClient, tmp_path: Path, lost: str
) -> None:
    replica = replica_of(cluster, lost)
    replica.kill()
    refused = Cli(cluster.url, tmp_path).run("queues", "shard", SOURCE, "1")
    assert refused.returncode == 1
    assert "0 moved before this failed: the same command does the rest" in refused.stderr
    assert f"queue {lost}: no replica has confirmed a move between shards within 3 s" in refused.stderr
    fail_over(cluster, lost, replica)
    assert places(client) == {f"j{number}": [SOURCE] for number in range(JOBS)}


def test_source_that_loses_its_last_writes_has_no_job_that_has_arrived(cluster: Cluster, client: SyncClient) -> None:
    """The replica fails after the first step, which it has."""
    client.send(redis_server.set_shards(SOURCE, 1))
    replica, work = replica_of(cluster, SOURCE), Reshard(SOURCE, 1, 1)
    killed = False
    perform = client.client.perform

    async def kill_behind_the_departure(step: Any) -> Any:
        nonlocal killed
        value = await perform(step)
        if getattr(step, "call", None) is not None and step.call.name == "depart" and len(step.call.words) > 7:
            replica.kill()
            killed = True
        return value

    client.client.perform = kill_behind_the_departure
    while client.run(work.step()):
        pass
    assert killed
    client.client.perform = perform
    assert work.moved == JOBS
    fail_over(cluster, SOURCE, replica)
    # `vacate` is lost, so the batch is on its way again. It has arrived, and the program that finishes it learns that.
    assert places(client) == {f"j{number}": [TO, "moving"] for number in range(JOBS)}
    batch = client.send(Store(SOURCE).depart()).batch
    assert batch is not None
    assert client.run(finish(Store(SOURCE), batch)).back == 0
    assert places(client) == {f"j{number}": [TO] for number in range(JOBS)}


def test_repeated_arrival_is_a_write_that_a_replica_confirms(cluster: Cluster, client: SyncClient) -> None:
    """Redis waits for the writes of one connection: a repeated call that wrote nothing would wait for nothing."""
    batch = depart(client)
    client.send(Store(TO).arrive(SOURCE, batch))
    with closing(cluster.client(cluster.primary(TO))) as raw:
        before: Any = raw.info("replication")
        client.send(Store(TO).arrive(SOURCE, batch))
        after: Any = raw.info("replication")
        written = raw.hget(f"evsched:{{{TO}}}:arrived", SOURCE)
    assert after["master_repl_offset"] - before["master_repl_offset"] >= len(written)


def test_batch_between_shards_of_one_server_waits_for_no_replica(cluster: Cluster, client: SyncClient) -> None:
    near = next(
        f"near:{number}" for number in range(64) if cluster.primary(f"near:{number}") is cluster.primary("near")
    )
    client.enqueue("near", [New("a", b'{"task":"t"}', delay=6000.0)])
    replica_of(cluster, "near").kill()
    batch = client.send(Store("near").depart(near, "t", [b"a"])).batch
    assert batch is not None
    assert client.run(finish(Store("near"), batch)).moved == 1
