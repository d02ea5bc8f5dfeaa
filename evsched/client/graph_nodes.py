"""Nodes of graphs that have no job: why they take no signal yet, and how they are revived."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from evsched.client.operations import Operation, UseCodec, send
from evsched.client.option_values import signal_value
from evsched.client.spread import Parts, change_dead, of_job
from evsched.errors import JobMissing
from evsched.jobs.sealed import About, PayloadCodec, seal_value
from evsched.store.client_calls import Signaled
from evsched.store.store import Store

_SLICE: Final = 1000
"""Nodes whose ids one call reads."""

_NO_JOB: Final = {0: "its job is about to be enqueued", 6: "a node before it has failed", 7: "it waits for other nodes"}
"""Why a node has no job yet, by how it has ended: see lua/_batches.lua."""

_DEAD: Final = 2


class _Node(NamedTuple):
    batch: str
    ordinal: int
    code: int
    """How it has ended."""
    each: bool
    """Whether it has a job for each item of a result, and the id is that of their batch."""


def _node_of(home: Store, job_id: str) -> Operation[_Node | None]:
    """Find the node of a graph by the id of its job; None if this queue is the home of no such graph."""
    batch = job_id.rpartition(".")[0]
    record = (yield from send(home.batch(batch))) if batch else None
    for first in range(0, 0 if record is None else record.nodes, _SLICE):
        ids = yield from send(home.batch_ids(batch, range(first, first + _SLICE)))
        for at, known in enumerate(ids, first):
            if known in (job_id, f"/{job_id}"):
                end = yield from send(home.batch_ends(batch, at, at))
                return _Node(batch, at, end[0] % 8, known != job_id) if end else None
    return None


def signal(parts: Parts, job_id: str, signal: str, value: Any) -> Operation[Signaled]:
    """Send a signal to a job. Raises as `of_job`; ConfigError if the name or the value is not valid."""
    text = signal_value(signal, value)
    sealed = yield UseCodec(lambda codec: _sealed(codec, About("signal", signal, job_id), text))
    text = text if sealed is None else sealed
    try:
        return (yield from of_job(parts, lambda store: send(store.signal(job_id, signal, text))))
    except JobMissing:
        node = yield from _node_of(parts.make(parts.queue), job_id)
        if node is None or node.each or node.code not in _NO_JOB:
            raise
        why = f"{job_id} has no job yet: {_NO_JOB[node.code]}"
        raise JobMissing(f"{why}; send the signal when graph {node.batch} has started it") from None


async def _sealed(codec: PayloadCodec, about: About, text: bytes) -> bytes:
    return seal_value(codec, about, text)


def revive(parts_of: Callable[[str], Parts], ids: Sequence[str]) -> Operation[int]:
    """Revive dead jobs by their ids, and nodes of graphs that failed without a job; return how many.

    The home of such a graph must be the queue. Raises as `change_dead`; JobLate if the graph has ended otherwise.
    """
    try:
        return (yield from change_dead(parts_of, ids, Store.revive))
    except JobMissing:
        nodes = dict[str, tuple[Store, _Node]]()
        for job_id in ids:
            parts = parts_of(job_id)
            home = parts.make(parts.queue)
            node = yield from _node_of(home, job_id)
            if (
                node is not None
                and node.code == _DEAD
                and (yield from send(home.batch_failures(node.batch, [node.ordinal])))[0]
            ):
                nodes[job_id] = home, node
        if not nodes:
            raise
    jobs = [job_id for job_id in ids if job_id not in nodes]
    count = (yield from change_dead(parts_of, jobs, Store.revive)) if jobs else 0
    for home, node in nodes.values():
        count += yield from send(home.batch_revive(node.batch, node.ordinal))
    return count
