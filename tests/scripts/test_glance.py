"""The script `glance`: which of many queues have something to look after."""

from __future__ import annotations

from contextlib import closing
from itertools import count
from typing import Any

import pytest

from evsched import keys
from evsched.store.dispatcher_calls import Seen
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis, find_server
from evsched.transport.senders import BatchingSender, SyncSender
from tests.support.cluster import Cluster

NOTHING = Seen(None, gated=False, workers=False, recurs=False)
REFUSED = Seen(0.0, gated=True, workers=True, recurs=True, chores=True, batches=True)

COMMANDS = {
    "schedule": (("ZADD", "schedule", "12.5", "x"), Seen(12.5, gated=False, workers=False, recurs=False)),
    "endless": (("ZADD", "schedule", "+inf", "x"), Seen(float("inf"), gated=False, workers=False, recurs=False)),
    "backlog": (("ZADD", "backlog", "1", "x"), Seen(None, gated=True, workers=False, recurs=False)),
    "throttled": (("ZADD", "throttled", "1", "g"), Seen(None, gated=True, workers=False, recurs=False)),
    "leases": (("ZADD", "leases", "1", "w"), Seen(None, gated=False, workers=True, recurs=False)),
    "moving": (("HSET", "moving", "x", "1"), Seen(None, gated=False, workers=True, recurs=False)),
    "recurrences": (("ZADD", "recurrences", "1", "r"), Seen(None, gated=False, workers=False, recurs=True)),
    "chores": (("ZADD", "chores", "1", "x"), Seen(None, gated=False, workers=False, recurs=False, chores=True)),
    "batches": (("ZADD", "batches", "1", "b"), Seen(None, gated=False, workers=False, recurs=False, batches=True)),
    "ready": (("RPUSH", "ready", "x"), NOTHING),
    "dead": (("ZADD", "dead", "1", "x"), NOTHING),
    "limits": (("HSET", "limits", "paused", "1"), NOTHING),
    "wrong": (("SET", "schedule", "x"), Seen(0.0, gated=False, workers=False, recurs=False)),
}
"""By the queue: the command that fills it, and what is seen of it."""


@pytest.fixture
async def alone(own: EmbeddedRedis) -> Any:
    sender = BatchingSender(own.url)
    yield sender
    await sender.close()


async def test_glance_reports_the_queues_that_have_something(client: Any, alone: BatchingSender) -> None:
    for queue, ((command, place, *words), _) in COMMANDS.items():
        client.execute_command(command, f"evsched:{{{queue}}}:{place}", *words)
    empty = [f"empty-{n}" for n in range(250)]
    client.hset("evsched:{empty-1}:job:x", "payload", "{}")
    names = [*empty[:125], *COMMANDS, *empty[125:]]
    found = await alone.send(Store("any").at(7.0).glance(names))
    assert found.now == 7.0
    assert found.seen == {queue: seen for queue, (_, seen) in COMMANDS.items()}


async def test_a_member_that_is_too_long_for_a_job_counts_as_due(client: Any, alone: BatchingSender) -> None:
    client.zadd("evsched:{q}:schedule", {"x" * ((1 << 20) + 1): 4e9})
    assert (await alone.send(Store("q").glance(["q"]))).seen["q"].nearest == 0.0


@pytest.mark.parametrize("newest", [False, True])
def test_glance_reads_several_slots_without_blocking_other_scripts(server: EmbeddedRedis, *, newest: bool) -> None:
    """Valkey 9 refuses all scripts of a node after a command in a script that has keys of two slots."""
    with Cluster(find_server("valkey") if newest else server.server, primaries=2) as cluster:
        node, other = cluster.nodes
        names = (f"q{number}" for number in count())
        first, ready, empty, moving = (next(name for name in names if cluster.primary(name) is node) for _ in range(4))
        elsewhere = next(name for name in names if cluster.primary(name) is other)
        client = cluster.client(node)
        for queue in (first, moving):
            client.zadd(keys.schedule(queue), {"x": 12.5})
        for queue in (ready, moving):
            client.rpush(keys.ready(queue), "x")
        cluster.begin_to_move(moving, other)
        cluster.move_keys(node, other, [keys.schedule(moving)])
        with closing(SyncSender(node.url)) as sender:
            found = sender.send(Store(first).glance([ready, moving, empty, elsewhere, first]))
            assert found.seen == {
                ready: NOTHING,
                moving: REFUSED,
                elsewhere: REFUSED,
                first: Seen(12.5, gated=False, workers=False, recurs=False),
            }
            client.hset(keys.root(empty) + "tasks", "t", "{}")
            assert sender.send(Store(first).forget([ready, moving, empty, elsewhere, first])) == [empty]
            assert not client.keys(keys.root(empty) + "*")
            for queue in (first, ready, empty):
                sender.send(Store(queue).dispatch(limit=1, cap=1000))
        with closing(SyncSender(other.url)) as sender:
            assert sender.send(Store(elsewhere).glance([elsewhere, moving])).seen == {moving: REFUSED}
            sender.send(Store(elsewhere).dispatch(limit=1, cap=1000))
