"""The jobs of a graph: a keeper makes and enqueues them when their nodes are released.

Each step may be repeated, or done by two keepers at once: the ids of the jobs, and the ordinals and tokens of the
batches, follow from the node and the life of the graph; and the record of a job is kept, so that it is not enqueued
again when it has ended. A record that a graph of the same id has left is of another life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from evsched.batches import pausing
from evsched.batches.member import CODES
from evsched.batches.node import StoredNode, Take, read_node
from evsched.batches.results import ResultGone, read_all_results, read_results
from evsched.client.client import Client
from evsched.client.operations import send_many
from evsched.errors import JobExists, JobMissing
from evsched.jobs.job import encode
from evsched.jobs.sealed import sealed_in
from evsched.store.batch_calls import RESERVED, PlanRow
from evsched.store.batch_pauses import InnerBatch
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.call import Call

_SLICE: Final = 100
"""Nodes whose records one step shortens."""

ROWS: Final = 250
"""Nodes that one call writes: about 1 ms of Redis's time."""

ROW_BYTES: Final = 262_144
"""About how many bytes it writes at most."""


class NotStarted(Exception):
    """The job of a node cannot be made: the node has failed."""


class Starter:
    """Starts the nodes of graphs, and gives up their results when a graph has ended."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queues = pausing.ShardFinder(client.store, client.shards)

    async def start(self, store: Store, now: float, batch: str, listed: str) -> set[str]:
        """Enqueue the jobs of released nodes that have not ended; return their queues.

        If the batch is stopped meanwhile, they are cancelled: the keeper that cancels its jobs may have come before.

        Raises:
            JobLate: it took too long since `now`.
        """
        ordinals = [int(word) for word in listed.split(",")]
        reading: list[Call[Any]] = [
            *(store.batch_nodes(batch, ordinals), store.batch_ends(batch, 0, max(ordinals))),
            *(store.batch_field(batch, "stop"), store.batch_life(batch), store.batch_pause_of(batch)),
        ]
        texts, ends, stop, life, paused = await self._client.run(send_many(reading))
        found = zip(ordinals, map(read_node, texts), strict=True)
        nodes = {at: node for at, node in found if at < len(ends) and ends[at] % 8 == CODES["o"]}
        if stop is None:
            if paused.is_paused:
                names = {node.queue for node in nodes.values() if node is not None}
                paused = paused._replace(now=now)
                await self._client.run(pausing.tell(store, self._queues, batch, paused, names))
            await self._start(store, now, batch, life, nodes, ends)
            stop = await self._client.send(store.batch_field(batch, "stop"))
        if stop is not None:
            await self._cancel(store, batch, life, nodes, ends)
        return {node.queue for node in nodes.values() if node is not None and node.over is None}

    async def _start(
        self,
        store: Store,
        now: float,
        batch: str,
        life: str,
        nodes: Mapping[int, StoredNode | None],
        ends: bytes,
    ) -> None:
        takes = [take for node in nodes.values() if node is not None for take in (*node.takes, node.over) if take]
        results = await self._results(store, batch, takes, ends)
        jobs = dict[int, tuple[str, New]]()
        for at, node in nodes.items():
            try:
                if node is None:
                    raise NotStarted("its node is malformed: another client wrote it")
                payload = _with_results(node, results)
                if node.over is not None:
                    await self._fan_out(store, batch, life, at, node, payload, results[node.over.ordinal])
                else:
                    jobs[at] = node.queue, _new(node, batch, at, payload)
            except NotStarted as error:
                await self._fail(store, batch, at, ends, str(error))
        until = f"{now + RESERVED:.6f}"
        runs = [*_runs(jobs, ends, self._client.shards.home)]
        calls = [
            self._client.store(shard).enqueue_nodes(
                some, f"{store.queue}/{batch}/{first}/{until}/{life}{_turn(ends[first])}"
            )
            for shard, first, some in runs
        ]
        for (_, first, some), taken in zip(runs, await self._send_all(calls), strict=True):
            for at, (job, is_taken) in enumerate(zip(some, taken, strict=True), first):
                if is_taken:
                    await self._fail(
                        store, batch, at, ends, f"there is another job {job.id}: it waits, runs or is dead"
                    )

    async def _fail(self, store: Store, batch: str, ordinal: int, ends: bytes, why: str) -> None:
        """Count a node as dead that has no job, in the turn in which it was released."""
        await self._client.send(store.fail_node(batch, ordinal, why))
        await self._client.send(store.batch_count([(batch, ordinal, bytes([ends[ordinal] + CODES["x"]]))]))

    async def _cancel(
        self, store: Store, batch: str, life: str, nodes: Mapping[int, StoredNode | None], ends: bytes
    ) -> None:
        """Cancel the jobs of nodes, also one that is not there: a call that is on its way must not bring it."""
        for at, node in nodes.items():
            job = "" if node is None else node.job_id(batch, at)
            try:
                if node is not None and node.over is not None:
                    if await self._client.send(store.is_child(job, f"{store.queue}/{batch}/{at}")):
                        await self._client.send(store.batch_close(job, how="cancelled"))
                elif node is not None:
                    await self._client.cancel(node.queue, job)
            except JobMissing:
                if node is not None and node.over is None:
                    home = self._client.store(self._client.shards.home(node.queue, job))
                    await self._client.send(
                        home.cancel_member(job, f"{store.queue}/{batch}/{at}/{life}{_turn(ends[at])}")
                    )

    async def _results(
        self, store: Store, batch: str, takes: Iterable[Take], ends: bytes
    ) -> dict[int, Any | ResultGone]:
        """Return the results of nodes by their ordinals: None if a node is not done; an error if its result is gone."""
        unique = {take.ordinal: take for take in takes}
        found = dict[int, Any]()
        for at, take in unique.items():
            if take.each:
                found[at] = await read_all_results(self._client, store, f"{batch}.{take.node}", take.queue)
            elif not 0 <= at < len(ends) or ends[at] % 8 != CODES["d"]:
                found[at] = None
        single = [take for at, take in unique.items() if at not in found]
        values = await read_results(self._client, [(take.queue, f"{batch}.{take.node}") for take in single])
        return found | {take.ordinal: value for take, value in zip(single, values, strict=True)}

    async def _fan_out(
        self, store: Store, batch: str, life: str, at: int, node: StoredNode, payload: dict[str, Any], items: Any
    ) -> None:
        """Open the batch of a node that has a job for each item, with a node without an order for each, and close it.

        Raises:
            NotStarted: there are too many items, or the result has none.
        """
        assert node.over is not None
        if (sealed := sealed_in(items)) is not None:
            raise NotStarted(
                f"the result of {node.over.node} is sealed, {sealed}, so its items are not known here: have a job that "
                "opens it add the others to the batch"
            )
        if not isinstance(items, list):
            raise NotStarted(f"the result of {node.over.node} is not a list, but {node.name} has a job for each item")
        items = cast("list[Any]", items)
        if len(items) > node.limit:
            raise NotStarted(f"the result of {node.over.node} has {len(items)} items: {node.name} takes {node.limit}")
        child, kept = node.job_id(batch, at), float(payload["retention"])
        try:
            opened = store.batch_open(child, life, retention=kept, parent=f"{store.queue}/{batch}/{at}")
            await self._client.send(opened)
        except JobExists:
            raise NotStarted(f"there is another batch {child}") from None
        # It was listed before it was opened: so it is paused from here, or by the program that pauses this one.
        outer = await self._client.run(pausing.present(store, batch))
        if outer.is_paused:
            inner = InnerBatch(store.queue, child, f"{store.queue}/{batch}/{at}")
            await self._client.run(pausing.follow(store, inner, outer))
        one = msgspec.structs.replace(node, name="", takes=(), over=None)
        made = (msgspec.structs.replace(one, payload=payload | {"args": [*payload["args"], item]}) for item in items)
        await write_nodes(self._client, store, child, [PlanRow(encode(each), "", node.queue) for each in made])
        await self._client.send(store.batch_close(child))

    async def _send_all(self, calls: Iterable[Call[Any]]) -> list[Any]:
        return await asyncio.gather(*map(self._client.send, calls))

    async def shed(
        self, store: Store, now: float, batch: str, first: str, *, forget: bool = False
    ) -> tuple[str, float] | None:
        """Give the records of the jobs of some nodes their own retention; return the chore for the next ones.

        `forget`: the graph is about to be forgotten, so the batches of its nodes are, too.
        """
        ordinals = range(int(first), int(first) + _SLICE)
        nodes = [read_node(text) for text in await self._client.send(store.batch_nodes(batch, ordinals))]
        for at, node in zip(ordinals, nodes, strict=True):
            if node is not None and node.over is not None:
                child = node.job_id(batch, at)
                await self._client.send(store.add_chore(f"forget {child}" if forget else f"shed {child} 0", now))
        jobs = [(node, node.job_id(batch, at)) for at, node in zip(ordinals, nodes, strict=True) if node is not None]
        homes = self._client.shards.home
        calls = [self._client.store(homes(node.queue, job)).shorten_record(job, node.retention) for node, job in jobs]
        await self._send_all(calls)
        return (f"shed {batch} {ordinals.stop}", now) if nodes[-1] is not None else None

    async def forget(self, store: Store, now: float, batch: str) -> None:
        """Do so with all nodes, since the graph is about to be forgotten."""
        first = 0
        while await self.shed(store, now, batch, str(first), forget=True) is not None:
            first += _SLICE


async def write_nodes(client: Client, store: Store, batch: str, rows: Sequence[PlanRow]) -> None:
    """Write all nodes of a graph, in calls that Redis does quickly.

    Raises:
        JobMissing, JobLate: there is no such batch, or it was cancelled meanwhile.
    """
    first = 0
    while first < len(rows):
        last, size = first, 0
        while last < len(rows) and last - first < ROWS and (size < ROW_BYTES or last == first):
            size += len(rows[last].node)
            last += 1
        await client.send(store.batch_plan(batch, first, rows[first:last]))
        first = last


def _with_results(node: StoredNode, results: Mapping[int, Any | ResultGone]) -> dict[str, Any]:
    """Return the payload of the job of a node, with the results that it takes.

    Raises:
        NotStarted: one of them is gone.
    """
    args, kwargs = list(node.payload["args"]), dict(node.payload["kwargs"])
    for take in (*node.takes, node.over) if node.over is not None else node.takes:
        value = results[take.ordinal]
        if isinstance(value, ResultGone):
            raise NotStarted(str(value))
        if take is node.over:
            continue
        if take.name:
            kwargs[take.name] = value
        else:
            args.append(value)
    return node.payload | {"args": args, "kwargs": kwargs}


def _new(node: StoredNode, batch: str, ordinal: int, payload: dict[str, Any]) -> New:
    return New(node.job_id(batch, ordinal), encode(payload), node.priority, node.group, node.due, node.delay)


def _turn(end: int) -> str:
    """Return what an address says of the turn of a node, by its byte at the home."""
    return f"/{end // 8}" if end >= 8 else ""


def _runs(
    jobs: Mapping[int, tuple[str, New]], ends: bytes, home: Callable[[str, str], str]
) -> Iterable[tuple[str, int, list[New]]]:
    """Yield jobs with consecutive ordinals of one turn that go to one shard: the shard, the first ordinal, the jobs."""
    shard, first, some = "", 0, list[New]()
    for at, (queue, job) in sorted(jobs.items()):
        where = home(queue, job.id)
        if some and (where != shard or at != first + len(some) or ends[at] != ends[first]):
            yield shard, first, some
            some = []
        if not some:
            shard, first = where, at
        some.append(job)
    if some:
        yield shard, first, some
