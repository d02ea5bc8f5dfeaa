"""Commands find all queues: in the set while a dispatcher runs, otherwise by a scan of the keys too."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from evsched import App, events, process_events
from evsched.client.client import BlockingClient, SyncClient
from evsched.client.operations import Send, Step
from evsched.client.queue_names import find_queues
from evsched.config import Config
from evsched.errors import StoreRefused
from evsched.transport.embedded import EmbeddedRedis
from tests.support.system import system

SET = "evsched:{}:queues"


class Counted(SyncClient):
    """A client that records the commands that it sent."""

    def __init__(self, url: str) -> None:
        super().__init__(url, kind=Counting)
        assert isinstance(self.client, Counting)
        self.sent = self.client.sent

    def find_queues(self, *, past: bool = False) -> list[str]:
        return self.run(find_queues(past=past))


class Counting(BlockingClient):
    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self.sent: list[str] = []

    async def perform(self, step: Step) -> Any:
        if isinstance(step, Send):
            self.sent.append(step.call.name)
        return await super().perform(step)


@pytest.fixture
def counted(own: EmbeddedRedis) -> Generator[Counted]:
    counted = Counted(own.url)
    yield counted
    counted.close()


async def test_while_a_dispatcher_runs_only_the_set_is_read(
    own: EmbeddedRedis, client: Any, app: App, counted: Counted
) -> None:
    async with system(Config(url=own.url), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        client.zadd("evsched:{made-by-zadd}:schedule", {'{"task":"t"}': 4e9})
        await running.recorder.wait(events.QueueFound, lambda event: event.queue == "made-by-zadd")
        finder = running.dispatcher._finder  # pyright: ignore[reportPrivateUsage]
        await finder.step()
        assert await asyncio.to_thread(counted.find_queues) == ["made-by-zadd"]
    assert counted.sent == ["SMEMBERS", "PUBSUB"]


async def test_queues_with_nothing_but_a_past_are_found_if_asked_for(
    own: EmbeddedRedis, client: Any, app: App, counted: Counted
) -> None:
    for queue, key in (
        ("ended", "history"),
        ("hourly", "hour:1"),
        ("acted", "audit"),
        ("no", "arrived"),
        ("a b", "audit"),
    ):
        client.hset(f"evsched:{{{queue}}}:{key}", "x", "y")
    assert (counted.find_queues(), counted.find_queues(past=True)) == ([], ["acted", "ended", "hourly"])
    async with system(Config(url=own.url), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        client.zadd("evsched:{served}:schedule", {'{"task":"t"}': 4e9})
        await running.recorder.wait(events.QueueFound, lambda event: event.queue == "served")
        await running.dispatcher._finder.step()  # pyright: ignore[reportPrivateUsage]
        found = await asyncio.to_thread(counted.find_queues, past=True)
        assert found == ["acted", "ended", "hourly", "served"]
        client.execute_command("ACL", "SETUSER", "default", "-scan")
        assert await asyncio.to_thread(counted.find_queues, past=True) == ["served"]
        client.execute_command("ACL", "SETUSER", "default", "+scan")


def test_without_a_dispatcher_the_keys_are_scanned_too(client: Any, counted: Counted) -> None:
    client.sadd(SET, "idle")
    client.zadd("evsched:{made-by-zadd}:schedule", {'{"task":"t"}': 4e9})
    client.hset("evsched:{only-a-record}:job:x", "payload", "{}")
    assert counted.find_queues() == ["idle", "made-by-zadd"]
    assert counted.sent == ["SMEMBERS", "PUBSUB", "SCAN"]


def test_an_empty_redis_has_no_queues(counted: Counted) -> None:
    assert counted.find_queues() == []


def test_all_slices_of_many_keys_are_read(client: Any, counted: Counted) -> None:
    with client.pipeline() as pipe:
        for n in range(3000):
            pipe.zadd(f"evsched:{{q{n}}}:schedule", {"x": 4e9})
        pipe.execute()
    assert len(counted.find_queues()) == 3000
    assert counted.sent.count("SCAN") > 1


def test_a_set_key_of_another_type_is_ignored(client: Any, counted: Counted) -> None:
    client.set(SET, "x")
    client.zadd("evsched:{one}:schedule", {"x": 4e9})
    assert counted.find_queues() == ["one"]


def test_a_user_without_the_right_to_scan_is_refused(own: EmbeddedRedis, client: Any, counted: Counted) -> None:
    client.execute_command("ACL", "SETUSER", "default", "-scan")
    with pytest.raises(StoreRefused):
        counted.find_queues()
