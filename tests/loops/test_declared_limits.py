"""Limits in code: workers set them for their queues, over all workers, and again after Redis has lost its data."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from evsched import App, events
from evsched.config import Config
from evsched.store.gate_limits import Limits
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder
from tests.support.system import system


def limited(queue: str, concurrency: int, revision: int | None = None, **more: Any) -> App:
    app = App(queue=queue, name="app", revision=revision)
    app.limit(concurrency=concurrency, **more)
    return app


def declared(recorder: Recorder) -> list[tuple[str, str]]:
    return [(event.limit, event.value) for event in recorder.of(events.LimitDeclared)]


async def in_force(sender: BatchingSender, queue: str) -> dict[str, float | None]:
    return (await sender.send(Store(queue).limits())).fields()


async def test_task_concurrency_holds_across_workers_and_other_jobs_run(config: Config, app: App, queue: str) -> None:
    running, most, five = 0, 0, asyncio.Barrier(5)

    @app.task(concurrency=5)
    async def meet() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await five.wait()
        running -= 1

    @app.task
    async def other() -> None: ...

    async with system(config, app, workers=3) as whole:
        jobs = [job for group in "ab" for job in await meet.using(group=group).enqueue_many([()] * 24)]
        await (await other.using(group="a").enqueue()).result(PATIENCE)  # while others wait for a fifth, or at the gate
        jobs += await meet.enqueue_many([()] * 52)
        await asyncio.gather(*(job.result(PATIENCE) for job in jobs))
        assert declared(whole.recorder) == [("concurrency:task:meet", "5")]
    assert most == 5


async def test_worker_sets_the_limits_of_its_own_queues_only(
    config: Config, queue: str, sender: BatchingSender
) -> None:
    app = App(queue=queue)
    app.limit(rate=200)
    app.limit(f"{queue}-2", group="*", concurrency=2)
    app.limit(f"{queue}-3", group="alice", weight=2)
    app.task(name="few", concurrency=3)(asyncio.Event().wait)
    async with system(structs.replace(config, queues=(queue, f"{queue}-2")), app, dispatch=False):
        of_task = {"concurrency:task:few": 3}
        assert await in_force(sender, queue) == {"rate": 200, **of_task}
        assert await in_force(sender, f"{queue}-2") == {"concurrency:*": 2, **of_task}
        assert await in_force(sender, f"{queue}-3") == {}


async def test_a_limit_in_code_may_differ_by_queue_from_that_of_the_task(
    config: Config, app: App, queue: str, sender: BatchingSender
) -> None:
    app.task(name="few", concurrency=3)(asyncio.Event().wait)
    app.limit(group="task:few", concurrency=1, rate=5)
    async with system(config, app, dispatch=False):
        assert await in_force(sender, queue) == {"concurrency:task:few": 1, "rate:task:few": 5}


@pytest.mark.parametrize("given", [True, False], ids=["given", "counted"])
async def test_manual_limit_holds_until_a_newer_revision_changes_the_declaration(
    config: Config, queue: str, sender: BatchingSender, given: bool
) -> None:
    declarations: list[tuple[int, dict[str, float]]] = [(2, {"burst": 9}), (2, {"rate": 5}), (3, {})]
    versions = [limited(queue, most, n if given else None, **more) for n, (most, more) in enumerate(declarations, 1)]
    found = list[dict[str, float | None]]()
    for version in (0, 1, 0, 2, 1):
        async with system(config, versions[version], dispatch=False) as whole:
            found.append(await in_force(sender, queue))
            outdated = whole.recorder.of(events.RevisionOutdated)
            assert bool(outdated) is (len(found) in (3, 5))
            if not outdated and version == 0:
                await sender.send(Store(queue).limit({"concurrency": 9}))
    assert found == [
        {"concurrency": 2, "burst": 9},
        {"concurrency": 9, "rate": 5},
        {"concurrency": 9, "rate": 5},
        {"concurrency": 3},
        {"concurrency": 3},
    ]


async def test_running_worker_sets_its_limits_at_a_heartbeat_after_rollback(
    config: Config, queue: str, sender: BatchingSender
) -> None:
    quick = structs.replace(config, idle_heartbeat=0.1, heartbeat=0.1)
    async with system(quick, limited(queue, 2, 2), dispatch=False):
        pass
    async with system(quick, limited(queue, 1, 1), dispatch=False) as running:
        assert declared(running.recorder) == []
        await sender.send(Store(queue).forget_revisions("app"))
        await running.recorder.wait(events.LimitDeclared)
        assert await in_force(sender, queue) == {"concurrency": 1}


async def test_limits_and_recurrences_are_restored_after_redis_loses_its_data(
    own: EmbeddedRedis, client: Any, queue: str
) -> None:
    app = limited(queue, 2)

    @app.recurring("@daily", name="r")
    async def work() -> None: ...

    async with system(Config(url=own.url, idle_heartbeat=0.1, heartbeat=0.1), app, dispatch=False) as running:
        client.flushall()
        await running.recorder.wait(events.RecurrenceDeclared, count=2)
        assert declared(running.recorder) == [("concurrency", "2")] * 2
        assert await running.sender.send(Store(queue).limits()) == Limits(queue={"concurrency": 2})


async def test_limits_are_set_while_memory_is_full(own: EmbeddedRedis, client: Any, queue: str) -> None:
    client.config_set("maxmemory", 1)
    async with system(Config(url=own.url), limited(queue, 2), dispatch=False) as running:
        assert declared(running.recorder) == [("concurrency", "2")]


@pytest.mark.parametrize("way", ["task", "using", "recurring"])
async def test_the_jobs_of_a_task_go_to_its_queue_which_workers_serve(
    server: EmbeddedRedis, queue: str, way: str
) -> None:
    app, other = App(queue=queue), f"{queue}-other"
    came = asyncio.Queue[None]()

    @app.task(queue=f"{queue}-own")
    async def work() -> None:
        await came.put(None)

    assert app.queues == [queue, f"{queue}-own"]
    if way == "recurring":
        app.recurring("@daily")(work)
        assert app.program.recurrences[0][0] == f"{queue}-own"
        app.recurring("@daily", queue=other, name="elsewhere")(work)
        assert app.queues == [queue, f"{queue}-own", other]
        return
    async with system(Config(url=server.url), app) as running:
        job = await (work.using(queue=other) if way == "using" else work).enqueue()
        assert job.queue == (other if way == "using" else f"{queue}-own")
        if way == "task":
            async with asyncio.timeout(PATIENCE):
                await came.get()
            assert running.recorder.of(events.WorkerStarted)[0].queues == app.queues
