"""`evsched queues plan`: where shards lie, and commands that even them out."""

from __future__ import annotations

import shlex
import subprocess
from contextlib import closing
from pathlib import Path

from evsched.client.client import SyncClient
from evsched.shards import Shards
from evsched.store import server as redis_server
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli
from tests.support.cluster import Cluster
from tests.support.patience import PATIENCE


def test_plan_spreads_shards_evenly_over_primaries_and_loses_no_job(server: EmbeddedRedis, tmp_path: Path) -> None:
    parts = Shards({"big": 5}).all_of("big")
    with Cluster(server.server) as cluster, closing(SyncClient(cluster.url)) as client:
        crowd = cluster.nodes[0]
        for part in parts:
            if cluster.primary(part) is not crowd:
                cluster.move(part, crowd)
        client.send(redis_server.set_shards("big", 5))
        for part in parts:
            client.enqueue(part, [New(f"{part}-{number}", b'{"task":"t"}', delay=600.0) for number in range(20)])
        cli = Cli(cluster.url, tmp_path)
        found = cli.json("queues", "plan", "big")
        assert sorted(len(names) for names in found["queues"]["big"].values()) == [0, 0, 6]
        assert len(found["moves"]) == 4
        shown = cli.run("queues", "plan").stdout
        for move in found["moves"]:
            assert all(command in shown for command in move["commands"])
            for command in move["commands"]:
                done = subprocess.run(
                    shlex.split(command), check=True, capture_output=True, text=True, timeout=PATIENCE
                )
                assert not done.stdout.startswith("ERR"), done.stdout
            # CLUSTER MIGRATESLOTS of Valkey moves the slot after its reply.
            to = int(move["to"].rpartition(":")[2])
            cluster.until(
                lambda shard=move["shard"], to=to: cluster.primary(shard).port == to, "the slot does not move"
            )
        after = cli.json("queues", "plan", "big")
        assert sorted(len(names) for names in after["queues"]["big"].values()) == [2, 2, 2]
        assert after["moves"] == []
        assert "the shards lie evenly" in cli.run("queues", "plan", "big").stdout
        assert [len(client.send(Store(part).front("schedule", 99))) for part in parts] == [20] * 6


def test_plan_says_when_there_is_nothing_to_plan(own: EmbeddedRedis, tmp_path: Path) -> None:
    cli = Cli(own.url, tmp_path)
    refused = cli.run("queues", "plan", "mail")
    assert refused.returncode == 1
    assert "mail: no shards" in refused.stderr
    with closing(SyncClient(own.url)) as client:
        client.send(redis_server.set_shards("mail", 2))
    refused = cli.run("queues", "plan")
    assert refused.returncode == 1
    assert "this Redis is not a cluster" in refused.stderr
