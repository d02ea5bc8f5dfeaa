"""A batch, a chain and a graph in three queues of a cluster, whose workers, dispatchers and primaries are killed from
the first job to the last: each ends once, with exact counts and the right results, soon after its last job.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec import Struct

from evsched import App
from evsched.store.batch_calls import BatchRecord
from tests.chaos.app import batch_ended, fan, item, link, member, node, value_of
from tests.chaos.conftest import Fleet
from tests.chaos.kills import Killer
from tests.chaos.test_failover import wait_until_replicated
from tests.support.cluster import Cluster, queue_on

KILLS = int(os.environ.get("CHAOS_BATCH_KILLS", "200"))
JOBS = int(os.environ.get("CHAOS_BATCH_JOBS", "3000"))
LINKS = int(os.environ.get("CHAOS_CHAIN_LINKS", "1000"))
LANES = int(os.environ.get("CHAOS_GRAPH_LANES", "6"))
"""Rows of diamonds, each of ten: 86 nodes, and 16 jobs of the nodes that have one for each item."""
ITEMS = 8
SOON = 30.0
"""Seconds from the last end to the callback, at most, on a machine that runs a dozen processes on two cores."""
AGAIN = 60.0
"""Seconds after which ends are carried again, to a server that has lost its last writes."""

T = TypeVar("T")
Wanted = Mapping[str, int | list[int]]
"""The results of nodes, by name."""


class Outcome(Struct, frozen=True):
    """What became of a batch, and when its last job ended."""

    batch: BatchRecord
    results: dict[str, int | list[int]]
    last: float


@pytest.mark.timeout(1800)
def test_batch_ends_once_whatever_is_killed(tmp_path: Path) -> None:
    async def produce(app: App, queues: list[str]) -> Wanted:
        async with app.batch("b", queue=queues[0], on_done=batch_ended.using(queue=queues[1])) as batch:
            for number, queue in enumerate(queues):
                rows = [(1.2, n % 5 == 0) for n in range(number, JOBS, 3)]
                await batch.add_many(member.using(queue=queue), rows)
        return {}

    _check(tmp_path, produce, JOBS, JOBS, slots=5)


@pytest.mark.timeout(1800)
def test_chain_ends_once_whatever_is_killed(tmp_path: Path) -> None:
    async def produce(app: App, queues: list[str]) -> Wanted:
        calls = [link.using(queue=queues[n % 3]).s(n, 0.1, n % 5 == 0) for n in range(LINKS)]
        await app.chain(*calls, id="b", queue=queues[0], on_done=batch_ended.using(queue=queues[1])).enqueue()
        wanted, before = dict[str, int | list[int]](), 0
        for n in range(LINKS):
            before = value_of(n, [before])
            wanted["link" if n == 0 else f"link-{n + 1}"] = before
        return wanted

    _check(tmp_path, produce, LINKS, LINKS, slots=5)


@pytest.mark.timeout(1800)
def test_graph_ends_once_whatever_is_killed(tmp_path: Path) -> None:
    async def produce(app: App, queues: list[str]) -> Wanted:
        plan = Plan(app, queues)
        plan.add("root", [])
        tails = list[str]()
        for lane in range(LANES):
            tail = "root"
            for number in range(10):
                tail = (plan.add_fan if number % 5 == 2 else plan.add_diamond)(f"d{lane}_{number}", tail)
            tails.append(tail)
        plan.add("end", tails)
        await plan.graph.enqueue()
        return plan.wanted

    nodes = LANES * 86 + 2
    _check(tmp_path, produce, nodes, nodes + LANES * 2 * (ITEMS - 1), slots=2)


class Plan:
    """A graph, and the results that its nodes must have."""

    def __init__(self, app: App, queues: Sequence[str]) -> None:
        self.graph = app.graph("b", queue=queues[0], on_done=batch_ended.using(queue=queues[1]))
        self.wanted: dict[str, int | list[int]] = {}
        self._queues = queues

    def add(self, name: str, after: Sequence[str]) -> None:
        """Add a node, which adds up the results of those before it."""
        number = len(self.wanted)
        self.graph.add(name, node.using(queue=self._queues[number % 3]).s(number, 2.0, number % 5 == 0), after=after)
        self.wanted[name] = value_of(number, [self.wanted[one] for one in after])

    def add_diamond(self, name: str, after: str) -> str:
        """Add one node, eight behind it, and one behind these; return the name of the last."""
        self.add(f"{name}a", [after])
        for branch in range(8):
            self.add(f"{name}b{branch}", [f"{name}a"])
        self.add(f"{name}z", [f"{name}b{branch}" for branch in range(8)])
        return f"{name}z"

    def add_fan(self, name: str, after: str) -> str:
        """Add a node with a list as its result, one with a job for each item, and one behind it."""
        queue, items = self._queues[len(self.wanted) % 3], [*range(len(self.wanted), len(self.wanted) + ITEMS)]
        self.graph.add(f"{name}a", fan.using(queue=queue).s(items), after=after, take=())
        self.wanted[f"{name}a"] = items
        self.graph.each(f"{name}b", item.using(queue=queue).s(1.0), over=f"{name}a")
        self.wanted[f"{name}b"] = [value_of(one, []) for one in items]
        self.add(f"{name}z", [f"{name}b"])
        return f"{name}z"


def _check(
    folder: Path, produce: Callable[[App, list[str]], Awaitable[Wanted]], members: int, jobs: int, *, slots: int
) -> None:
    """Produce a batch and kill until it has ended; `jobs`: how many there are with those of batches in it."""
    with Cluster(replicas=3) as cluster:
        queues = [queue_on(cluster, node, "batch") for node in cluster.nodes[:3]]
        fleet = Fleet(cluster.url, folder / "oracle")
        killer = Killer(cluster, fleet, queues, slots)
        try:
            wanted = asyncio.run(_with_app(cluster.url, lambda app: produce(app, queues)))
            for queue in queues:
                wait_until_replicated(cluster, queue, replicas=1)
            killer.kill_until_all_have_ended(jobs, KILLS)
            asyncio.run(_with_app(cluster.url, lambda app: app.known_batch("b", queue=queues[0]).wait(SOON + AGAIN)))
            time.sleep(AGAIN + 10)  # ends and callbacks are carried again, and change nothing
            found = asyncio.run(_with_app(cluster.url, lambda app: _outcome(app, queues, list(wanted) or members)))
            lines = fleet.lines()
        finally:
            fleet.stop()
    calls = [(what, at) for what, *_, at in lines if what != "end"]
    assert calls, "no callback has run"
    killed = killer.killed
    print(f"{members} members, {len(killed)} kills in {killed[-1] - killed[0]:.0f} s, {found.batch}")
    print(
        f"{len(lines)} runs came to their end; the last job ended {found.last - killed[-1]:.1f} s after the last kill"
    )
    print(f"the callback ran {calls[0][1] - found.last:.3f} s after the last end")
    batch = found.batch
    assert (batch.state, batch.total, batch.done, batch.round) == ("done", members, members, 1)
    assert [what for what, _ in calls] == [f"done:{members}:{members}"]
    assert found.results == wanted
    assert len(killed) == KILLS, "the jobs have ended before all kills were made"
    assert calls[0][1] - found.last < SOON + AGAIN


async def _with_app(url: str, use: Callable[[App], Awaitable[T]]) -> T:
    app = App(url=url)
    try:
        return await use(app)
    finally:
        await app.close()


async def _outcome(app: App, queues: Sequence[str], members: Sequence[str] | int) -> Outcome:
    """Look at the batch and its nodes, by their names; or at its jobs, by their number."""
    batch = app.known_batch("b", queue=queues[0])
    if isinstance(members, int):
        jobs = [(queues[n * 3 // members], f"b.{n}") for n in range(members)]
        found = [status for queue, job in jobs if (status := await app.client.status(queue, job)) is not None]
        return Outcome(await batch.status(), {}, max(status.finished or 0 for status in found))
    last, results = 0.0, dict[str, int | list[int]]()
    for one in await batch.nodes():
        if one.each:
            results[one.name] = await app.known_batch(one.id, queue=queues[0]).results()
        elif (status := await app.client.status(one.queue, one.id)) is not None:
            results[one.name], last = status.result, max(last, status.finished or 0)
    return Outcome(await batch.status(), results, last)
