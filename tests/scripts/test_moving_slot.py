"""A slot of a Redis Cluster that moves key by key: a script begins only where all of its queue is.

Redis checks the keys that are declared, before the script runs. The root is declared, and no key has that name. So
while the slot moves, the old owner answers ASK at once, and nothing is written. Otherwise a script would fail in the
middle, at the first key that has moved, with its first writes kept.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
import redis
from redis.exceptions import AskError, RedisError, TryAgainError

from evsched import keys
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.call import folder, script
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.support.cluster import Cluster

QUEUE = "moved"
VERBS = sorted(path.stem for path in folder().glob("[!_]*.lua"))


@pytest.fixture(scope="module")
def cluster(server: EmbeddedRedis) -> Generator[Cluster]:
    with Cluster(server.server, primaries=2) as found:
        yield found


@pytest.fixture(scope="module")
def moving(cluster: Cluster) -> tuple[EmbeddedRedis, EmbeddedRedis]:
    """The old and the new owner of a queue, whose schedule has moved already, and nothing else."""
    source = cluster.primary(QUEUE)
    target = next(node for node in cluster.nodes if node is not source)
    sender, store = SyncSender(source.url), Store(QUEUE)
    jobs = [New(f"j{number}", b'{"task":"x"}', delay=-1.0) for number in range(3)]
    sender.send(store.enqueue(jobs))
    sender.send(store.dispatch(limit=2, cap=1000))
    sender.send(store.start("w", (), hold=1, lease=15.0))
    sender.send(store.enqueue([New("later", b'{"task":"x"}', delay=1000.0)]))
    sender.close()
    cluster.begin_to_move(QUEUE, target)
    cluster.move_keys(source, target, [keys.schedule(QUEUE)])
    return source, target


def contents(cluster: Cluster) -> list[set[str]]:
    """Return each node's keys with their values."""
    found = list[set[str]]()
    for node in cluster.nodes:
        client: Any = redis.Redis(port=node.port or 0, protocol=2, driver_info=None, single_connection_client=True)
        items = set[str]()
        for name in client.scan_iter(count=1000):
            client.execute_command("ASKING")  # the new owner shows what it has received
            items.add(f"{name} {client.dump(name)!r}")
        found.append(items)
    return found


@pytest.mark.extra
@pytest.mark.parametrize("verb", VERBS)
def test_every_script_is_answered_ask_before_it_writes(
    cluster: Cluster, moving: tuple[EmbeddedRedis, EmbeddedRedis], verb: str
) -> None:
    source, _ = moving
    before = contents(cluster)
    with pytest.raises(AskError):
        cluster.client(source).eval(script(verb).source, 1, keys.root(QUEUE))
    assert contents(cluster) == before


def test_a_fetch_that_waits_for_a_job_is_answered_ask_or_tryagain(
    cluster: Cluster, moving: tuple[EmbeddedRedis, EmbeddedRedis]
) -> None:
    source, _ = moving
    client = cluster.client(source)
    with pytest.raises((AskError, TryAgainError)):
        client.blmove(keys.ready(QUEUE), keys.processing(QUEUE, "other"), 1, "LEFT", "RIGHT")
    with pytest.raises((AskError, TryAgainError)):
        client.blmove("evsched:{moved}:nothing", keys.processing(QUEUE, "other"), 1, "LEFT", "RIGHT")


def test_without_a_key_that_never_exists_a_script_would_fail_in_the_middle(
    cluster: Cluster, moving: tuple[EmbeddedRedis, EmbeddedRedis]
) -> None:
    """The reason for declaring the root and not a key of the queue: Redis's own behaviour in that case."""
    source, _ = moving
    script = "redis.call('RPUSH', KEYS[1], 'left behind') return redis.call('ZCARD', ARGV[1])"
    client = cluster.client(source)
    with pytest.raises(RedisError):
        client.eval(script, 1, keys.ready(QUEUE), keys.schedule(QUEUE))
    assert client.lrange(keys.ready(QUEUE), -1, -1) == ["left behind"]
