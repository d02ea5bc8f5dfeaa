"""Floods of foreign writes: the dispatcher stops receiving their events, polls, and receives again when they end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from evsched import App, events, process_events
from evsched.config import Config
from evsched.dispatcher.watcher import Flood
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.subscription import Subscription
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client
from tests.support.system import system

NEVER = float("inf")

pytestmark = pytest.mark.usefixtures("lateness")


def schedule(queue: str) -> str:
    return f"evsched:{{{queue}}}:schedule"


def inline(name: str, due: float) -> dict[str, float]:
    return {f'{{"task":"lateness","id":"{name}"}}': due}


@contextmanager
def flooding(own: EmbeddedRedis, queue: str) -> Generator[None]:
    """Schedule jobs far ahead without pause, from another thread."""
    end = threading.Event()

    def flood() -> None:
        producer = plain_client(own.url)
        turn = 0
        while not end.is_set():
            turn += 1
            pipe = producer.pipeline(transaction=False)
            for n in range(100):
                pipe.execute_command("ZADD", schedule(queue), 4e9 + turn, f"far-{n}")
            pipe.execute()
        producer.close()

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


async def until_receives(client: Any, queue: str, receivers: int) -> None:
    """Wait until `receivers` clients receive the events of a queue's schedule."""
    channel = f"__keyspace@0__:{schedule(queue)}"
    async with asyncio.timeout(PATIENCE):
        while (await asyncio.to_thread(client.pubsub_numsub, channel))[0][1] != receivers:
            pass


async def until_patterns(client: Any, count: int) -> None:
    """Wait until clients are subscribed to `count` patterns."""
    async with asyncio.timeout(PATIENCE):
        while await asyncio.to_thread(client.pubsub_numpat) != count:
            pass


async def test_a_flood_of_far_jobs_costs_few_script_calls(
    queue: str, app: App, own: EmbeddedRedis, client: Any
) -> None:
    async with system(Config(url=own.url, queues=(queue,)), app) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        before = len(running.recorder.of(events.Woken))
        for turn in range(20):
            pipe = client.pipeline(transaction=False)
            for n in range(1000):
                pipe.execute_command("ZADD", f"evsched:{{{queue}}}:schedule", 4e9 + n + 1000 * turn, f"far-{n}")
            pipe.execute()
        client.zadd(schedule(queue), inline("now", 0))
        await running.recorder.wait(events.Completed)
        assert len(running.recorder.of(events.Woken)) - before < 1000


class Served:
    """Serves `count` queues, and records whether they are polled."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.polls = False

    def poll(self) -> None:
        self.polls = True

    def look(self) -> None:
        self.polls = False


@pytest.mark.parametrize(("queues", "polls"), [(1, True), (40, False)])
async def test_many_queues_are_polled_only_if_there_are_many_events_for_each(
    queue: str, own: EmbeddedRedis, client: Any, queues: int, polls: bool
) -> None:
    channel, poller, subscription = f"__keyspace@0__:{schedule(queue)}", Served(queues), Subscription(own.url)
    client.config_set("notify-keyspace-events", "Kz")
    await subscription.open([], [channel, "end"])
    flood = Flood(subscription, [], [channel], poller)
    pipe = client.pipeline(transaction=False)
    for n in range(3000):
        pipe.execute_command("ZADD", schedule(queue), 4e9, f"far-{n}")
    pipe.publish("end", "1")
    pipe.execute()
    async for name, _ in subscription.messages():
        if name == b"end":
            break
        flood.event()
    flood.end()
    await subscription.close()
    assert poller.polls is polls


async def test_during_a_flood_jobs_start_when_due_though_no_events_arrive(
    queue: str, app: App, own: EmbeddedRedis, client: Any
) -> None:
    async with system(Config(url=own.url, queues=(queue,)), app) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        with flooding(own, queue):
            await until_receives(client, queue, 0)
            assert client.pubsub_numsub(f"evsched:{{{queue}}}:gate")[0][1] == 1
            seconds, micros = client.time()
            due = seconds + micros / 1e6
            client.zadd(schedule(queue), inline("now", due))
            client.zadd(schedule(queue), inline("soon", due + 0.2))
            for name in ("now", "soon"):
                await running.recorder.wait(events.Completed, lambda event: event.ids == [name])  # noqa: B023
        late = [one for event in running.recorder.of(events.Dispatched) for one in event.lateness]
        assert len(late) == 2
        assert min(late) >= 0


async def test_after_a_flood_an_event_wakes_the_dispatcher_and_it_polls_no_more(
    queue: str, app: App, own: EmbeddedRedis, client: Any
) -> None:
    async with system(Config(url=own.url, queues=(queue,), probe_interval=0.3), app) as running:
        recorder = running.recorder
        await recorder.wait(process_events.NotificationsProven)
        timer = running.dispatcher._loop.timer(queue)  # pyright: ignore[reportPrivateUsage]
        with flooding(own, queue):
            await until_receives(client, queue, 0)
            assert running.dispatcher._loop._polls  # pyright: ignore[reportPrivateUsage]
        await until_receives(client, queue, 1)
        stepped = len([event for event in recorder.of(events.Woken) if event.reason == "reconnect"])
        await recorder.wait(events.Woken, lambda event: event.reason == "reconnect", count=stepped + 1)
        client.zadd(schedule(queue), inline("after", 0))
        await recorder.wait(events.Woken, lambda event: event.reason == "event" and event.found == 1)
        probes = len([event for event in recorder.of(events.Woken) if event.reason == "safety"])
        await recorder.wait(events.Woken, lambda event: event.reason == "safety", count=probes + 1)
        assert timer.next_look.at == NEVER


async def test_a_queue_whose_first_event_fell_into_a_flood_is_found(
    queue: str, app: App, own: EmbeddedRedis, client: Any
) -> None:
    async with system(Config(url=own.url), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        patterns = client.pubsub_numpat()
        with flooding(own, queue):
            await until_patterns(client, patterns - 1)
            client.zadd(schedule("other"), inline("first", 0))
        await running.recorder.wait(events.Dispatched, lambda event: event.queue == "other")
        await until_patterns(client, patterns)


async def test_a_connection_that_is_lost_in_a_flood_is_opened_again(
    queue: str, app: App, own: EmbeddedRedis, client: Any
) -> None:
    async with system(Config(url=own.url, queues=(queue,)), app) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        with flooding(own, queue):
            await until_receives(client, queue, 0)
            client.client_kill_filter(_type="pubsub")
            await running.recorder.wait(process_events.Subscribed, count=2)
            client.zadd(schedule(queue), inline("meanwhile", 0))
            await running.recorder.wait(events.Completed)
        client.zadd(schedule(queue), inline("after", 0))
        await running.recorder.wait(events.Completed, lambda event: event.ids == ["after"])
