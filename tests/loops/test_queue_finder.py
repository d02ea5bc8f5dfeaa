"""How a dispatcher finds new queues: by their first event, or otherwise if that event is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evsched import App, events, process_events
from evsched.config import Config
from evsched.store.client_calls import New
from evsched.store.server import queue_names
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client
from tests.support.proxy import Proxy
from tests.support.system import System, system

SET = "evsched:{}:queues"


async def is_found(running: System, queue: str) -> None:
    """Wait until a queue is found and its due job is dispatched."""
    await running.recorder.wait(events.QueueFound, lambda event: event.queue == queue)
    await running.recorder.wait(events.Dispatched, lambda event: event.queue == queue)


async def are_in_the_set(running: System, *queues: str) -> None:
    """Wait until the set of all queues contains them."""
    async with asyncio.timeout(PATIENCE):
        while not set(queues) <= set(await running.sender.send(queue_names())):
            pass


async def test_a_new_queue_is_found_by_its_first_event(own: EmbeddedRedis, client: Any, app: App) -> None:
    async with system(Config(url=own.url), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        await running.sender.send(Store("brand-new").enqueue([New("x", b"{}")]))
        await is_found(running, "brand-new")


async def test_a_new_queue_whose_first_event_was_lost_is_found(own: EmbeddedRedis, client: Any, app: App) -> None:
    """The scan takes several slices, because 5,000 records exist too."""
    for n in range(5000):
        client.hset(f"evsched:{{other}}:job:{n}", "payload", "{}")
    async with Proxy(("127.0.0.1", own.port or 0)) as proxy:
        config = Config(url=f"redis://127.0.0.1:{proxy.port}/0", safety_cap=3600)
        async with system(config, app, workers=0) as running:
            await running.recorder.wait(process_events.NotificationsProven)
            for n in range(3):
                received = proxy.received["down"]
                proxy.swallow("down")
                client.zadd(f"evsched:{{gap-{n}}}:schedule", {'{"task":"t"}': 0})
                await proxy.until(lambda: proxy.received["down"] > received)  # noqa: B023
                proxy.heal()
                proxy.reset()
                await is_found(running, f"gap-{n}")


async def test_a_queue_in_the_set_is_found_without_a_scan(own: EmbeddedRedis, client: Any, app: App) -> None:
    async with system(Config(url=own.url, safety_cap=3600), app) as running:
        assert client.sismember(SET, app.queue)
        client.sadd(SET, "known")
        client.zadd("evsched:{known}:schedule", {'{"task":"t"}': 4e9})
        client.sadd(SET, "no name", b"\xff")
        finder = running.dispatcher._finder  # pyright: ignore[reportPrivateUsage]
        await finder._read()  # pyright: ignore[reportPrivateUsage]
        assert "known" in running.dispatcher.queues
        assert "no name" not in running.dispatcher.queues


async def test_a_worker_that_starts_announces_its_queue(own: EmbeddedRedis, app: App) -> None:
    async with system(Config(url=own.url, safety_cap=3600), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        assert app.queue not in running.dispatcher.queues
        running.work()
        await running.recorder.wait(events.QueueFound, lambda event: event.queue == app.queue)


async def test_a_dispatcher_adds_the_queues_that_it_finds_to_the_set(own: EmbeddedRedis, client: Any, app: App) -> None:
    async with system(Config(url=own.url), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        client.zadd("evsched:{one}:schedule", {'{"task":"t"}': 0})
        await is_found(running, "one")
        finder = running.dispatcher._finder  # pyright: ignore[reportPrivateUsage]
        await finder.step()
        assert client.smembers(SET) == {b"one"}


async def test_a_dispatcher_writes_a_lost_set_again(own: EmbeddedRedis, client: Any, app: App) -> None:
    """The default queue too, which it serves from the start."""
    async with system(Config(url=own.url, safety_cap=0.2), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        for queue in ("default", "one"):
            client.zadd(f"evsched:{{{queue}}}:schedule", {'{"task":"t"}': 4e9})
        await are_in_the_set(running, "default", "one")
        client.delete(SET)
        client.sadd(SET, "another")
        await are_in_the_set(running, "default", "one")


async def test_a_dispatcher_of_named_queues_writes_the_set_and_serves_no_others(
    own: EmbeddedRedis, client: Any, app: App
) -> None:
    async with system(Config(url=own.url, safety_cap=0.2, queues=("mine",)), app, workers=0) as running:
        await are_in_the_set(running, "mine")
        client.delete(SET)
        client.sadd(SET, "another")
        await are_in_the_set(running, "mine")
        assert running.dispatcher.queues == ["mine"]


@pytest.mark.extra
async def test_a_worker_writes_a_lost_set_again(own: EmbeddedRedis, client: Any, app: App) -> None:
    async with system(Config(url=own.url, safety_cap=0.2), app, dispatch=False) as running:
        await are_in_the_set(running, app.queue)
        client.flushall()
        await are_in_the_set(running, app.queue)


@pytest.mark.parametrize("spoiled", [False, True], ids=["no events", "no set"])
async def test_all_keys_are_scanned_in_each_safety_cap_without_events_or_the_set(app: App, spoiled: bool) -> None:
    settings = {} if spoiled else {"notify_keyspace_events": "", "rename_command": "CONFIG hidden"}
    with EmbeddedRedis(**settings) as own:  # pyright: ignore[reportArgumentType]
        client = plain_client(own.url)
        if spoiled:
            client.set(SET, "x")
        async with system(Config(url=own.url, safety_cap=0.2), app, workers=0) as running:
            await running.recorder.wait(
                process_events.NotificationsProven if spoiled else process_events.NotificationsMissing
            )
            if spoiled:
                client.config_set("notify-keyspace-events", "")
            client.zadd("evsched:{late}:schedule", {'{"task":"t"}': 0})
            if spoiled:
                client.config_set("notify-keyspace-events", "Kzg")
            await is_found(running, "late")
        client.close()


async def test_queues_that_exist_are_found_at_the_start(own: EmbeddedRedis, client: Any, app: App) -> None:
    client.zadd("evsched:{one}:schedule", {"x": 4e9})
    client.zadd("evsched:{two}:backlog", {"x": 1})
    client.rpush("evsched:{three}:processing:w1", "x")
    client.rpush("evsched:{three}:processing:w2", "y")
    client.zadd("evsched:{three}:dead_workers", {"w2": 4e9})
    client.hset("evsched:{four}:job:x", "payload", "{}")
    client.zadd("evsched:{bad name}:schedule", {"x": 4e9})
    async with system(Config(url=own.url), app, workers=0, dispatch=False) as running:
        await running.dispatcher.find_queues()
        assert sorted(running.dispatcher.queues) == ["default", "one", "three", "two"]
        # The worker that had no lease has one now, so the janitor watches it.
        assert client.zscore("evsched:{three}:leases", "w1") is not None
        # A dead worker has none: the janitor empties its list at once, also if a dispatcher has just started.
        assert client.zscore("evsched:{three}:leases", "w2") is None
        assert client.zscore("evsched:{three}:dead_workers", "w2") is not None


@pytest.mark.parametrize("spoiled", ["leases", "processing:w0"])
async def test_starting_dispatcher_serves_other_queues_beside_a_wrong_type(
    own: EmbeddedRedis, client: Any, app: App, spoiled: str
) -> None:
    client.zadd("evsched:{bad}:schedule", {'{"task":"t"}': 0})
    client.rpush("evsched:{bad}:processing:w1", "x")
    client.set(f"evsched:{{bad}}:{spoiled}", "a string")
    client.zadd("evsched:{good}:schedule", {'{"task":"t"}': 0})
    async with system(Config(url=own.url), app, workers=0, dispatch=False) as running:
        await running.dispatcher.find_queues()
        assert sorted(running.dispatcher.queues) == ["bad", "default", "good"]
        (refused,) = running.recorder.of(process_events.CallRefused)
        assert (refused.who, refused.queue) == ("finder", "bad")
        assert "evsched doctor" in refused.reason
        # A bad list of one worker does not keep another worker of the queue from getting a lease.
        assert spoiled == "leases" or client.zscore("evsched:{bad}:leases", "w1") is not None
        running.dispatch()
        await running.recorder.wait(events.Dispatched, lambda event: event.queue == "good")


async def test_the_janitor_looks_at_a_queue_that_is_found_later(own: EmbeddedRedis, client: Any, app: App) -> None:
    config = Config(url=own.url, lease=0.3, heartbeat=0.1)
    async with system(config, app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        client.hset("evsched:{dead}:job:x", mapping={"payload": '{"task":"t"}', "attempt": 1, "worker": "w", "due": 1})
        client.rpush("evsched:{dead}:processing:w", "x")
        client.zadd("evsched:{dead}:leases", {"w": 1})
        running.dispatcher.look()
        await running.recorder.wait(events.JobsRequeued, lambda event: event.queue == "dead")
