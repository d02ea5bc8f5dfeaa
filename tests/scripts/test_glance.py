"""The script `glance`: which of many queues have something to look after."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.store.dispatchers import Seen
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender

NOTHING = Seen(None, gated=False, workers=False, recurs=False)

COMMANDS = {
    "schedule": (("ZADD", "schedule", "12.5", "x"), Seen(12.5, gated=False, workers=False, recurs=False)),
    "endless": (("ZADD", "schedule", "+inf", "x"), Seen(float("inf"), gated=False, workers=False, recurs=False)),
    "backlog": (("ZADD", "backlog", "1", "x"), Seen(None, gated=True, workers=False, recurs=False)),
    "throttled": (("ZADD", "throttled", "1", "g"), Seen(None, gated=True, workers=False, recurs=False)),
    "leases": (("ZADD", "leases", "1", "w"), Seen(None, gated=False, workers=True, recurs=False)),
    "moving": (("HSET", "moving", "x", "1"), Seen(None, gated=False, workers=True, recurs=False)),
    "recurrences": (("ZADD", "recurrences", "1", "r"), Seen(None, gated=False, workers=False, recurs=True)),
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


async def test_it_reports_the_queues_that_have_something(client: Any, alone: BatchingSender) -> None:
    for queue, ((command, place, *words), _) in COMMANDS.items():
        client.execute_command(command, f"evsched:{{{queue}}}:{place}", *words)
    empty = [f"empty-{n}" for n in range(250)]
    client.hset("evsched:{empty-1}:job:x", "payload", "{}")
    names = [*empty[:125], *COMMANDS, *empty[125:]]
    found = await alone.send(Store("any").glance(names, now=7.0))
    assert found.now == 7.0
    assert found.seen == {queue: seen for queue, (_, seen) in COMMANDS.items()}


async def test_a_member_that_is_too_long_for_a_job_counts_as_due(client: Any, alone: BatchingSender) -> None:
    client.zadd("evsched:{q}:schedule", {"x" * ((1 << 20) + 1): 4e9})
    assert (await alone.send(Store("q").glance(["q"]))).seen["q"].nearest == 0.0
