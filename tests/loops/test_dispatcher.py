"""The dispatcher's ear: subscriptions that are cut, silent, or deaf; floods; new queues."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from evsched import App, current_job, events
from evsched.answers import New
from evsched.config import Config
from evsched.embedded import EmbeddedRedis
from evsched.server import set_notification_flags
from evsched.store import Store
from tests.support.proxy import Proxy
from tests.support.system import system


@pytest.fixture
def app(queue: str) -> App:
    app = App(queue=queue)

    @app.task
    async def lateness() -> float:
        return current_job().lateness

    return app


def inline(queue: str, name: str, due: float = 0) -> tuple[str, float, str]:
    return f"evsched:{{{queue}}}:schedule", due, f'{{"task":"lateness","id":"{name}"}}'


async def test_a_subscription_that_is_cut_is_built_anew_and_looked_at(
    server: EmbeddedRedis, queue: str, app: App, raw: Any
) -> None:
    config = Config(url=server.url, queues=(queue,), safety_cap=60, probe=50)
    async with system(config, app) as running:
        for n in range(1, 6):
            pipe = raw.pipeline(transaction=False)
            pipe.client_kill_filter(_type="pubsub")
            key, due, member = inline(queue, f"j{n}")
            pipe.zadd(key, {member: due})
            pipe.execute()
            await running.recorder.wait(events.Completed, lambda event: event.ids == [f"j{n}"])  # noqa: B023
            await running.recorder.wait(events.Subscribed, count=n + 1)
        assert not [event for event in running.recorder.of(events.Woken) if event.reason == "safety" and event.found]


async def test_a_half_open_subscription_is_noticed(queue: str, app: App) -> None:
    with EmbeddedRedis(port=0) as own:
        async with Proxy(("127.0.0.1", own.port or 0)) as proxy:
            config = Config(url=f"redis://127.0.0.1:{proxy.port}/0", queues=(queue,), probe=0.2, deadline=0.2)
            async with system(config, app) as running:
                await running.recorder.wait(events.NotificationsProven)
                proxy.swallow("down")
                await running.recorder.wait(events.SubscriptionLost)
                proxy.heal()
                await running.recorder.wait(events.Subscribed, lambda event: event.again)


async def test_missing_notifications_are_set_where_allowed(queue: str, app: App) -> None:
    with EmbeddedRedis(notify_keyspace_events="") as own:
        async with system(Config(url=own.url, queues=(queue,)), app) as running:
            await running.recorder.wait(events.NotificationsProven)


async def test_without_notifications_the_cap_does_the_work_and_it_is_said(
    queue: str, app: App, server: EmbeddedRedis
) -> None:
    with EmbeddedRedis(notify_keyspace_events="", rename_command="CONFIG hidden") as own:
        config = Config(url=own.url, queues=(queue,), safety_cap=0.3)
        async with system(config, app) as running:
            missing = await running.recorder.wait(events.NotificationsMissing)
            assert "CONFIG SET notify-keyspace-events Kzg" in missing.mend
            job = await running.app.client.send(_enqueue(queue))
            assert job
            await running.recorder.wait(events.Completed)
            await running.recorder.wait(events.Woken, lambda event: event.reason == "safety" and event.found == 1)


def _enqueue(queue: str) -> Any:
    return Store(queue).enqueue([New("late", b'{"task":"lateness"}')])


async def test_flags_that_vanish_are_noticed(queue: str, app: App) -> None:
    with EmbeddedRedis() as own:
        config = Config(url=own.url, queues=(queue,), probe=0.1)
        async with system(config, app) as running:
            await running.recorder.wait(events.NotificationsProven)
            await running.commands.send(set_notification_flags(""))
            await running.recorder.wait(events.NotificationsMissing)


async def test_new_queues_are_found_by_their_first_event(app: App, raw: Any) -> None:
    with EmbeddedRedis() as own:
        async with system(Config(url=own.url), app) as running:
            await running.app.client.send(_enqueue("brand-new"))
            await running.recorder.wait(events.QueueFound, lambda event: event.queue == "brand-new")
            await running.recorder.wait(events.Dispatched, lambda event: event.queue == "brand-new")


async def test_queues_that_are_there_are_found_by_one_scan(app: App, raw: Any, queue: str) -> None:
    with EmbeddedRedis() as own:
        client: Any = redis.Redis.from_url(own.url, protocol=2, driver_info=None)
        client.zadd("evsched:{one}:schedule", {"x": 4e9})
        client.zadd("evsched:{two}:backlog", {"x": 1})
        client.rpush("evsched:{three}:processing:w1", "x")
        client.hset("evsched:{four}:job:x", "payload", "{}")
        client.zadd("evsched:{bad name}:schedule", {"x": 4e9})
        async with system(Config(url=own.url), app, workers=0) as running:
            await running.dispatcher.find_queues()
            assert sorted(running.dispatcher.queues) == ["default", "one", "three", "two"]
            # What a worker without a lease holds is the janitor's from now on.
            assert client.zscore("evsched:{three}:leases", "w1") is not None
        client.close()


async def test_a_flood_of_far_jobs_costs_few_script_calls(queue: str, app: App) -> None:
    with EmbeddedRedis() as own:
        client: Any = redis.Redis.from_url(own.url, protocol=2, driver_info=None)
        async with system(Config(url=own.url, queues=(queue,)), app) as running:
            await running.recorder.wait(events.NotificationsProven)
            before = len(running.recorder.of(events.Woken))
            for _ in range(20):
                pipe = client.pipeline(transaction=False)
                for n in range(1000):
                    pipe.execute_command("ZADD", f"evsched:{{{queue}}}:schedule", 4e9, f"far-{n}")
                pipe.execute()
            key, due, member = inline(queue, "now")
            client.zadd(key, {member: due})
            await running.recorder.wait(events.Completed)
            assert len(running.recorder.of(events.Woken)) - before < 1000
        client.close()
