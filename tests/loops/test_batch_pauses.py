"""Pauses of batches with real dispatchers and workers: none of their jobs starts meanwhile, and all run afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import App, JobLate, Retry, events
from evsched.batches import keeper, pausing
from evsched.batches.batch import Batch
from evsched.batches.node import StoredNode
from evsched.client import new_shards
from evsched.config import Config
from evsched.errors import ConfigError, JobMissing, StoreRefused
from evsched.jobs.job import encode
from evsched.store import server
from evsched.store.batch_calls import PlanRow
from evsched.store.batch_pauses import Hold
from evsched.store.gate_limits import Limits
from evsched.store.store import Store
from tests.support.patience import PATIENCE
from tests.support.system import System, system


class Tasks:
    """An app whose tasks a test needs."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.ran = ran = Counter[str]()
        self.hold = hold = asyncio.Event()
        self.started = started = asyncio.Event()

        @app.task
        async def work(name: str = "work") -> str:
            ran[name] += 1
            return name

        @app.task(retry=Retry(attempts=2, interval=0.01, jitter=0.0))
        async def wait(name: str, failures: int = 0) -> str:
            ran[name] += 1
            started.set()
            await hold.wait()
            if ran[name] <= failures:
                raise ValueError(name)
            return name

        @app.task(retry=Retry(attempts=1))
        async def fail_once(name: str) -> None:
            ran[name] += 1
            if ran[name] == 1:
                raise ValueError(name)

        @app.task
        async def span(count: int) -> list[str]:
            return [f"item {n}" for n in range(count)]

        self.work, self.wait, self.fail_once, self.span = work, wait, fail_once, span

    async def pass_by(self, queue: str) -> None:
        """Run a job outside the batch, behind all that is due in a queue: what may start has started then."""
        await (await self.work.using(queue=queue, priority=0).enqueue("other")).result(PATIENCE)


@pytest.fixture
def tasks(app: App) -> Tasks:
    return Tasks(app)


@pytest.fixture
def other(queue: str) -> str:
    return f"{queue}-other"


async def test_no_job_starts_while_its_batch_is_paused_and_all_run_afterwards(
    config: Config, tasks: Tasks, queue: str, other: str
) -> None:
    config = replace(config, queues=(queue, other))
    async with system(config, tasks.app) as running:
        batch = await tasks.app.batch().open()
        await batch.add(tasks.wait, "failing", failures=1)
        await tasks.started.wait()
        delayed = await batch.add(tasks.work.using(delay=3600), "delayed")
        since = await batch.pause(why="the disk is full")
        await delayed.reschedule(delay=0)
        await batch.add(tasks.work.using(queue=other), "added")  # in a queue that nobody knew of
        tasks.hold.set()
        await running.recorder.until(lambda: dispatched(running) == 4)  # one of them twice
        for name in (queue, other):
            await tasks.pass_by(name)
        assert tasks.ran == {"failing": 1, "other": 2}
        found = await batch.status()
        assert (found.paused, found.paused_why, found.open) == (since, "the disk is full", 3)
        assert await batch.pause(why="still full") == since
        assert await batch.resume() == since
        assert await batch.resume() is None
        await batch.close()
        assert (await batch.wait(PATIENCE)).done == 3
        assert tasks.ran["failing"] == 2
        for name in (queue, other):
            assert (await tasks.app.client.limits(name)).batches == ()


async def test_no_job_starts_after_its_batch_was_cancelled(
    config: Config, tasks: Tasks, queue: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keepers cancel jobs some at a time; here they have not begun."""
    slices = vars(keeper)["_SLICES"]
    monkeypatch.setattr(keeper, "_SLICES", 0)
    async with system(replace(config, queues=(queue, other)), tasks.app) as running:
        batch = await tasks.app.batch().open()
        jobs = [
            await batch.add(tasks.work.using(delay=3600), "a"),
            await batch.add(tasks.work.using(delay=3600, queue=other), "b"),
        ]
        await batch.cancel()
        for job in jobs:
            await job.reschedule()
        await running.recorder.until(lambda: dispatched(running) == 2)
        for name in (queue, other):
            await tasks.pass_by(name)
        assert tasks.ran == {"other": 2}
        monkeypatch.setattr(keeper, "_SLICES", slices)
        assert (await batch.wait(PATIENCE)).cancelled == 2
        for name in (queue, other):
            while (await tasks.app.client.limits(name)).batches:
                await running.recorder.wait(events.ChoresDone)


def dispatched(running: System) -> int:
    """Return how many jobs have left the schedules."""
    return sum(len(event.lateness) for event in running.recorder.of(events.Dispatched))


async def paused_batch(tasks: Tasks, *jobs: str, **options: Any) -> Batch:
    """Return a batch that is closed and paused, with jobs of the task `work`."""
    batch = await tasks.app.batch(**options).open()
    await batch.pause()
    await batch.add_many(tasks.work, [(job,) for job in jobs])
    await batch.close()
    return batch


async def test_pause_ends_by_itself_at_its_end(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app):
        batch = await paused_batch(tasks, "a")
        await batch.pause(until=await now(tasks.app) + 0.2)
        assert (await batch.wait(PATIENCE)).done == 1
        with pytest.raises(JobLate, match="has ended: there is nothing to pause"):
            await batch.pause()
        with pytest.raises(JobMissing):
            await tasks.app.known_batch("none").pause()
        with pytest.raises(ConfigError, match="until has passed"):
            await batch.pause(until=1.0)


async def now(app: App) -> float:
    return await app.client.send(server.clock("x"))


async def test_keeper_applies_the_pause_and_the_end_of_a_program_that_died(
    config: Config, tasks: Tasks, queue: str
) -> None:
    async with system(config, tasks.app) as running:
        batch = await tasks.app.batch().open()
        await batch.add_many(tasks.work.using(delay=3600), [("a",), ("b",)])
        await batch.close()
        for held in (True, False):
            change = Store(queue).batch_pause(batch.id, held=held, after=0.0)
            paused = await running.sender.send(change)
            await running.recorder.wait(
                events.ChoresDone, lambda event, stamp=paused.stamp: f"hold {batch.id} {stamp} 0" in event.steps
            )
            for job in await batch.members():
                if held:
                    await tasks.app.client.reschedule(queue, job.id, delay=0)
            if held:
                await tasks.pass_by(queue)
                assert tasks.ran == {"other": 1}
        assert (await batch.wait(PATIENCE)).done == 2


@pytest.mark.extra
async def test_queue_that_refuses_a_pause_keeps_no_other_from_it(
    config: Config, tasks: Tasks, queue: str, raw: Any
) -> None:
    config = replace(config, queues=(queue,))
    async with system(config, tasks.app) as running:
        batch = await tasks.app.batch().open()
        for name in (queue, f"{queue}-a"):
            await batch.add(tasks.work.using(queue=name, delay=3600))
        raw.set(f"evsched:{{{queue}}}:batch_holds", "wrong")
        with pytest.raises(StoreRefused, match="batch_holds is a string"):
            await batch.pause()
        assert len((await running.sender.send(Store(f"{queue}-a").limits())).batches) == 1
        raw.delete(f"evsched:{{{queue}}}:batch_holds")
        await batch.pause()
        assert len((await running.sender.send(Store(queue).limits())).batches) == 1


@pytest.mark.extra
async def test_keeper_applies_the_pause_of_a_batch_with_many_parts_a_slice_at_a_time(
    config: Config, tasks: Tasks, queue: str, other: str
) -> None:
    async with system(config, tasks.app) as running:
        batch, store = await tasks.app.batch().open(), Store(queue)
        for n in range(pausing.SLICE):
            await running.sender.send(store.batch_add(batch.id, f"r{n}", 1, (queue, other)[n % 2]))
        await running.sender.send(store.batch_add(batch.id, "s", 1, f"{queue}-last"))
        paused = await running.sender.send(store.batch_pause(batch.id, held=True, after=0.0))
        step = f"hold {batch.id} {paused.stamp} {pausing.SLICE}"
        await running.recorder.wait(events.ChoresDone, lambda event: step in event.steps)
        for name in (queue, other, f"{queue}-last"):
            assert len((await running.sender.send(Store(name).limits())).batches) == 1


async def test_batches_in_a_batch_are_paused_and_resumed_with_it(config: Config, tasks: Tasks, queue: str) -> None:
    async with system(config, tasks.app):
        outer = await tasks.app.batch("outer").open()
        before = await outer.batch("before").open()
        await outer.pause(why="full")
        during = await outer.batch("during").open()
        for inner in (before, during):
            assert (await inner.status()).paused
            await inner.add(tasks.work, inner.id)
            await inner.close()
        await outer.close()
        await tasks.pass_by(queue)
        assert tasks.ran == {"other": 1}
        await outer.resume()
        assert (await outer.wait(PATIENCE)).done == 2
        assert [(await inner.status()).paused for inner in (before, during)] == [None, None]


async def test_graph_is_paused_with_the_jobs_that_it_has_not_made_yet(
    config: Config, tasks: Tasks, queue: str, other: str
) -> None:
    config = replace(config, queues=(queue, other))
    async with system(config, tasks.app) as running:
        graph = tasks.app.graph("g")
        graph.add("span", tasks.span.s(3))
        graph.add("wait", tasks.wait.s("wait"))
        graph.each("items", tasks.work.using(queue=other).s(), over="span", after=["wait"], take=())
        graph.add("last", tasks.work.using(queue=other).s("last"), after=["wait"], take=())
        await graph.enqueue()
        await tasks.started.wait()
        await running.recorder.wait(events.Completed, lambda event: "g.span" in event.ids)
        batch = tasks.app.known_batch("g")
        await batch.pause()
        tasks.hold.set()
        await running.recorder.wait(events.ChoresDone, lambda event: "start g 2,3" in event.steps)
        await tasks.pass_by(other)
        assert tasks.ran == {"wait": 1, "other": 1}
        assert (await tasks.app.known_batch("g.items").status()).paused
        await batch.resume()
        assert (await batch.wait(PATIENCE)).done == 4
        assert tasks.ran == {"wait": 1, "other": 1, "last": 1} | {f"item {n}": 1 for n in range(3)}


@pytest.mark.extra
async def test_node_waits_whose_graph_was_paused_before_it_was_written(
    config: Config, tasks: Tasks, queue: str, other: str
) -> None:
    config = replace(config, queues=(queue, other))
    async with system(config, tasks.app) as running:
        batch, store = await tasks.app.batch("g").open(), Store(queue)
        await batch.pause()
        payload: dict[str, Any] = {"task": tasks.work.name, "args": ["node"], "kwargs": {}, "retention": 1.0}
        node = StoredNode("a", other, payload, 1.0)
        await running.sender.send(store.batch_plan("g", 0, [PlanRow(encode(node), "g.a", other)]))
        await batch.close()
        await running.recorder.wait(events.ChoresDone, lambda event: "start g 0" in event.steps)
        await tasks.pass_by(other)
        assert tasks.ran == {"other": 1}
        await batch.resume()
        assert (await batch.wait(PATIENCE)).done == 1


async def test_paused_batch_is_cancelled_at_once(config: Config, tasks: Tasks, queue: str) -> None:
    async with system(config, tasks.app):
        batch = await paused_batch(tasks, "a", "b")
        await batch.cancel()
        found = await batch.wait(PATIENCE)
        assert (found.state, found.cancelled, found.paused) == ("cancelled", 2, None)
        await tasks.pass_by(queue)
        assert tasks.ran == {"other": 1}


@pytest.mark.extra
async def test_paused_batch_expires(config: Config, tasks: Tasks) -> None:
    async with system(config, tasks.app):
        batch = await paused_batch(tasks, "a", expires=0.2)
        found = await batch.wait(PATIENCE)
        assert (found.state, found.cancelled, found.paused) == ("failed", 1, None)


@pytest.mark.extra
async def test_revived_job_of_a_paused_batch_waits(config: Config, tasks: Tasks, queue: str) -> None:
    async with system(config, tasks.app) as running:
        batch = await tasks.app.batch().open()
        job = await batch.add(tasks.fail_once, "dead")
        await running.recorder.wait(events.JobBuried)
        await batch.pause()
        assert await tasks.app.client.revive(queue, [job.id]) == 1
        await tasks.pass_by(queue)
        assert tasks.ran == {"dead": 1, "other": 1}
        await batch.resume()
        await running.recorder.wait(events.Completed, lambda event: job.id in event.ids)
        assert tasks.ran == {"dead": 2, "other": 1}


async def test_forgotten_batch_leaves_nothing_in_its_queues(
    config: Config, tasks: Tasks, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "FORGET_AFTER", 0.2)
    async with system(config, tasks.app) as running:
        batch = await paused_batch(tasks, "a", retention=0.0)
        await batch.cancel()
        await running.recorder.wait(events.ChoresDone, lambda event: f"forget {batch.id}" in event.steps, count=1)
        assert await running.sender.send(Store(queue).held_batches()) == []
        assert await running.sender.send(Store(queue).limits()) == Limits()


async def test_shard_that_is_made_while_a_batch_is_paused_holds_its_jobs(
    config: Config, tasks: Tasks, queue: str
) -> None:
    async with system(config, tasks.app) as running:
        batch = await tasks.app.batch().open()
        await batch.add(tasks.work, "a")
        await batch.pause()
        client, shard = tasks.app.client, Store(f"{queue}:0")
        stray = Hold(f"{queue}/gone", 1, "1")  # from when it was a shard before
        await client.send(shard.batch_hold(await now(tasks.app) + 30, [stray]))
        gates = await client.run(new_shards.plan(queue, 0, 2))
        await client.run(new_shards.open_new(gates))
        (held,) = await running.sender.send(Store(queue).held_batches())
        assert await running.sender.send(shard.held_batches()) == [held]
        later = held._replace(stamp=held.stamp + 1, held="")
        await client.send(Store(queue).batch_hold(await now(tasks.app) + 30, [later]))  # by one who did not know of it
        await client.send(server.set_shards(queue, 2))
        await client.run(new_shards.settle(queue, 2))
        assert await running.sender.send(shard.held_batches()) == [later]


@pytest.mark.extra
async def test_batch_in_a_queue_with_shards_is_paused_in_all_of_them(config: Config, tasks: Tasks, queue: str) -> None:
    tasks.app.shards.grow({queue: 2})
    async with system(config, tasks.app) as running:
        await running.sender.send(server.set_shards(queue, 2))
        batch = await paused_batch(tasks, *(f"job {n}" for n in range(20)))
        for store in await tasks.app.client.whole(queue):
            assert (await running.sender.send(store.limits())).batches == (f"batch:{queue}/{batch.id}",)
        await batch.resume()
        for store in await tasks.app.client.whole(queue):
            assert (await running.sender.send(store.limits())).batches == ()


def test_programs_without_an_event_loop_pause_batches(config: Config, app: App) -> None:
    app.move_to(config.url)
    with app.sync() as client:
        batch = client.batch().open()
        since = batch.pause(why="full")
        assert (batch.status().paused, batch.status().paused_why) == (since, "full")
        assert batch.resume() == since
