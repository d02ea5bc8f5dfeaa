"""Unique jobs with a dispatcher and workers: one job in its time, with any number of producers and lost replies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from evsched import App, Job, JobDead, JobExists, Retry, Unique, events
from evsched.client import operations
from evsched.config import Config
from evsched.jobs.job import OnConflict
from evsched.transport.embedded import EmbeddedRedis
from tests.support.patience import PATIENCE
from tests.support.proxy import Direction, Proxy
from tests.support.system import system

PRODUCERS, CLIENTS = 1000, 20
"""So many enqueue at once, over so many connections."""


def all_the_same(producer: int) -> str:
    return "all the same"


def page_of(page: object, version: int = 1) -> object:
    return page


@pytest.mark.extra
@pytest.mark.parametrize("conflict", [None, "keep", "replace"])
@pytest.mark.parametrize("lost", ["up", "down"])
async def test_a_thousand_producers_whose_links_are_cut_make_one_job(
    own: EmbeddedRedis,
    queue: str,
    app: App,
    conflict: OnConflict | None,
    lost: Direction,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Commands or replies are lost, and all is sent again; when replies are, the job has ended by then."""
    monkeypatch.setattr(operations, "_PATIENCE", PATIENCE)  # a slow machine takes long for a thousand
    ran = list[int]()

    async def work(producer: int) -> None:
        ran.append(producer)

    direct = app.task(work)
    async with Proxy(("127.0.0.1", own.port or 0)) as proxy, system(Config(url=own.url, queues=(queue,)), app) as whole:
        clients = [App(f"redis://127.0.0.1:{proxy.port}/0", queue=queue) for _ in range(CLIENTS)]
        unique = Unique(by=all_the_same, within=3600)
        tasks = [client.task(work).using(unique=unique, on_conflict=conflict) for client in clients]

        async def produce(producer: int) -> str:
            try:
                return (await tasks[producer % CLIENTS].enqueue(producer)).id
            except JobExists:
                return "refused"

        for client in clients:  # which connects it
            await client.client.status(queue, "nobody")
        # The script is in Redis's cache after this: else Redis answers that it is not there, and runs nothing.
        await (await direct.using(on_conflict=conflict, id="other").enqueue(-1)).result(PATIENCE)
        received = proxy.received["up"]
        proxy.swallow(lost)
        producing = asyncio.gather(*(produce(n) for n in range(PRODUCERS)))
        await proxy.until(lambda: proxy.received["up"] > received)
        if lost == "down":
            await whole.recorder.until(lambda: len(whole.recorder.of(events.Completed)) == 2)
        proxy.heal()
        proxy.reset()
        made = await producing
        await (await direct.enqueue(-2)).result(PATIENCE)  # after all that was enqueued before
        for client in clients:
            await client.close()
    assert (len(ran), ran[0], ran[2]) == (3, -1, -2)
    # The producer of the job whose reply was lost is refused too, by its own job.
    assert made.count("refused") in ((PRODUCERS - 1, PRODUCERS) if conflict is None else (0,))
    assert len({*made} - {"refused"}) <= 1


async def test_a_second_call_is_refused_kept_or_replaced(config: Config, app: App) -> None:
    ran = list[tuple[str, int]]()

    @app.task
    async def index(page: str, version: int = 1) -> int:
        ran.append((page, version))
        return version

    by_page = Unique(by=page_of)
    async with system(config, app):
        first = await index.using(unique=by_page, delay=3600).enqueue("a")
        with pytest.raises(JobExists, match=f"{first.id} has not ended yet"):
            await index.using(unique=by_page).enqueue("a", version=2)
        kept = await index.using(unique=by_page, on_conflict="keep").enqueue("a", 3)
        replaced = await index.using(unique=by_page, on_conflict="replace").enqueue(version=4, page="a")
        assert first.id == kept.id == replaced.id
        assert await kept.result(PATIENCE) == 4
        with app.sync() as client:  # it has ended, and so it is free
            again = client.enqueue(index.using(unique=by_page), "a", 5)
        assert await app.job(again.id).result(PATIENCE) == 5
    assert ran == [("a", 4), ("a", 5)]


async def test_calls_that_are_the_same_in_one_enqueue_many_are_one_job(config: Config, app: App) -> None:
    ran = list[tuple[int, int]]()

    @app.task
    async def index(page: int, version: int) -> None:
        ran.append((page, version))

    async def all_end(jobs: list[Job[None]]) -> None:
        await asyncio.gather(*(job.result(PATIENCE) for job in jobs))

    calls = [(1, 1), (2, 1), (1, 2), (2, 2)]
    unique = Unique(by=page_of)
    async with system(config, app):
        with pytest.raises(JobExists, match="stands twice in this call"):
            await index.using(unique=unique).enqueue_many(calls)
        kept = await index.using(unique=unique, on_conflict="keep").enqueue_many(calls)
        assert [job.id for job in kept] == [kept[0].id, kept[1].id] * 2
        await all_end(kept)
        await all_end(await index.using(unique=unique, on_conflict="replace").enqueue_many(calls))
        with app.sync() as client:
            client.enqueue_many(index.using(unique=unique, on_conflict="keep"), calls)
        await all_end(kept)
    assert sorted(ran[:2]) == [(1, 1), (2, 1)]
    assert sorted(ran[2:4]) == [(1, 2), (2, 2)]
    assert sorted(ran[4:]) == [(1, 1), (2, 1)]


async def test_a_dead_job_is_met_within_the_time_and_makes_place_after_it(
    config: Config, app: App, raw: Any, queue: str
) -> None:
    works = False

    @app.task(retry=Retry(attempts=1))
    async def pay(order: str) -> None:
        if not works:
            raise ValueError(order)

    once = pay.using(unique=Unique(within=3600), on_conflict="keep")
    async with system(config, app):
        job = await once.enqueue("o-1")
        with pytest.raises(JobDead):
            await job.result(PATIENCE)
        with pytest.raises(JobDead, match="ValueError: o-1"):
            await (await once.enqueue("o-1")).result(PATIENCE)
        works = True
        raw.delete(f"evsched:{{{queue}}}:unique:{job.id}")  # as when the hour is over
        assert await (await once.enqueue("o-1")).result(PATIENCE) is None
        assert raw.zcard(f"evsched:{{{queue}}}:dead") == 0
