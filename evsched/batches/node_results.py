"""The result of a node of a graph, for programs: it is in the record of its job, or of the jobs of its items."""

from __future__ import annotations

from typing import Any

from evsched.batches.node import GraphNode, failed_before, read_nodes
from evsched.batches.results import ResultGone, read_all_results
from evsched.client.client import Client
from evsched.errors import JobDead, JobMissing
from evsched.store.store import Store


async def result_of_node(client: Client, home: Store, batch: str, node: GraphNode) -> Any:
    """Return the result of a node that has ended.

    Raises:
        JobDead: the node is not done; the message says why.
        JobMissing: its record is not kept any more.
    """
    if node.outcome != "done":
        raise JobDead(f"{node.id} {await _why(client, home, batch, node)}")
    found: Any
    if node.each:
        found = await read_all_results(client, home, node.id, node.queue)
        is_gone = found is None or isinstance(found, ResultGone)
    else:
        status = await client.status(node.queue, node.id)
        found, is_gone = None if status is None else status.result, status is None
    if is_gone:
        raise JobMissing(f"{node.id} is done, but its record is not kept any more: give it a longer retention")
    return found


async def _why(client: Client, home: Store, batch: str, node: GraphNode) -> str:
    if node.outcome == "stopped":
        return f"was stopped: {failed_before(node, await client.run(read_nodes(home, batch, 0, node.ordinal)))}"
    status = None if node.each else await client.status(node.queue, node.id)
    reason = node.why or (None if status is None else status.reason)
    return f"is {node.outcome}" + (f": {reason}" if reason else "")
