"""The nodes of a graph: what its home has of each, and what a reader gets to see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from evsched.batches.member import CODES, OUTCOMES
from evsched.client.operations import Operation, send_many
from evsched.store.store import Store
from evsched.transport.call import Call


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


class Node(Struct, frozen=True, omit_defaults=True):
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


_decoder: Final = msgspec.json.Decoder(Node)


def read_node(text: bytes | None) -> Node | None:
    """Read a node; None if there is none, or it is malformed."""
    try:
        return None if text is None else _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


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


def graph_nodes(store: Store, batch: str, first: int, last: int) -> Operation[list[GraphNode]]:
    """Read the nodes of a graph from an ordinal to another: some hundred at once. Malformed ones are left out."""
    ordinals = range(first, last + 1)
    if not ordinals:
        return []
    reading: list[Call[Any]] = [
        *(store.batch_nodes(batch, ordinals), store.batch_befores(batch, ordinals)),
        *(store.batch_failures(batch, ordinals), store.batch_ends(batch, first, last)),
    ]
    texts, befores, failures, ends = yield from send_many(reading)
    found = list[GraphNode]()
    for at, text, after, why, code in zip(ordinals, texts, befores, failures, _codes(ends, len(ordinals)), strict=True):
        if (node := read_node(text)) is not None:
            name, each = node.name or str(at), node.over is not None
            task = str(node.payload.get("task"))
            where = name, node.job_id(batch, at), node.queue, task
            found.append(GraphNode(at, *where, tuple(after), OUTCOMES[code], node.despite, each, why))
    return found


def _codes(ends: bytes, count: int) -> Sequence[int]:
    return [byte % 8 for byte in ends.ljust(count, bytes([CODES["o"]]))]
