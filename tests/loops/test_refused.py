"""Refusals by Redis and unreadable replies affect only one queue or call, and are reported as such."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evsched import App, StoreRefused, events, process_events
from evsched.config import Config
from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.patience import NO_CAP, PATIENCE
from tests.support.plain import on_primaries
from tests.support.recorder import Recorder
from tests.support.system import System, system

pytestmark = pytest.mark.anyio


async def test_a_queue_that_redis_refuses_is_reported_once_and_delays_no_other(
    server: EmbeddedRedis, queue: str, raw: Any, app: App
) -> None:
    bad = f"{queue}-bad"

    @app.task
    async def noop() -> None: ...

    for place in ("schedule", "recurrences", "leases"):
        raw.set(f"evsched:{{{bad}}}:{place}", "a string")
    app.move_to(server.url)
    running = System(Config(url=server.url, queues=(bad, queue), probe_interval=0.2, reply_timeout=5), app, Recorder())
    try:
        running.dispatch()
        for who in ("dispatcher", "janitor", "recurring"):
            refused = await running.recorder.wait(process_events.CallRefused, lambda event, who=who: event.who == who)
            assert (refused.queue, "WRONGTYPE" in refused.reason) == (bad, True)
        await running.recorder.wait(process_events.RedisFailed, count=20)
        await running.recorder.wait(process_events.NotificationsProven)
        await noop.enqueue()
        await running.recorder.wait(events.Dispatched, lambda event: event.queue == queue)
        assert running.dispatcher.problem() is None
        assert len(running.recorder.of(process_events.CallRefused)) == 3
        raw.delete(*(f"evsched:{{{bad}}}:{place}" for place in ("schedule", "recurrences", "leases")))
        await running.recorder.wait(process_events.CallAccepted, lambda event: event.who == "dispatcher")
        assert not running.recorder.of(process_events.RedisDown)
        assert not running.recorder.of(process_events.SubscriptionLost)
    finally:
        await running.stop()
        for key in raw.keys(f"evsched:{{{queue}*"):
            raw.delete(key)


async def test_a_cut_connection_is_reported_once_and_not_as_an_outage_of_redis(
    config: Config, app: App, raw: Any
) -> None:
    async with system(config, app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        raw.client_kill_filter(_type="pubsub", **on_primaries(raw))
        await running.recorder.wait(process_events.Subscribed, lambda event: event.again)
        assert len(running.recorder.of(process_events.SubscriptionLost)) == 1
        assert not running.recorder.of(process_events.RedisDown)


async def test_a_reply_that_cannot_be_read_fails_only_its_call(sender: BatchingSender) -> None:
    good, bad = Call(("ECHO", "1.5"), float), Call(("ECHO", "0x10"), float)
    answers = await asyncio.gather(*map(sender.send, (good, bad, good)), return_exceptions=True)
    assert answers[0] == answers[2] == 1.5
    assert isinstance(answers[1], StoreRefused)
    assert str(answers[1]).startswith("ECHO: its reply cannot be read (ValueError")
    assert await sender.send(good) == 1.5


async def test_worker_keeps_its_other_leases_when_redis_refuses_one(
    server: EmbeddedRedis, queue: str, raw: Any, app: App
) -> None:
    bad, gate = f"{queue}-bad", asyncio.Event()

    @app.task
    async def hold() -> None:
        await gate.wait()

    config = Config(url=server.url, queues=(bad, queue), lease=1.5, heartbeat=0.3, probe_interval=0.2)
    async with system(config, app) as running:
        recorder, worker = running.recorder, running.workers[0].id
        await hold.enqueue()
        await recorder.wait(events.Started, lambda event: event.queue == queue)
        raw.set(f"evsched:{{{bad}}}:leases", "a string")
        refused = await recorder.wait(process_events.CallRefused, lambda event: event.who == "heartbeat")
        assert (refused.queue, "WRONGTYPE" in refused.reason) == (bad, True)
        leases = f"evsched:{{{queue}}}:leases"
        ends = raw.zscore(leases, worker)
        await recorder.until(lambda: raw.zscore(leases, worker) > ends + config.lease)  # the fetcher's failures go on
        assert len([event for event in recorder.of(process_events.CallRefused) if event.who == "heartbeat"]) == 1
        raw.delete(f"evsched:{{{bad}}}:leases")
        await recorder.wait(process_events.CallAccepted, lambda event: (event.who, event.queue) == ("heartbeat", bad))
        assert raw.zscore(f"evsched:{{{bad}}}:leases", worker)
        gate.set()
        await recorder.wait(events.Completed)
        assert not [event for event in recorder.of(events.LeaseLost) if event.queue == queue]
    for key in raw.keys(f"evsched:{{{bad}}}*"):
        raw.delete(key)


async def test_queue_refused_at_worker_start_is_served_once_redis_accepts_it(
    server: EmbeddedRedis, queue: str, raw: Any, app: App
) -> None:
    bad = f"{queue}-bad"

    @app.task
    async def noop() -> None: ...

    raw.set(f"evsched:{{{bad}}}:leases", "a string")
    async with system(Config(url=server.url, queues=(bad, queue)), app) as running:
        recorder, worker = running.recorder, running.workers[0]
        refused = await recorder.wait(process_events.CallRefused, lambda event: event.who == "worker")
        assert (refused.queue, "WRONGTYPE" in refused.reason) == (bad, True)
        await noop.using(queue=bad).enqueue()
        await noop.enqueue()
        await recorder.wait(events.Completed, lambda event: event.queue == queue)
        assert worker.problem() is None
        raw.delete(f"evsched:{{{bad}}}:leases")
        await recorder.wait(process_events.CallAccepted, lambda event: (event.who, event.queue) == ("worker", bad))
        await recorder.wait(events.Completed, lambda event: event.queue == bad)


async def test_a_worker_whose_queues_are_all_refused_waits_and_can_be_stopped(
    server: EmbeddedRedis, queue: str, raw: Any, app: App
) -> None:
    raw.set(f"evsched:{{{queue}}}:leases", "a string")
    app.move_to(server.url)
    running = System(Config(url=server.url, queues=(queue,)), app, Recorder())
    try:
        worker = running.work()
        await running.recorder.wait(process_events.RedisFailed, count=3)
        assert "WRONGTYPE" in (worker.problem() or "")
        assert not running.recorder.of(events.WorkerStarted)
    finally:
        await running.stop()
        raw.delete(f"evsched:{{{queue}}}:leases")


async def test_worker_stops_at_once_beside_a_queue_that_was_never_set_up(
    server: EmbeddedRedis, queue: str, raw: Any, app: App
) -> None:
    bad = f"{queue}-bad"
    raw.set(f"evsched:{{{bad}}}:leases", "a string")
    app.move_to(server.url)
    running = System(Config(url=server.url, queues=(bad, queue), shutdown_grace=NO_CAP), app, Recorder())
    try:
        running.work()
        await running.recorder.wait(events.WorkerStarted)
    finally:
        async with asyncio.timeout(PATIENCE):
            await running.stop()
        raw.delete(f"evsched:{{{bad}}}:leases")


async def test_refused_queue_takes_no_slots_between_its_retries(
    server: EmbeddedRedis, queue: str, raw: Any, app: App
) -> None:
    """Otherwise its share of the slots would stay unused, because the other queues leave room for its jobs."""
    bad, slots = f"{queue}-bad", 4
    broken, wanted = asyncio.Event(), list[bool]()

    @app.task
    async def hold() -> None:
        await broken.wait()

    app.move_to(server.url)
    config = Config(url=server.url, queues=(bad, queue), concurrency=slots, shutdown_grace=0.2)
    async with system(config, app) as running:
        await hold.using(queue=bad).enqueue_many([()] * 2 * slots)
        recorder = running.recorder
        await recorder.until(lambda: sum(len(event.ids) for event in recorder.of(events.Started)) == slots)
        raw.set(f"evsched:{{{bad}}}:fair", "a string")
        share = running.workers[0].consumers[bad].demand.share

        def on_event(event: events.Event) -> None:
            if isinstance(event, process_events.RedisFailed) and event.kind == "wrongtype":
                asyncio.get_running_loop().call_soon(lambda: wanted.append(share.wants))

        running.events.subscribe(on_event)
        broken.set()  # the ends of these runs cannot be written, and there are more jobs
        await recorder.wait(process_events.CallRefused, lambda event: (event.who, event.queue) == ("worker", bad))
        await recorder.until(lambda: len(wanted) >= 4)
        assert not any(wanted[1:])
        raw.delete(f"evsched:{{{bad}}}:fair")


async def test_jobs_are_handed_back_beside_a_queue_that_redis_refuses(
    server: EmbeddedRedis, queue: str, raw: Any, app: App
) -> None:
    bad = f"{queue}-bad"

    @app.task
    async def hold() -> None:
        await asyncio.Event().wait()

    async with system(Config(url=server.url, queues=(bad, queue), shutdown_grace=0.2, kill_grace=0.2), app) as running:
        await hold.enqueue()
        await running.recorder.wait(events.Started, lambda event: event.queue == queue)
        for place in ("leases", "ready"):
            raw.set(f"evsched:{{{bad}}}:{place}", "a string")
    (stopped,) = running.recorder.of(events.WorkerStopped)
    assert stopped.handed_back == 1
    for key in raw.keys(f"evsched:{{{bad}}}*"):
        raw.delete(key)
