"""The nodes of a graph: what its home has of each, and what a reader gets to see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from evsched import keys
from evsched.batches.member import CODES, OUTCOMES
from evsched.client.operations import Operation, send, send_many
from evsched.store.batch_calls import BatchRecord
from evsched.store.store import Store
from evsched.transport.call import Call

if TYPE_CHECKING:
    from evsched.client.explain import Explanation

KEPT_MOST: Final = 1e9
"""The longest retention of a record of a graph, in seconds: some 30 years."""


class Take(Struct, frozen=True, omit_defaults=True):
    """An argument that is the result of an earlier node."""

    node: str
    ordinal: int
    queue: str
    """To which its job, or its jobs, go."""
    name: str = ""
    """The name of the argument; "" = it is the next one by position."""
    each: bool = False
    """Whether the node has a job for each item of a list. Then its result is the list of their results."""


class StoredNode(Struct, frozen=True, omit_defaults=True):
    """A node, as `batch_plan` stores it."""

    name: str
    """Its job is `<batch>.<name>`; "" = `<batch>.<ordinal>`."""
    queue: str
    payload: dict[str, Any]
    """That of its job, without the arguments that come later. Its retention lasts until the graph has ended."""
    retention: float
    """Seconds for which the record of the job is kept after that, or after its own end if that comes later."""
    priority: int | None = None
    group: str | None = None
    due: float | None = None
    delay: float = 0.0
    takes: tuple[Take, ...] = ()
    over: Take | None = None
    """The node has a job for each item of this result, which is its last argument by position."""
    limit: int = 0
    """How many items there may be."""
    despite: bool = False
    """Whether it also runs if nodes before it fail."""

    def job_id(self, batch: str, ordinal: int) -> str:
        """Return the id of its job; with `over`, of the batch of its jobs."""
        return f"{batch}.{self.name or ordinal}"


_decoder: Final = msgspec.json.Decoder(StoredNode)


def read_node(text: bytes | None) -> StoredNode | None:
    """Read a node; None if there is none, or it is malformed."""
    try:
        node = None if text is None else _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return node if node is not None and _is_valid(node) else None


def _is_valid(node: StoredNode) -> bool:
    takes = (*node.takes, node.over) if node.over is not None else node.takes
    names = [node.queue, node.name or "x", *(name for take in takes for name in (take.queue, take.node))]
    args, kwargs, kept = (node.payload.get(name) for name in ("args", "kwargs", "retention"))
    return (
        all(map(keys.NAME.fullmatch, names))
        and isinstance(args, list)
        and isinstance(kwargs, dict)
        and isinstance(kept, int | float)
        and 0 <= min(kept, node.retention) <= max(kept, node.retention) <= KEPT_MOST
    )


class GraphNode(Struct, frozen=True):
    """A node of a graph, for readers."""

    ordinal: int
    name: str
    id: str
    """The id of its job, or of the batch of its jobs. It exists once the node has been started."""
    queue: str
    task: str
    after: tuple[int, ...]
    """The ordinals of the nodes before it, all lower than its own."""
    outcome: str
    """waiting: for nodes before it; open: its job waits or runs; stopped: one before it has failed; or as of a job."""
    despite: bool = False
    each: bool = False
    """Whether `id` is a batch, with a job for each item of a result."""
    why: str | None = None
    """Why its job was never enqueued, although it counts as dead."""


_SLICE: Final = 250
"""Nodes that one round trip reads."""


def read_nodes(store: Store, batch: str, first: int, end: int) -> Operation[list[GraphNode]]:
    """Read the nodes of a graph from an ordinal on and before another."""
    found = list[GraphNode]()
    for at in range(first, end, _SLICE):
        found += yield from _read_slice(store, batch, range(at, min(at + _SLICE, end)))
    return found


def _read_slice(store: Store, batch: str, ordinals: range) -> Operation[list[GraphNode]]:
    reading: list[Call[Any]] = [
        *(store.batch_nodes(batch, ordinals), store.batch_befores(batch, ordinals)),
        *(store.batch_failures(batch, ordinals), store.batch_ends(batch, ordinals.start, ordinals.stop - 1)),
    ]
    texts, befores, failures, ends = yield from send_many(reading)
    rows = zip(ordinals, texts, befores, failures, _outcomes(ends, len(ordinals)), strict=True)
    return [_node(batch, at, text, after, outcome, why) for at, text, after, why, outcome in rows]


def _outcomes(ends: bytes, count: int) -> list[str]:
    return [OUTCOMES[byte % 8] for byte in ends.ljust(count, bytes([CODES["o"]]))]


def _node(
    batch: str, at: int, text: bytes | None, after: Sequence[int], outcome: str, why: str | None = None
) -> GraphNode:
    node, before = read_node(text), tuple(one for one in after if one < at)
    if node is None:  # another client wrote it
        return GraphNode(at, str(at), f"{batch}.{at}", "", "", before, outcome, why=why)
    where = node.name or str(at), node.job_id(batch, at), node.queue, str(node.payload.get("task"))
    return GraphNode(at, *where, before, outcome, node.despite, node.over is not None, why)


def read_plan(store: Store, batch: str, ordinals: Sequence[int]) -> Operation[list[GraphNode]]:
    """Read what does not change of at most 250 nodes: all but how they have ended. Each of them is `waiting`."""
    reading: list[Call[Any]] = [store.batch_nodes(batch, ordinals), store.batch_befores(batch, ordinals)]
    texts, befores = yield from send_many(reading)
    return [_node(batch, at, text, after, "waiting") for at, text, after in zip(ordinals, texts, befores, strict=True)]


class Neighbors(Struct, frozen=True):
    """The nodes beside one, the first of them; and how many there are."""

    before: list[GraphNode]
    after: list[GraphNode]
    all_before: int
    all_after: int


def read_neighbors(store: Store, batch: str, ordinal: int, most: int) -> Operation[Neighbors | None]:
    """Read the nodes before a node and after it, at most `most` of each. None if the member is not a node.

    It takes two or three calls.
    """
    before, after = yield from send(store.batch_beside(batch, ordinal))
    if before is None:
        return None
    shown = [*before[:most], *after[:most]]
    nodes = (yield from read_plan(store, batch, shown)) if shown else []
    known = dict(zip(shown, nodes, strict=True))
    first, last = ([known[at] for at in some[:most]] for some in (before, after))
    return Neighbors(first, last, len(before), len(after))


def explain_node(store: Store, job_id: str) -> Operation[Explanation | None]:
    """Explain why a node of a graph has no job yet, by the id that its job will have; None if there is no such node.

    `store`: that of the home of the graph.
    """
    from evsched.client.explain import Explanation  # few programs need it

    batch = job_id.rpartition(".")[0]
    record = (yield from send(store.batch(batch))) if batch else None
    if record is None:
        return None
    nodes = yield from read_nodes(store, batch, 0, record.nodes)
    node = next((node for node in nodes if node.id == job_id), None)
    if node is None:
        return None
    found = {
        "batch": f"{batch} of queue {store.queue}",
        "task": node.task,
        "queue": node.queue,
        "after": _names(nodes, node.after),
    }
    return Explanation(why_no_job(node, nodes, record), {name: text for name, text in found.items() if text})


def why_no_job(node: GraphNode, nodes: Sequence[GraphNode], record: BatchRecord) -> str:
    """Say why a node of a graph has no job yet, or none any more."""
    if node.outcome == "stopped":
        return f"it does not run: {failed_before(node, nodes)}; it waits again when you revive what has failed"
    if node.outcome == "waiting" and record.closed is None:
        return f"batch {record.id} is not closed: it is being written, or the program that did so has died"
    if node.outcome == "waiting":
        return waits_for(node, nodes)
    if node.outcome == "open":
        return "it was released, and a dispatcher of this queue enqueues its job soon"
    return f"its job is {node.outcome}" + (f": {node.why}" if node.why else ", and its record is gone")


def waits_for(node: GraphNode, nodes: Sequence[GraphNode]) -> str:
    """Say for which nodes a node waits."""
    left = [nodes[at].ordinal for at in node.after if nodes[at].outcome in ("waiting", "open", "stopped")]
    return f"waits for {len(left)} of {len(node.after)} jobs before it: {_names(nodes, left)}"


def failed_before(node: GraphNode, nodes: Sequence[GraphNode]) -> str:
    """Say which nodes have failed, so that a node behind them is stopped."""
    before, failed = set(node.after), list[str]()
    for one in reversed(nodes[: node.ordinal]):
        if one.ordinal in before and one.outcome == "stopped":
            before.update(one.after)
        elif one.ordinal in before and one.outcome not in ("done", "open", "waiting"):
            failed.append(f"{one.name} is {one.outcome}")
    return _some(failed)


def _names(nodes: Sequence[GraphNode], ordinals: Sequence[int]) -> str:
    return _some([nodes[at].name for at in ordinals])


def _some(words: Sequence[str], most: int = 10) -> str:
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
