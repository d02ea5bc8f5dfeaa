"""The pages about batches: the list, how far one is, what failed in it, its jobs, and what can be done with it."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from evsched import keys
from evsched.client.client import Client
from evsched.console import batch_lists
from evsched.console.live import PAGE_RATE
from evsched.console.page import Visit
from evsched.console.users import Visitor
from evsched.console.views.batches import VIEWS, bar_of
from evsched.jobs.job import Buried, Done
from evsched.store.batch_calls import BatchRecord
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.browsing import browsing
from tests.support.console import Consoles, consoles

CALLS = {
    "on_done": '{"queue":"reports","payload":{"task":"summarize"}}',
    "on_failed": '{"queue":"reports","payload":{"task":"alarm"}}',
}
DIED = Buried("attempt 1 of 1: shop.errors.ValueError: row 7", False, error="ValueError", location="/srv/rows.py:9")


@pytest.fixture
async def client(server: EmbeddedRedis, queue: str, raw: Any) -> AsyncGenerator[Client]:
    raw.sadd(keys.QUEUES, queue)
    client = Client(server.url)
    yield client
    await client.close()


class Scene:
    """Batches whose jobs are ended by hand."""

    def __init__(self, client: Client, queue: str) -> None:
        self.client, self.queue, self.store = client, queue, Store(queue)

    async def open(self, batch: str, jobs: int = 0, *, at: float | None = None, **options: Any) -> None:
        """Open a batch with jobs that wait."""
        store = self.store if at is None else self.store.at(at)
        fields = {"tags": '["nightly"]', "by": "loader", **options.pop("fields", {})}
        await self.client.send(store.batch_open(batch, "t", retention=1e6, fields=fields, **options))
        if jobs:
            reserved = await self.client.send(self.store.batch_add(batch, "r", jobs, self.queue))
            new = [New(f"{batch}.{n}", b'{"task":"load"}', delay=3600.0) for n in range(jobs)]
            await self.client.send(self.store.enqueue(new, batch=reserved.address(self.queue, batch)))

    async def close(self, batch: str) -> None:
        await self.client.send(self.store.batch_close(batch, confirms="r"))

    async def end(self, batch: str, ends: dict[int, Done | Buried]) -> None:
        """Run jobs of a batch, and report their ends."""
        for ordinal in ends:
            await self.client.reschedule(self.queue, f"{batch}.{ordinal}", delay=0)
        await self.client.send(self.store.dispatch(limit=99, cap=99))
        runs = (await self.client.send(self.store.start("w", (), hold=99, lease=99))).jobs
        for run in runs:
            ordinal = int(run.id.rpartition(".")[2])
            end = ends[ordinal]
            if isinstance(end, Done):
                await self.client.send(self.store.complete("w", [(run, end)]))
            else:
                await self.client.send(self.store.bury("w", [(run, end)]))
            code = b"\x01" if isinstance(end, Done) else b"\x02"
            await self.client.send(self.store.batch_count([(batch, ordinal, code)]))


@pytest.fixture
def scene(client: Client, queue: str) -> Scene:
    return Scene(client, queue)


DONE = Done(b"1", 3600, False)


async def test_batches_are_listed_with_the_newest_first(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    now = time.time()
    await scene.open("old", at=now - 60)
    await scene.close("old")
    await scene.open("new", 4)
    await scene.close("new")
    await scene.end("new", {0: DONE, 1: DONE, 2: DIED})
    async with browsing(server.url) as browser:
        page, words = await browser.settled("/batches"), await browser.words("/batches")
        running = await browser.words("/batches", state="running", queue=queue)
        other = await browser.words("/batches", queue="other")
    assert "2 batches: 1 running." in words
    assert f"new nightly, by loader running in {queue}, 1 failed running 75.00 % 4 2 1 1 {queue}" in words
    assert words.index("new nightly") < words.index("old nightly")
    assert 'aria-label="2 done, 1 dead, 1 not ended of 4"' in page
    assert f"evsched batches --queue {queue}" in words
    assert "new nightly" in running
    assert "old nightly" not in running
    assert "No batches whose home is other." in other


async def test_many_batches_are_read_in_slices_and_shown_on_pages(
    server: EmbeddedRedis, queue: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_lists, "_SLICE", 20)
    now = time.time()
    for n in range(70):
        await scene.open(f"b{n:02}", at=now + n)
    async with browsing(server.url) as browser:
        found, visited = batch_lists.BatchLists(), browser.console.client.metered()
        while not (rows := await found.look(visited, [queue])) or found.unread([queue]):
            pass
        assert (len(rows), visited.commands) == (70, 5), "four slices, and a glance"
        browser.console.memory["batches"] = found
        pages = [await browser.settled("/batches", page=page) for page in ("0", "1")]
    names = [re.findall(r"id=(b\d\d)", page) for page in pages]
    assert [*names[0], *names[1]] == [f"b{n:02}" for n in reversed(range(70))]
    assert "1 to 50 of 70" in pages[0]


async def test_the_page_of_a_batch_says_how_far_it_is_and_what_failed(
    server: EmbeddedRedis, queue: str, scene: Scene
) -> None:
    await scene.open("b", 5, expires=9999.0, fields=CALLS)
    await scene.close("b")
    await scene.end("b", {1: DONE, 3: DIED})
    async with browsing(server.url) as browser:
        page, words = await browser.page("/batch", queue=queue, id="b"), ""
        words = await browser.words("/batch", queue=queue, id="b")
        dead = await browser.words("/batch", queue=queue, id="b", show="dead")
        job = await browser.page("/job", queue=queue, id="b.0")
    assert "running 2 of 5 jobs have ended. The rate is known in a moment." in words
    assert "1 job is dead. Correct the cause and revive it" in words
    assert "First failures b.3 load dead ValueError: row 7 " in words
    assert "once it is done summarize in reports if it fails alarm in reports" in words
    assert "all 5 not ended 3 done 1 dead 1" in words
    assert "b.0 load on the schedule load" in words
    assert "b.1 load done load" in words
    assert "b.1 load" not in dead
    assert "b.3 load dead ValueError: row 7 load" in dead
    assert f'href="/job?queue={queue}&amp;id=b.3"' in page
    assert f'href="/batch?queue={queue}&amp;id=b"' in job


async def test_rate_of_a_batch_comes_from_two_readings(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    await scene.open("b", 5)
    async with browsing(server.url) as browser:
        assert "The rate is known in a moment." in await browser.words("/batch", queue=queue, id="b")
        lists: batch_lists.BatchLists = browser.console.memory["batches"]
        pace = batch_lists.Pace()
        pace.note(time.monotonic() - 10, 0)
        lists._paces[queue, "b"] = pace  # pyright: ignore[reportPrivateUsage]
        await scene.end("b", {0: DONE, 1: DONE, 2: DONE})
        words = await browser.words("/batch", queue=queue, id="b")
    assert re.search(r"3 of 5 jobs have ended\. 1[78] a minute; at this rate the rest takes [67]\.\d s\.", words)


async def test_a_batch_is_cancelled_after_a_confirmation(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    await scene.open("b", 2)
    async with browsing(server.url) as browser:
        page = await browser.page("/batch", queue=queue, id="b")
        assert "/act/cancel-batch" not in page
        asked = await browser.page("/batch", queue=queue, id="b", ask="cancel")
        said = await browser.send(asked, "cancel-batch", queue=queue, id="b")
        assert "Batch b is being cancelled." in said
        assert "stopping" in said
        assert "Cancel…" not in said
    (act,) = await scene.client.audit(queue)
    assert (act.source, act.act, act.what) == ("console", "cancel", {"batch": "b"})


async def test_a_batch_is_paused_with_a_reason_and_resumed(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    await scene.open("b", 2)
    async with browsing(server.url) as browser:
        asked = await browser.page("/batch", queue=queue, id="b", ask="pause")
        said = await browser.send(asked, "pause-batch", queue=queue, id="b", until="1h", why="the disk is full")
        assert "Batch b is paused until" in said
        words = await browser.words("/batch", queue=queue, id="b")
        assert "paused 0 of 2 jobs have ended." in words
        assert "“the disk is full”. None of its jobs starts until it is resumed" in words
        assert "paused" in await browser.words("/batches")
        page = await browser.page("/batch", queue=queue, id="b")
        assert "paused batch b" in await browser.words("/audit")
        assert "Batch b is resumed." in await browser.send(page, "resume-batch", queue=queue, id="b")
        assert "Batch b was not paused." in await browser.send(page, "resume-batch", queue=queue, id="b")
    acts = [(act.source, act.act, act.what.get("why")) for act in await scene.client.audit(queue)]
    assert acts[-1] == ("console", "pause", "the disk is full")
    assert ("console", "resume", None) in acts


async def test_dead_jobs_of_a_batch_are_revived(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    await scene.open("b", 3)
    await scene.close("b")
    await scene.end("b", {0: DIED, 1: DONE, 2: DIED})
    async with browsing(server.url) as browser:
        said = await browser.words("/batch", queue=queue, id="b", ask="revive")
        assert "failed 1 of 3 jobs are done. It ended" in said
        assert "Revive 2 dead jobs of b?" in said
        await scene.client.drop(queue, ["b.2"])
        answer = await browser.act(f"/batch?queue={queue}&id=b&ask=revive", "revive-batch", queue=queue, id="b")
        await browser.console.acts.wait()
        words = await browser.words(answer.headers["location"])
    assert "1 changed. 1 left as found." in words
    status = await scene.client.status(queue, "b.0")
    assert status is not None
    assert status.place == "schedule"


async def test_batch_in_a_batch_is_linked_both_ways(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    await scene.open("outer")
    await scene.client.send(scene.store.batch_add("outer", "x", 1, queue, ids=["/inner"]))
    await scene.open("inner", parent=f"{queue}/outer/0")
    async with browsing(server.url) as browser:
        outer = await browser.page("/batch", queue=queue, id="outer")
        inner = await browser.words("/batch", queue=queue, id="inner")
    assert f'href="/batch?queue={queue}&amp;id=inner"' in outer
    assert "is a part of outer" in inner


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/batches", {"say", "filter", "batches"}),
        ("/batch", {"say", "acts", "progress", "graph", "failures", "facts", "nodes"}),
    ],
)
async def test_an_open_page_of_batches_gets_its_regions(
    server: EmbeddedRedis, queue: str, scene: Scene, path: str, names: set[str]
) -> None:
    await scene.open("b", 2)
    query = {"queue": queue, "id": "b"} if path == "/batch" else {}
    async with browsing(server.url) as browser:
        regions = await browser.regions(path, **query)
        page = await browser.page(path, **query)
    assert regions.keys() == names
    for name, html in regions.items():
        assert f'data-live="{name}"' in html
        assert f'data-live="{name}"' in page


async def test_open_page_of_a_large_batch_costs_a_few_commands(
    server: EmbeddedRedis, queue: str, scene: Scene, raw: Any
) -> None:
    await scene.open("b")
    for n in range(10):
        await scene.client.send(scene.store.batch_add("b", f"r{n}", 10_000, queue))
    await scene.client.send(scene.store.batch_count([("b", 99_990 + n, b"\x02") for n in range(10)]))
    follow = next(view.follow for view in VIEWS if view.path == "/batch")
    assert follow is not None
    async with browsing(server.url) as browser:
        for most in (7, 2):  # the failures are read again after a while, or if there are others
            query = QueryParams({"queue": queue, "id": "b"})
            console = browser.console
            visit = Visit(console, console.client.metered(), Visitor("ann", "viewer"), query, "")
            values = await follow(visit)
            assert len(values["failures"]) == 10
            assert visit.client.commands <= most
    assert most <= PAGE_RATE


@pytest.mark.extra
async def test_viewer_sees_a_batch_and_no_acts(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    await scene.open("b", 2)
    users: Consoles
    with consoles(server.url) as users:
        async with users.app() as app, users.signed_in(app, "viewer") as viewer:
            for ask in ("", "&ask=cancel"):
                page = (await viewer.get(f"/batch?queue={queue}&id=b{ask}")).text
                assert "2 jobs" in page or "0 of 2" in page
                assert "/act/" not in page
                assert "Cancel" not in page
            assert (await viewer.send("/act/cancel-batch", queue=queue, id="b")).status_code == 403


@pytest.mark.extra
@pytest.mark.parametrize("batch", ["never", "a b", "../x"])
async def test_batch_that_is_not_there_is_a_page_that_says_so(
    server: EmbeddedRedis, queue: str, client: Client, batch: str
) -> None:
    async with browsing(server.url) as browser:
        gone = await browser.client.get("/batch", params={"queue": queue, "id": batch})
    assert gone.status_code == 404
    assert f"There is no batch {batch} in queue {queue}" in gone.text


def test_part_of_few_jobs_is_seen_in_the_bar() -> None:
    record = BatchRecord("b", "q", "running", 0.0, total=1000, done=996, dead=1, cancelled=1, expired=0)
    assert [(one.drawn, one.x, one.width) for one in bar_of(record)] == [
        ("f-ok", 0.0, 92.5),
        ("f-bad", 92.5, 2.5),
        ("f-soft", 95.0, 2.5),
    ]
    assert bar_of(BatchRecord("b", "q", "open", 0.0, 0, 0, 0, 0, 0)) == []
