"""The dispatcher's subscription (cut, silent, or without events), and which of several dispatchers acts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Literal

import pytest

from evsched import App, events, process_events
from evsched.config import Config
from evsched.dispatcher import watcher
from evsched.dispatcher.timing import QueueTimer
from evsched.store.client_calls import New
from evsched.store.server import set_notification_flags
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import NO_CAP, PATIENCE
from tests.support.proxy import Proxy
from tests.support.system import System, system

pytestmark = pytest.mark.usefixtures("lateness")


def inline(queue: str, name: str, due: float = 0) -> tuple[str, float, str]:
    return f"evsched:{{{queue}}}:schedule", due, f'{{"task":"lateness","id":"{name}"}}'


@pytest.mark.one_server
async def test_a_cut_subscription_is_reopened_and_the_queues_are_checked(
    server: EmbeddedRedis, queue: str, app: App, raw: Any
) -> None:
    config = Config(url=server.url, queues=(queue,), safety_cap=60, probe_interval=50)
    async with system(config, app) as running:
        for n in range(1, 6):
            pipe = raw.pipeline(transaction=False)
            pipe.client_kill_filter(_type="pubsub")
            key, due, member = inline(queue, f"j{n}")
            pipe.zadd(key, {member: due})
            pipe.execute()
            await running.recorder.wait(events.Completed, lambda event: event.ids == [f"j{n}"])  # noqa: B023
            await running.recorder.wait(process_events.Subscribed, count=n + 1)
        assert not [event for event in running.recorder.of(events.Woken) if event.reason == "safety" and event.found]


async def test_a_half_open_subscription_is_noticed(queue: str, app: App) -> None:
    with EmbeddedRedis(port=0) as own:
        async with Proxy(("127.0.0.1", own.port or 0)) as proxy:
            config = Config(
                url=f"redis://127.0.0.1:{proxy.port}/0", queues=(queue,), probe_interval=0.2, reply_timeout=0.2
            )
            async with system(config, app) as running:
                await running.recorder.wait(process_events.NotificationsProven)
                proxy.swallow("down")
                await running.recorder.wait(process_events.SubscriptionLost)
                proxy.heal()
                await running.recorder.wait(process_events.Subscribed, lambda event: event.again)


async def test_canary_whose_message_comes_after_the_reply_is_followed_by_the_next(
    server: EmbeddedRedis, queue: str, app: App
) -> None:
    """Which of the two arrives first is chance."""
    config = Config(url=server.url, queues=(queue,), safety_cap=NO_CAP, probe_interval=0.02)
    async with system(config, app, workers=0) as running:
        await running.recorder.wait(events.Woken, lambda event: event.reason == "safety", count=50)


async def test_a_redis_that_refuses_writes_does_not_end_the_subscription(queue: str, app: App) -> None:
    """A replica refuses the step that carries the canary, so a missing canary proves nothing."""
    with EmbeddedRedis(replicaof="127.0.0.1 1") as replica:
        config = Config(url=replica.url, queues=(queue,), probe_interval=0.05, reply_timeout=2)
        async with system(config, app, workers=0) as running:
            await running.recorder.wait(process_events.RedisFailed, count=20)  # this takes longer than `reply_timeout`
            assert not running.recorder.of(process_events.SubscriptionLost)
            assert [pulse.problem() for pulse in running.dispatcher.pulses if pulse.problem()] == []
            reported = [event.who for event in running.recorder.of(process_events.RedisDown)]
            assert len(reported) == len(set(reported))


async def test_missing_notification_flags_are_set_if_redis_allows_it(queue: str, app: App) -> None:
    with EmbeddedRedis(notify_keyspace_events="") as own:
        async with system(Config(url=own.url, queues=(queue,)), app) as running:
            await running.recorder.wait(process_events.NotificationsProven)


async def test_safety_cap_finds_jobs_without_keyspace_events_and_is_logged(
    queue: str, app: App, server: EmbeddedRedis
) -> None:
    with EmbeddedRedis(notify_keyspace_events="", rename_command="CONFIG hidden") as own:
        config = Config(url=own.url, queues=(queue,), safety_cap=0.3)
        async with system(config, app) as running:
            missing = await running.recorder.wait(process_events.NotificationsMissing)
            assert "CONFIG SET notify-keyspace-events Kzg" in missing.mend
            job = await running.app.client.send(_enqueue(queue))
            assert job
            await running.recorder.wait(events.Completed)
            await running.recorder.wait(events.Woken, lambda event: event.reason == "safety" and event.found == 1)


def _enqueue(queue: str) -> Any:
    return Store(queue).enqueue([New("late", b'{"task":"lateness"}')])


async def test_notification_flags_that_are_removed_later_are_noticed(queue: str, app: App) -> None:
    with EmbeddedRedis() as own:
        config = Config(url=own.url, queues=(queue,), probe_interval=0.1)
        async with system(config, app) as running:
            await running.recorder.wait(process_events.NotificationsProven)
            await running.sender.send(set_notification_flags(""))
            await running.recorder.wait(process_events.NotificationsMissing)


@pytest.mark.one_server
async def test_a_reserve_takes_over_when_no_other_dispatcher_acts(server: EmbeddedRedis, queue: str, app: App) -> None:
    config = Config(url=server.url, queues=(queue,))
    async with system(config, app) as running:
        await running.recorder.wait(events.Woken)
        timer = running.dispatcher._loop.timer(queue)  # pyright: ignore[reportPrivateUsage]
        for name in ("at-once", "ahead"):
            timer.leads = False
            job = Store(queue).enqueue([New(name, b'{"task":"lateness"}', delay=0.05 if name == "ahead" else 0.0)])
            await running.sender.send(job)
            await running.recorder.wait(events.Completed, lambda event: event.ids == [name])  # noqa: B023
            assert timer.leads


def timer_of(running: System, queue: str) -> QueueTimer:
    return running.dispatcher._loop.timer(queue)  # pyright: ignore[reportPrivateUsage]


@asynccontextmanager
async def rivals(own: EmbeddedRedis, queue: str, app: App) -> AsyncGenerator[tuple[System, System, Proxy]]:
    """Run two dispatchers: one that leads, through a proxy, and a reserve."""
    async with Proxy(("127.0.0.1", own.port or 0)) as proxy:
        through = Config(url=f"redis://127.0.0.1:{proxy.port}/0", queues=(queue,), safety_cap=NO_CAP)
        direct = Config(url=own.url, queues=(queue,), safety_cap=NO_CAP)
        async with (
            system(through, app, workers=0) as leader,
            system(direct, App(queue=queue), workers=0) as reserve,
        ):
            for running in (leader, reserve):
                await running.recorder.wait(process_events.NotificationsProven)
            timer_of(reserve, queue).leads = False
            yield leader, reserve, proxy


def put(client: Any, queue: str, name: str, due: float = 0) -> None:
    key, due, member = inline(queue, name, due)
    client.zadd(key, {member: due})


@pytest.mark.parametrize("fault", ["killed", "stopped", "slow"])
async def test_a_reserve_leads_when_the_leader_is(
    own: EmbeddedRedis, queue: str, app: App, client: Any, fault: Literal["killed", "stopped", "slow"]
) -> None:
    async with rivals(own, queue, app) as (leader, reserve, proxy):
        if fault == "killed":
            for task in leader._dispatching:  # pyright: ignore[reportPrivateUsage]
                task.cancel()
        elif fault == "stopped":
            proxy.swallow()
        else:
            proxy.delay(0.5, "up")
        put(client, queue, "at-once")
        await reserve.recorder.wait(events.Dispatched)
        assert timer_of(reserve, queue).leads


async def test_reserve_leads_when_the_leader_stops_while_others_remove_jobs(
    own: EmbeddedRedis, queue: str, app: App, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_MANY", 10**9)  # the removals arrive, however many they are

    def put_and_cancel(number: int) -> None:
        put(client, queue, "another", due=4e9)
        if number == 20:  # after removals, as if the leader had acted
            put(client, queue, "at-once")
        client.zrem(*inline(queue, "another")[::2])

    async with rivals(own, queue, app) as (_, reserve, proxy):
        proxy.swallow()
        async with asyncio.timeout(PATIENCE):
            for number in count():
                await asyncio.to_thread(put_and_cancel, number)
                if reserve.recorder.of(events.Dispatched):
                    break


@pytest.mark.parametrize("name", [None, "x"], ids=["inline job", "inline job with an id"])
async def test_one_of_two_dispatchers_becomes_the_reserve(
    own: EmbeddedRedis, queue: str, app: App, client: Any, name: str | None
) -> None:
    """Redis reports the removal of jobs with an id in another way than that of jobs without."""
    async with rivals(own, queue, app) as (one, other, _):
        await one.sender.send(Store(queue).heartbeat("w", 3600, busy=3600, fresh=True))  # it knows light jobs
        timers = [timer_of(running, queue) for running in (one, other)]
        for timer in timers:
            timer.leads = True
        now = time.time()
        for number in range(1000):
            own_id = f',"id":"{name}{number}"' if name else ""
            member = f'{{"task":"t","args":[{number}]{own_id}}}'
            client.zadd(f"evsched:{{{queue}}}:schedule", {member: now + 0.02 * number})
        await one.recorder.until(lambda: [timer.leads for timer in timers].count(True) == 1)


async def test_queues_that_are_due_at_the_same_time_are_stepped_together(own: EmbeddedRedis, app: App) -> None:
    queues = tuple(f"q{number}" for number in range(20))
    together = list[int]()
    async with system(Config(url=own.url, queues=queues), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        loop, running_steps = running.dispatcher._loop, 0  # pyright: ignore[reportPrivateUsage]
        step = loop.step

        async def counted(timer: QueueTimer) -> None:
            nonlocal running_steps
            running_steps += 1
            together.append(running_steps)
            try:
                await step(timer)
            finally:
                running_steps -= 1

        loop.step = counted  # type: ignore[method-assign]
        for queue in queues:
            loop.timer(queue).step_by(0.0, "timer")
            loop._plan(loop.timer(queue))  # pyright: ignore[reportPrivateUsage]
        await running.recorder.wait(events.Woken, lambda event: event.reason == "timer", count=20)
    assert max(together) == 20
