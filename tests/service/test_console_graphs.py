"""The graph of a batch in the console: its drawing or its layers, the list of its nodes, and the page of a node."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from evsched import keys
from evsched.batches.node import StoredNode, Take
from evsched.client.client import Client
from evsched.console import known_graphs
from evsched.console.page import Visit
from evsched.console.users import Visitor
from evsched.console.views import VIEWS
from evsched.jobs.job import encode
from evsched.store.batch_calls import PlanRow
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.browsing import Browser, browsing, words

DONE, DEAD = 1, 2


class Scene:
    """The graph `g`, whose jobs are started and ended by hand."""

    def __init__(self, client: Client, queue: str) -> None:
        self.client, self.queue, self.store = client, queue, Store(queue)
        self.names = list[str]()

    async def plan(self, nodes: Mapping[str, Sequence[int]], *, each: Sequence[str] = (), close: bool = True) -> None:
        """Open the graph with nodes, each with the ordinals of those before it."""
        self.names = [*nodes]
        await self.client.send(self.store.batch_open("g", "t", retention=1e6))
        rows = list[PlanRow]()
        for name, after in nodes.items():
            payload: dict[str, Any] = {"task": f"do-{name}"[:3], "args": [], "kwargs": {}, "retention": 9.0}
            over = Take(self.names[after[0]], after[0], self.queue) if name in each else None
            node = StoredNode(name, self.queue, payload, 9.0, over=over, limit=9)
            rows.append(PlanRow(encode(node), f"{'/' if over else ''}g.{name}", self.queue, after))
        for first in range(0, len(rows), 250):
            await self.client.send(self.store.batch_plan("g", first, rows[first : first + 250]))
        if close:
            await self.client.send(self.store.batch_close("g"))

    async def start(self, name: str) -> None:
        """Enqueue the job of a node, and have a worker run it."""
        address = f"{self.queue}/g/{self.names.index(name)}/4000000000.0"
        await self.client.send(self.store.enqueue([New(f"g.{name}", b'{"task":"t"}')], batch=address))
        await self.client.send(self.store.dispatch(limit=99, cap=99))
        await self.client.send(self.store.start("w", (), hold=99, lease=99))

    async def end(self, **outcomes: int) -> None:
        for name, code in outcomes.items():
            await self.client.send(self.store.batch_count([("g", self.names.index(name), bytes([code]))]))


@pytest.fixture
async def scene(server: EmbeddedRedis, queue: str, raw: Any) -> AsyncGenerator[Scene]:
    raw.sadd(keys.QUEUES, queue)
    client = Client(server.url)
    yield Scene(client, queue)
    await client.close()


DIAMOND = {"fetch": (), "left": (0,), "right": (0,), "last": (1, 2), "end": (3,)}


def chain(length: int) -> dict[str, Sequence[int]]:
    return {f"n{at}": (at - 1,) if at else () for at in range(length)}


def drawn(page: str) -> list[tuple[str, ...]]:
    """Return of each box what it is linked to, its title, its name and its state."""
    box = r'<a href="([^"]+)"><title>([^<]+)</title>.*?<text[^>]*>([^<]+)</text>.*?<text[^>]*>([^<]+)</text>'
    return re.findall(box, page)


async def commands(browser: Browser, path: str, query: Mapping[str, str]) -> int:
    """Read an open page once; return what it cost."""
    view = next(view for view in VIEWS if view.path == path)
    visit = Visit(browser.console, browser.console.client.metered(), Visitor("ann", "viewer"), QueryParams(query), "")
    await (view.follow or view.read)(visit)
    return visit.client.commands


async def test_graph_is_drawn_with_the_state_of_each_node(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    await scene.plan(DIAMOND)
    await scene.start("fetch")
    await scene.end(fetch=DONE)
    await scene.start("left")
    async with browsing(server.url) as browser:
        page = await browser.page("/batch", queue=queue, id="g")
        boxes = drawn(page)
        await scene.end(right=DEAD)
        region = (await browser.regions("/batch", queue=queue, id="g"))["graph"]
    assert [(name, state) for _, _, name, state in boxes] == [
        ("fetch", "done"),
        ("left", "runs"),
        ("right", "enqueued"),
        ("last", "waits for 2 of 2"),
        ("end", "waiting"),
    ]
    assert boxes[1][0] == f"/job?queue={queue}&amp;id=g.left"
    assert boxes[3][:2] == (f"/node?queue={queue}&amp;batch=g&amp;id=g.last", "last: waits for 2 of 2: left, right")
    assert "5 nodes in 4 layers: 1 done, 2 started, 2 waiting" in words(page)
    assert [(name, state) for _, _, name, state in drawn(region)][2:] == [
        ("right", "dead"),
        ("last", "stopped"),
        ("end", "stopped"),
    ]
    assert "end: stopped: right is dead" in region
    assert not re.search(r"style=|<script|url\(", region), "the console allows neither"


async def test_nodes_are_listed_with_what_they_wait_for(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    await scene.plan(DIAMOND)
    await scene.end(fetch=DONE)
    async with browsing(server.url) as browser:
        listed = words((await browser.regions("/batch", queue=queue, id="g"))["nodes"])
        waiting = words((await browser.regions("/batch", queue=queue, id="g", node="waiting"))["nodes"])
        whole = await browser.words("/batch", queue=queue, id="g")
    assert "all 5 done 1 started 2 waiting 2" in listed
    assert f"last do- waits for 2 of 2 for left, right left, right {queue}" in listed
    assert "fetch do-" not in waiting
    assert "last do-" in waiting
    assert "Jobs in the order" not in whole


async def test_each_is_drawn_with_how_many_of_its_jobs_have_ended(
    server: EmbeddedRedis, queue: str, scene: Scene
) -> None:
    await scene.plan({"pages": (), "check": (0,), "report": (1,)}, each=["check"])
    await scene.end(pages=DONE)
    async with browsing(server.url) as browser:
        before = await browser.client.get("/batch", params={"queue": queue, "id": "g.check"}, follow_redirects=True)
        await scene.client.send(scene.store.batch_open("g.check", "t", retention=99.0, parent=f"{queue}/g/1"))
        await scene.client.send(scene.store.batch_add("g.check", "r", 4, queue))
        await scene.client.send(scene.store.batch_count([("g.check", 0, b"\x01")]))
        box = drawn(await browser.page("/batch", queue=queue, id="g"))[1]
    times = "\N{MULTIPLICATION SIGN}"
    assert "g.check started: it was released" in words(before.text)
    assert box == (
        f"/batch?queue={queue}&amp;id=g.check",
        f"check {times} 4: 1 of 4 ended",
        f"check {times} 4",
        "1 of 4 ended",
    )


async def test_large_graph_is_a_table_of_layers(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    nodes: dict[str, Sequence[int]] = {f"a{at}": () for at in range(100)}
    nodes |= {f"b{at}": (at, (at + 1) % 100) for at in range(100)}
    await scene.plan(nodes)
    await scene.client.send(scene.store.batch_count([("g", 0, bytes([DONE] * 97 + [DEAD]))]))
    async with browsing(server.url) as browser:
        page = await browser.page("/batch", queue=queue, id="g")
        second = words((await browser.regions("/batch", queue=queue, id="g", layer="2", at="50"))["nodes"])
    said = words(page)
    assert '<svg class="graph"' not in page
    assert "Layer Nodes Done Started Wait Failed Stopped 1 100 97 2 0 1 0 2 100 0 96 2 0 2" in said
    assert "dead a97" in said
    assert "next b98" in said
    assert len(re.findall('<td class="key"><a class="id"', page.partition("<h2>Nodes")[2])) == 50
    assert "layer 2: 100" in second
    assert "51 to 100 of 100" in second


async def test_layers_of_a_long_chain_are_put_together(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    await scene.plan(chain(1000))
    for at in range(20):
        await scene.end(**{f"n{at}": DONE})
    async with browsing(server.url) as browser:
        said = await browser.words("/batch", queue=queue, id="g")
    assert "Stopped 1 to 20 20 20 0 0 0 0 21 1 0 1 0 0 0 22 to 1,000 979 0 0 979 0 0 It is too large" in said


async def test_open_page_reads_the_plan_of_a_graph_once(
    server: EmbeddedRedis, queue: str, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_graphs, "_LOOK", 0.0)
    await scene.plan(chain(600))
    await scene.start("n0")
    query = {"queue": queue, "id": "g"}
    async with browsing(server.url) as browser:
        said = words(await browser.page("/batch", **query))
        costs = [await commands(browser, "/batch", query) for _ in range(4)]
        await scene.end(n0=DONE)
        later = words((await browser.regions("/batch", **query))["graph"])
    assert "Read so far: 250 of 600 nodes; more follow" in said
    assert costs == [6, 6, 4, 4], "the record, its end, how the nodes have ended, and the node that runs; and the plan"
    assert "1 to 1 1 1" not in later
    assert "600 nodes in 600 layers: 1 done" in later


@pytest.mark.extra
async def test_graph_that_has_ended_is_not_read_again(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    await scene.plan(chain(2))
    await scene.end(n0=DONE, n1=DONE)
    query = {"queue": queue, "id": "g"}
    async with browsing(server.url) as browser:
        assert "2 done" in await browser.words("/batch", **query)
        assert await commands(browser, "/batch", query) == 1


async def test_job_page_of_a_waiting_node_says_what_it_waits_for(
    server: EmbeddedRedis, queue: str, scene: Scene
) -> None:
    await scene.plan({"a": (), "b": (), "c": (), "d": (0, 1, 2), "e": (3,)})
    await scene.end(a=DONE)
    async with browsing(server.url) as browser:
        said = await browser.words("/job", queue=queue, id="g.d")
        node = await browser.regions("/node", queue=queue, batch="g", id="g.d")
        await scene.end(b=DONE, c=DONE)
        await scene.start("d")
        later = await browser.regions("/node", queue=queue, batch="g", id="g.d")
        job = await browser.words("/node", queue=queue, batch="g", id="g.d")
        gone = await browser.client.get("/job", params={"queue": queue, "id": "g.x"}, follow_redirects=True)
        other = await browser.client.get("/job", params={"queue": queue, "id": "x.d"}, follow_redirects=True)
    assert "g.d waits for 2 of 3 jobs before it: b, c." in said
    assert "Before it 3 nodes b do- enqueued c do- enqueued a do- done After it 1 node e do- waiting" in said
    assert node.keys() == later.keys() == {"say", "beside"}
    assert f'href="/job?queue={queue}&amp;id=g.d"' in later["say"]
    assert "before it a, b, c after it e" in job
    assert "There is no job g.x, and no such node in graph g." in gone.text
    assert "There is no job x.d" in other.text


async def test_job_page_names_the_nodes_beside_it_at_no_cost(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    await scene.plan(DIAMOND)
    await scene.end(fetch=DONE)
    await scene.start("left")
    query = {"queue": queue, "id": "g.left"}
    async with browsing(server.url) as browser:
        facts = (await browser.regions("/job", **query))["facts"]
        again = await commands(browser, "/job", query)
        await scene.client.send(scene.store.enqueue([New("plain", b"{}")]))
        plain = await commands(browser, "/job", {"queue": queue, "id": "plain"})
    assert "batch g before it fetch after it last" in words(facts)
    assert f'href="/node?queue={queue}&amp;batch=g&amp;id=g.last"' in facts
    assert again <= plain


async def test_dead_node_that_has_no_job_says_why(server: EmbeddedRedis, queue: str, scene: Scene) -> None:
    await scene.plan({"pages": (), "check": (0,)}, each=["check"])
    await scene.end(pages=DONE)
    await scene.client.send(scene.store.fail_node("g", 1, "the result of pages has 10 items"))
    await scene.end(check=DEAD)
    async with browsing(server.url) as browser:
        page = await browser.page("/batch", queue=queue, id="g")
        said = await browser.words("/node", queue=queue, batch="g", id="g.check")
    href, title, _, state = drawn(page)[1]
    assert (href, state) == (f"/node?queue={queue}&amp;batch=g&amp;id=g.check", "dead")
    assert title.endswith("dead: the result of pages has 10 items")
    assert "dead the result of pages has 10 items" in words(page)
    assert "g.check dead: its job is dead: the result of pages has 10 items." in said


async def test_node_that_is_dead_without_a_job_is_revived_with_the_others(
    server: EmbeddedRedis, queue: str, scene: Scene
) -> None:
    node = encode(StoredNode("far", "other", {"task": "t", "args": [], "kwargs": {}, "retention": 9.0}, 9.0))
    await scene.client.send(scene.store.batch_open("g", "t", retention=1e6))
    rows = [PlanRow(node, "g.far", "other"), PlanRow(node, "/g.each", queue)]
    await scene.client.send(scene.store.batch_plan("g", 0, rows))
    await scene.client.send(scene.store.batch_close("g"))
    for at in range(2):
        await scene.client.send(scene.store.fail_node("g", at, "there is another job"))
        await scene.client.send(scene.store.batch_count([("g", at, bytes([DEAD]))]))
    async with browsing(server.url) as browser:
        answer = await browser.act(f"/batch?queue={queue}&id=g&ask=revive", "revive-batch", queue=queue, id="g")
        await browser.console.acts.wait()
        words = await browser.words(answer.headers["location"])
    assert "1 changed. 1 left as found." in words
    assert "g.each has a job for each item" in words
    assert (await scene.client.send(scene.store.batch_ends("g", 0, 1))) == bytes([8, DEAD])
