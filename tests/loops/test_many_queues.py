"""Very many, mostly empty queues: their cost, and that they delay no other queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from evsched import App, events, process_events
from evsched.config import Config
from evsched.dispatcher import dispatch_loop, queue_finder
from evsched.dispatcher.dispatch_loop import DispatchLoop
from evsched.dispatcher.queue_finder import QueueSet
from evsched.store import server
from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder
from tests.support.system import System, system

MANY = 400
SET = "evsched:{}:queues"


def schedule(queue: str) -> str:
    return f"evsched:{{{queue}}}:schedule"


def put(client: Any, queues: Iterable[str], due: float = 0) -> None:
    """Put a job into each of these queues, in one round trip."""
    pipe = client.pipeline(transaction=False)
    for queue in queues:
        pipe.zadd(schedule(queue), {'{"task":"t"}': due})
    pipe.execute()


def loop_of(running: System) -> DispatchLoop:
    return running.dispatcher._loop  # pyright: ignore[reportPrivateUsage]


async def at_rest(running: System, *queues: str) -> None:
    """Wait until these queues are at rest."""
    resting = loop_of(running)._resting  # pyright: ignore[reportPrivateUsage]
    async with asyncio.timeout(PATIENCE):
        while not {*queues}.issubset(resting):
            await running.sender.send(server.clock())


async def in_the_set(running: System, names: set[bytes]) -> None:
    """Wait until the set of all queues has these names and no others."""
    async with asyncio.timeout(PATIENCE):
        while {name.encode() for name in await running.sender.send(server.queue_names())} != names:
            pass


@asynccontextmanager
async def two_dispatchers(own: EmbeddedRedis, app: App) -> AsyncGenerator[tuple[System, System]]:
    config = Config(url=own.url, safety_cap=0.2)
    async with system(config, app, workers=0) as first, system(config, App(queue=app.queue), workers=0) as second:
        yield first, second


async def test_new_queues_do_not_delay_a_due_queue(
    own: EmbeddedRedis, client: Any, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, before = DispatchLoop.changed, list[int]()
    new = [f"new-{n}" for n in range(MANY)]
    async with system(Config(url=own.url), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        put(client, ["known"])
        await running.recorder.wait(events.Dispatched, lambda event: event.queue == "known")

        def note(loop: DispatchLoop, queue: str) -> None:
            if queue == "known":
                before.append(len(running.recorder.of(events.Woken)))
            changed(loop, queue)

        monkeypatch.setattr(DispatchLoop, "changed", note)
        client.zadd(schedule("known"), {'{"task":"t","id":"2"}': 0})
        put(client, new)
        client.zadd(schedule("known"), {'{"task":"t","id":"3"}': 0})
        await running.recorder.until(
            lambda: len({event.queue for event in running.recorder.of(events.Dispatched)}) == MANY + 1
        )
        woken = [event.queue for event in running.recorder.of(events.Woken)]
        for begin in before:
            steps = woken[begin : woken.index("known", begin)]
            # Those of the round trip that was under way, and those of its own.
            assert len(steps) <= 2 * dispatch_loop._CHECKED  # pyright: ignore[reportPrivateUsage]
    assert len(before) >= 2


async def test_events_of_many_known_queues_do_not_delay_a_due_queue(
    own: EmbeddedRedis, client: Any, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, before = DispatchLoop.changed, list[int]()
    far = [f"far-{n}" for n in range(MANY)]
    async with system(Config(url=own.url), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        put(client, far, due=4e9)
        put(client, ["known"])
        await running.recorder.wait(events.QueueFound, count=MANY + 1)
        await running.recorder.wait(events.Dispatched)

        def note(loop: DispatchLoop, queue: str) -> None:
            if queue == "known":
                before.append(len(running.recorder.of(events.Woken)))
            changed(loop, queue)

        monkeypatch.setattr(DispatchLoop, "changed", note)
        put(client, far, due=3e9)
        client.zadd(schedule("known"), {'{"task":"t","id":"2"}': 0})
        await running.recorder.wait(events.Dispatched, count=2)
        woken = [event.queue for event in running.recorder.of(events.Woken)]
    steps = woken[before[0] : woken.index("known", before[0])]
    # Those of the round trip that was under way, and those of its own.
    assert len(steps) <= 2 * dispatch_loop._TOGETHER  # pyright: ignore[reportPrivateUsage]


async def test_jobs_that_are_removed_cause_no_steps(own: EmbeddedRedis, client: Any, app: App) -> None:
    far = [f"far-{n}" for n in range(MANY)]
    async with system(Config(url=own.url), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        put(client, far, due=4e9)
        put(client, ["known"])
        await running.recorder.wait(events.QueueFound, count=MANY + 1)
        await running.recorder.wait(events.Dispatched)
        before = len(running.recorder.of(events.Woken))
        pipe = client.pipeline(transaction=False)
        for queue in far:
            pipe.zrem(schedule(queue), '{"task":"t"}')
        pipe.execute()
        client.zadd(schedule("known"), {'{"task":"t","id":"2"}': 0})
        await running.recorder.wait(events.Dispatched, count=2)
        woken = [event.queue for event in running.recorder.of(events.Woken)[before:]]
    assert not {*woken} & {*far}


async def test_one_turn_looks_at_some_queues_and_checks_some(
    own: EmbeddedRedis, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch_loop, "_LOOKS", 10)
    monkeypatch.setattr(dispatch_loop, "_NEAR_MOST", 10)
    monkeypatch.setattr(dispatch_loop, "_NEW_MOST", 10)
    async with system(Config(url=own.url), app, workers=0, dispatch=False) as running:
        loop = loop_of(running)
        for n in range(25):
            timer = loop.timer(f"reserve-{n}")
            timer.look_by(0.0, "event")
            loop._plan(timer)  # pyright: ignore[reportPrivateUsage]
        taken = [len(loop._take_looks(1.0)) for _ in range(3)]  # pyright: ignore[reportPrivateUsage]
        assert taken == [10, 10, 5]
        loop._unchecked.clear()  # pyright: ignore[reportPrivateUsage]
        for n in range(25):
            timer = loop.timer(f"far-{n}")
            timer.step_by(0.5, "safety")
            loop._plan(timer)  # pyright: ignore[reportPrivateUsage]
        unchecked = list[int]()
        for _ in range(3):
            assert not loop._take_due(1.0)  # pyright: ignore[reportPrivateUsage]
            unchecked.append(len(loop._unchecked))  # pyright: ignore[reportPrivateUsage]
        assert unchecked == [10, 20, 25]
        loop._unchecked.clear()  # pyright: ignore[reportPrivateUsage]
        for n in range(25):
            loop.changed(f"new-{n}")
        for _ in range(3):
            await loop._round(1.0)  # pyright: ignore[reportPrivateUsage]
            unchecked.append(len(loop._unchecked))  # pyright: ignore[reportPrivateUsage]
        assert unchecked[3:] == [15, 5, 0]


async def test_new_queues_that_are_empty_again_cost_few_calls_and_leave_nothing(
    own: EmbeddedRedis, client: Any, app: App
) -> None:
    async with system(Config(url=own.url), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        pipe = client.pipeline(transaction=False)
        for n in range(MANY):
            pipe.zadd(schedule(f"new-{n}"), {"x": 4e9})
            pipe.zrem(schedule(f"new-{n}"), "x")
        pipe.execute()
        put(client, ["last"])
        await running.recorder.wait(events.Dispatched, lambda event: event.queue == "last")
        async with asyncio.timeout(PATIENCE):
            while loop_of(running).count > 2:
                await running.sender.send(server.clock())
        assert sorted(running.dispatcher.queues) == ["default", "last"]
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - before < MANY / 4


@pytest.mark.parametrize("lost", [False, True], ids=["its event", "the safety cap"])
async def test_queue_at_rest_is_woken(own: EmbeddedRedis, client: Any, app: App, lost: bool) -> None:
    client.sadd(SET, *(f"old-{n}" for n in range(MANY)))
    async with system(Config(url=own.url, safety_cap=0.3 if lost else 3600), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        await running.dispatcher.find_queues()
        await at_rest(running, *(f"old-{n}" for n in range(MANY)))
        assert running.dispatcher.queues == ["default"]
        if lost:
            client.config_set("notify-keyspace-events", "")
        put(client, ["old-7"])
        await running.recorder.wait(events.Dispatched, lambda event: event.queue == "old-7")
        woken = [event for event in running.recorder.of(events.Woken) if event.queue == "old-7" and event.found]
        assert [event.reason for event in woken] == ["safety" if lost else "reconnect"]


async def test_a_queue_that_is_empty_for_a_safety_cap_is_at_rest(own: EmbeddedRedis, client: Any, app: App) -> None:
    async with system(Config(url=own.url, safety_cap=0.3), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        put(client, ["once", "again"])
        await running.recorder.wait(events.Dispatched, count=2)
        for queue in ("once", "again"):
            client.delete(f"evsched:{{{queue}}}:ready")
        await at_rest(running, "once", "again")
        put(client, ["once"], due=1)
        await running.recorder.wait(events.Dispatched, count=3)


@pytest.mark.extra
async def test_queues_that_another_task_checks_first_are_not_checked_twice(own: EmbeddedRedis, app: App) -> None:
    async with system(Config(url=own.url), app, workers=0) as running:
        loop = loop_of(running)
        await asyncio.gather(loop.settle(), loop._glance(1))  # pyright: ignore[reportPrivateUsage]


async def test_idle_queues_are_checked_in_few_calls(own: EmbeddedRedis, client: Any, app: App) -> None:
    async with system(Config(url=own.url, safety_cap=0.5), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        put(client, (f"far-{n}" for n in range(MANY)), due=4e9)
        await running.recorder.wait(events.QueueFound, count=MANY)
        steps = len(running.recorder.of(events.Woken))
        glances = list[int]()
        loop = loop_of(running)
        glance = loop._glance  # pyright: ignore[reportPrivateUsage]

        async def counted(most: int) -> None:
            glances.append(1)
            await glance(most)

        loop._glance = counted  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        async with asyncio.timeout(PATIENCE):
            while len(glances) < 8:
                await running.sender.send(server.clock())
        assert len(running.recorder.of(events.Woken)) - steps < MANY / 10
        # A job that is due earlier than any known one still wakes its queue.
        put(client, ["far-3"], due=1)
        await running.recorder.wait(events.Dispatched, lambda event: event.queue == "far-3")


async def test_long_empty_queue_is_forgotten_and_found_by_its_next_event(
    own: EmbeddedRedis, client: Any, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = [f"old-{n}" for n in range(20)]
    client.sadd(SET, *old)
    client.xadd("evsched:{old-0}:ends", {"x": "1"})  # the ledger does not have it yet
    async with two_dispatchers(own, app) as (running, other):
        await other.recorder.wait(process_events.NotificationsProven)
        for one in (running, other):
            await at_rest(one, *old[1:])
        monkeypatch.setattr(queue_finder, "_FORGET_AFTER", 0.0)
        await in_the_set(running, {b"old-0"})
        monkeypatch.undo()
        put(client, ["old-3"])
        await in_the_set(running, {b"old-0", b"old-3"})


async def test_worker_keys_are_deleted_a_day_after_the_last_worker_ended(
    own: EmbeddedRedis, client: Any, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_finder, "_FORGET_AFTER", 0.0)
    now, day = client.time()[0], 86400
    for queue, ended in (("old", now - day - 9), ("new", now - day + 900)):
        client.sadd(SET, queue)
        client.sadd(f"evsched:{{{queue}}}:apps", "app")
        client.zadd(f"evsched:{{{queue}}}:revisions:app", {"content": 1})
        client.zadd(f"evsched:{{{queue}}}:programs", {"digest": ended})
        client.hset(f"evsched:{{{queue}}}:tasks", "t", "{}")
    kept = set(client.keys("evsched:{new}:*"))
    async with system(Config(url=own.url, safety_cap=0.2), app, workers=0) as running:
        await running.recorder.wait(process_events.NotificationsProven)
        await in_the_set(running, {b"new"})
        assert {*client.keys("evsched:{old}:*"), *client.keys("evsched:{new}:*")} == kept
        # It was to be forgotten too, so it is known still: its lost event is found.
        client.config_set("notify-keyspace-events", "")
        put(client, ["new"])
        await running.recorder.wait(events.Dispatched, lambda event: event.queue == "new")


async def test_queue_with_an_event_while_being_forgotten_stays_in_the_set(
    own: EmbeddedRedis, client: Any, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event comes before, during or after the removal."""
    queues, runtime = ["before", "during", "after"], System(Config(url=own.url), app, Recorder()).runtime
    client.sadd(SET, *queues)
    send = runtime.sender.send

    async def send_and_add(call: Call[Any]) -> Any:
        reply = await send(call)
        if call.words[0] == "SREM":
            assert kept.add("during")
        return reply

    monkeypatch.setattr(runtime.sender, "send", send_and_add)
    kept = QueueSet(runtime)
    await kept.read()
    kept.remove(queues)
    assert not kept.add("before")
    await kept.write()
    assert kept.add("after")
    await kept.write()
    assert client.smembers(SET) == {name.encode() for name in queues}
    await runtime.sender.close()


async def test_the_janitor_surveys_only_the_queues_that_have_workers(own: EmbeddedRedis, client: Any, app: App) -> None:
    put(client, (f"far-{n}" for n in range(MANY)), due=4e9)
    client.zadd("evsched:{far-7}:leases", {"w": 1})
    config = Config(url=own.url, lease=0.5, heartbeat=0.1, idle_lease=0.5, idle_heartbeat=0.1)
    async with system(config, app, workers=0, dispatch=False) as running:
        surveyed, send = list[Any](), running.sender.send

        async def note(call: Call[Any]) -> Any:
            if call.name == "survey":
                surveyed.append(call.near)
            return await send(call)

        running.sender.send = note
        await running.dispatcher.find_queues()
        running.dispatch()
        async with asyncio.timeout(PATIENCE):
            while client.exists("evsched:{far-7}:leases"):
                await running.sender.send(server.clock())
        assert {*surveyed} == {"evsched:{far-7}:"}
