"""The janitor judges whether a worker is alive, by its lease and the monotonic clock, never how long a job takes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evsched import events
from evsched.config import Config
from evsched.dispatcher.janitor import Janitor
from evsched.events import Dispatched, Woken
from evsched.runtime.loops import Runtime
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.recorder import Recorder

LEASE = 0.3
HEARTBEAT = 0.1


@pytest.fixture
def config(server: EmbeddedRedis) -> Config:
    return Config(url=server.url, lease=LEASE, heartbeat=HEARTBEAT, idle_lease=60, idle_heartbeat=20)


@pytest.fixture
def janitor(config: Config, sender: BatchingSender, recorder: Recorder, queue: str) -> Janitor:
    return Janitor(Runtime(config, sender, recorder), lambda: [queue])


async def hold(sender: BatchingSender, store: Store, worker: str, lease: float) -> None:
    """Let a worker fetch a job, and then stay silent."""
    await sender.send(store.enqueue([New("a", b'{"task":"t"}')]))
    await sender.send(store.dispatch(limit=10, cap=1000))
    await sender.send(store.start(worker, (), hold=1, lease=lease))


async def after(seconds: float) -> None:
    """Let time pass, because the janitor judges by time alone."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


async def test_silent_worker_loses_its_jobs_a_heartbeat_after_its_lease(
    sender: BatchingSender, store: Store, janitor: Janitor, recorder: Recorder
) -> None:
    await hold(sender, store, "w", lease=0)
    rest = await janitor.step(store.queue)
    assert HEARTBEAT < rest < 2 * HEARTBEAT, "a live worker renews it a round trip after a heartbeat"
    await after(2 * HEARTBEAT)
    await janitor.step(store.queue)
    requeued = await recorder.wait(events.JobsRequeued)
    assert (requeued.worker, requeued.ids) == ("w", ["a"])
    assert await sender.send(store.line(10)) == ["a"]
    assert (await sender.send(store.survey())).leases == []


async def test_a_worker_whose_lease_changes_is_alive_even_if_redis_clock_jumps(
    sender: BatchingSender, store: Store, janitor: Janitor, recorder: Recorder
) -> None:
    await hold(sender, store, "w", lease=0.05)
    for _ in range(3):
        await janitor.step(store.queue)
        await after(2 * HEARTBEAT)
        # The worker sends heartbeats, but Redis's clock has jumped, so each lease has ended when it is read.
        await sender.send(store.heartbeat("w", -3600))
    await janitor.step(store.queue)
    assert not recorder.of(events.JobsRequeued)


async def test_job_fetched_but_never_started_is_requeued_despite_a_long_lease(
    sender: BatchingSender, store: Store, janitor: Janitor, recorder: Recorder, raw: Any
) -> None:
    await sender.send(store.heartbeat("w", 60, fresh=True))
    raw.rpush(f"evsched:{{{store.queue}}}:processing:w", "a")
    assert await janitor.step(store.queue) <= 0.2
    await after(0.25)
    await janitor.step(store.queue)
    assert (await recorder.wait(events.JobsRequeued)).ids == ["a"]


async def test_janitor_looks_often_while_jobs_wait(sender: BatchingSender, store: Store, janitor: Janitor) -> None:
    assert await janitor.step(store.queue) > 50
    await sender.send(store.enqueue([New("a", b'{"task":"t"}')]))
    await sender.send(store.dispatch(limit=10, cap=1000))
    assert await janitor.step(store.queue) <= LEASE - HEARTBEAT


@pytest.mark.one_server
@pytest.mark.parametrize(("reason", "looks"), [("event", True), ("timer", True), ("safety", False)])
async def test_janitor_looks_soon_after_a_step_unless_the_safety_cap_caused_it(
    janitor: Janitor, store: Store, recorder: Recorder, raw: Any, reason: Any, looks: bool
) -> None:
    def calls() -> int:
        stats = raw.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))

    start = calls()
    running = asyncio.create_task(janitor.run())
    while calls() == start:
        await after(0.01)
    await after(0.05)
    before = calls()
    janitor.on_event(Woken(queue=store.queue, reason=reason, found=0))
    await after(4 * HEARTBEAT)
    assert (calls() > before) is looks
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_janitor_seldom_looks_at_an_idle_worker_with_a_long_lease(
    sender: BatchingSender, store: Store, janitor: Janitor, recorder: Recorder
) -> None:
    await sender.send(store.heartbeat("w", 60, fresh=True))
    assert await janitor.step(store.queue) > 50
    assert not recorder.of(events.JobsRequeued)


async def test_janitor_looks_within_a_heartbeat_after_a_dispatch(
    sender: BatchingSender, store: Store, janitor: Janitor, recorder: Recorder, raw: Any
) -> None:
    await sender.send(store.heartbeat("w", 60, fresh=True))
    running = asyncio.create_task(janitor.run())
    await after(0.05)
    raw.rpush(f"evsched:{{{store.queue}}}:processing:w", "a")
    janitor.on_event(Dispatched(queue=store.queue, lateness=[0.0]))
    assert (await recorder.wait(events.JobsRequeued)).ids == ["a"]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_many_jobs_are_put_back_in_bounded_steps_and_in_order(
    sender: BatchingSender, store: Store, janitor: Janitor, recorder: Recorder
) -> None:
    await sender.send(store.enqueue([New(f"j{n:03}", b'{"task":"t"}') for n in range(600)]))
    for _ in range(3):
        await sender.send(store.dispatch(limit=250, cap=1000))
    await sender.send(store.start("w", (), hold=600, lease=0.01))
    await janitor.step(store.queue)
    await after(2 * HEARTBEAT)
    await janitor.step(store.queue)
    assert [len(event.ids) for event in recorder.of(events.JobsRequeued)] == [250, 250, 100]
    assert await sender.send(store.line(1000)) == [f"j{n:03}" for n in range(600)]
