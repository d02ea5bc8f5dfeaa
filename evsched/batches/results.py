"""The results of members of batches and of nodes of graphs: they are in the records of the jobs, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from evsched.batches.member import CODES
from evsched.batches.node import GraphNode, failed_before, read_nodes
from evsched.client import spread
from evsched.client.client import Client
from evsched.client.operations import open_result, send_many
from evsched.errors import JobDead, JobMissing
from evsched.jobs.job import decode
from evsched.store.store import Store

_SLICE: Final = 100
"""Records that one round trip reads."""


class ResultGone(Exception):
    """The result of a job that is done cannot be read."""


async def read_results(client: Client, jobs: Sequence[tuple[str, str]]) -> list[Any | ResultGone]:
    """Return the results of jobs that are done, by their queues and ids; an error in the place of each that is gone.

    Those that are sealed stay so: `open_results` opens them for a reader, and a graph passes them on as they are.
    """
    found = list[Any]()
    for first in range(0, len(jobs), _SLICE):
        some = jobs[first : first + _SLICE]
        calls = [client.store(client.shards.home(queue, job)).result_of(job) for queue, job in some]
        for (queue, job), text in zip(some, await client.run(send_many(calls)), strict=True):
            found.append(await _elsewhere(client, queue, job) if text is None else _decoded(job, text))
    return found


async def open_results(client: Client, jobs: Sequence[str], found: Sequence[Any]) -> list[Any]:
    """Return results with those opened that are sealed. `jobs`: the ids.

    Raises:
        BadResult: this client cannot open one.
    """
    return [await client.run(open_result(job, value)) for job, value in zip(jobs, found, strict=True)]


async def read_all_results(client: Client, home: Store, batch: str, queue: str) -> list[Any] | ResultGone | None:
    """Return the results of all jobs of a batch, which are in one queue, in their order; None if there is no batch.

    The result of a job that is not done is None.
    """
    record = await client.send(home.batch(batch))
    if record is None:
        return None
    ends = await client.send(home.batch_ends(batch, 0, record.ordinals - 1)) if record.ordinals else b""
    done = [at for at, byte in enumerate(ends) if byte % 8 == CODES["d"]]
    values = await read_results(client, [(queue, f"{batch}.{at}") for at in done])
    gone = next((value for value in values if isinstance(value, ResultGone)), None)
    results = dict(zip(done, values, strict=True))
    return gone or [results.get(at) for at in range(record.ordinals)]


async def result_of_node(client: Client, home: Store, batch: str, node: GraphNode) -> Any:
    """Return the result of a node that has ended.

    Raises:
        JobDead: the node is not done; the message says why.
        JobMissing: its record is not kept any more.
        BadResult: this client cannot open it.
    """
    if node.outcome != "done":
        raise JobDead(f"{node.id} {await _why(client, home, batch, node)}")
    found: Any
    if node.each:
        found = await read_all_results(client, home, node.id, node.queue)
    else:
        (found,) = await read_results(client, [(node.queue, node.id)])
    if isinstance(found, ResultGone) or (node.each and found is None):
        raise JobMissing(f"{node.id} is done, but its record is not kept any more: give it a longer retention")
    if node.each:
        return await open_results(client, [f"{node.id}.{at}" for at in range(len(found))], found)
    return (await open_results(client, [node.id], [found]))[0]


async def _why(client: Client, home: Store, batch: str, node: GraphNode) -> str:
    if node.outcome == "stopped":
        return f"was stopped: {failed_before(node, await client.run(read_nodes(home, batch, 0, node.ordinal)))}"
    status = None if node.each else await client.status(node.queue, node.id)
    reason = node.why or (None if status is None else status.reason)
    return f"is {node.outcome}" + (f": {reason}" if reason else "")


async def _elsewhere(client: Client, queue: str, job: str) -> Any | ResultGone:
    """Return the result of a job that is not in the shard of its id."""
    found = await client.run(spread.original(client.parts_of(queue, job), job))
    if found is None or found.status.outcome != "done":
        return ResultGone(f"the result of {job} is gone: its record was deleted")
    return _decoded(job, found.fields.get("result", b"null"))


def _decoded(job: str, text: bytes) -> Any | ResultGone:
    try:
        return decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ResultGone(f"the result of {job} is not JSON: another client wrote it")
