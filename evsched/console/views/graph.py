"""The graph of a batch, as its page shows it, and the page of a node that has no job yet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from evsched.batches.node import GraphNode, failed_before, why_no_job
from evsched.console.graph_layout import Box, Drawing, NodeLine
from evsched.console.known_graphs import KnownGraph, KnownGraphs, OpenNode
from evsched.console.page import View, Visit
from evsched.console.words import count
from evsched.errors import JobMissing
from evsched.jobs.record import JobStatus, read_member
from evsched.jobs.redaction import redacted_member
from evsched.keys import NAME, check_queue
from evsched.store.batch_calls import BatchRecord

_ROWS: Final = 50
"""Nodes of one page of the list."""

_SOME: Final = 10
"""Nodes of one kind that a page names."""

_LAYERS: Final = 40
"""Rows of the table of layers. If there are more layers, rows are put together."""

_SMALL: Final = 30
"""Nodes of a drawing that is seen at a glance."""

_LOOKED_AT: Final = 50
"""Open nodes that are looked at when a page is opened."""

_STARTED: Final = frozenset(("open", "done", "dead", "cancelled", "expired"))

STATES: Final = {
    "done": ("ok", "done"),
    "open": ("run", "started"),
    "waiting": ("wait", "waiting"),
    "dead": ("bad", "dead"),
    "expired": ("bad", "expired"),
    "cancelled": ("wait", "cancelled"),
    "missing": ("wait", "never enqueued"),
    "stopped": ("warn", "stopped"),
}
"""The class that draws the state of a node, and its word, by its outcome."""

_FAILED: Final = ("dead", "expired", "cancelled", "missing")


class ShownNode(Struct, frozen=True):
    """A node, as a page shows it."""

    node: GraphNode
    state: tuple[str, str]
    href: str
    more: str = ""
    """The nodes that it waits for, or why it does not run."""
    jobs: int | None = None
    """How many jobs an `each` has, once that is known."""
    ended: float = 0.0
    """The share of these that have ended."""
    before: Sequence[str] = ()
    """The names of some of the nodes before it."""


class LayerRow(Struct, frozen=True):
    """One or more layers, counted from 1, and how many of their nodes are how far."""

    first: int
    last: int
    counts: Counter[str]

    @property
    def nodes(self) -> int:
        return self.counts.total()

    @property
    def failed(self) -> int:
        return sum(self.counts[outcome] for outcome in _FAILED)

    @property
    def key(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


class NamedNodes(Struct, frozen=True):
    """The first nodes of a kind, and how many there are in all."""

    state: tuple[str, str]
    outcome: str
    nodes: list[ShownNode]
    all: int


class ShownGraph(Struct, frozen=True):
    """A graph, as the page of its batch shows it."""

    nodes: int
    read: int
    """How many of them have been read."""
    layers: int
    drawing: Drawing | None
    boxes: list[tuple[Box, ShownNode]]
    lines: list[tuple[NodeLine, bool]]
    """Each with whether the node from which it comes is done."""
    table: list[LayerRow]
    named: list[NamedNodes]
    counts: Counter[str]
    rows: list[ShownNode]
    words: str
    state: str
    layer: str
    first: int
    """The place of the first row among the nodes of this state and layer."""
    found: int
    """How many these are."""


def graphs_of(visit: Visit) -> KnownGraphs:
    """Return the graphs that all pages of a console share."""
    return visit.console.memory.setdefault("graphs", KnownGraphs())


def _state(graph: KnownGraph, node: GraphNode) -> tuple[str, str]:
    known = graph.open.get(node.ordinal, OpenNode())
    if node.outcome == "open" and node.each and known.batch is not None:
        total = known.batch.total
        return "run", f"{count(total - known.batch.open)} of {count(total)} ended"
    if node.outcome == "open" and (node.each or node.ordinal not in graph.open):
        return STATES["open"]
    if node.outcome == "open":
        return ("run", "runs") if known.runs else ("wait", "enqueued")
    if node.outcome == "waiting" and len(node.after) > 1:
        return "wait", f"waits for {len(graph.left_of(node))} of {len(node.after)}"
    return STATES[node.outcome]


def _awaited(graph: KnownGraph, record: BatchRecord, node: GraphNode) -> str:
    left = [graph.nodes[at].name for at in graph.left_of(node)]
    if not left or record.closed is None:
        return why_no_job(node, graph.nodes, record)
    return ", ".join(left[:_SOME]) + (f" and {len(left) - _SOME:,} more" if len(left) > _SOME else "")


def show_node(visit: Visit, graph: KnownGraph, record: BatchRecord, node: GraphNode) -> ShownNode:
    """Return a node as a page shows it."""
    state, known = _state(graph, node), graph.open.get(node.ordinal, OpenNode())
    more = reason = graph.reasons.get(node.ordinal) or ""
    if node.outcome == "stopped":
        more = graph.derive(node.ordinal, lambda: failed_before(node, graph.nodes))
    elif node.outcome == "waiting":
        more = graph.derive(node.ordinal, lambda: _awaited(graph, record, node))
    if node.outcome not in _STARTED or reason or not node.queue:
        href = visit.url("/node", queue=graph.queue, batch=graph.id, id=node.id)
    elif node.each:
        href = visit.url("/batch", queue=graph.queue, id=node.id)
    else:
        href = visit.url("/job", queue=node.queue, id=node.id)
    jobs = None if known.batch is None else known.batch.total
    ended = 0.0 if known.batch is None or not jobs else (jobs - known.batch.open) / jobs
    before = [graph.nodes[at].name for at in node.after[:_SOME]]
    return ShownNode(node, state, href, more, jobs, 1.0 if node.outcome == "done" else ended, before)


def _counts(graph: KnownGraph) -> Counter[str]:
    return graph.derive("counts", lambda: Counter(node.outcome for node in graph.nodes))


def _table(graph: KnownGraph) -> list[LayerRow]:
    """Return a row for each layer. If there are many, neighbors that are all in the same state are one row."""
    by_layer = [Counter[str]() for _ in range(max(graph.layers, default=-1) + 1)]
    for node, layer in zip(graph.nodes, graph.layers, strict=True):
        by_layer[layer][node.outcome] += 1
    rows = [LayerRow(at, at, counts) for at, counts in enumerate(by_layer, 1)]
    if len(rows) <= _LAYERS:
        return rows
    merged = rows[:1]
    for row in rows[1:]:
        last = merged[-1]
        if len(last.counts) == 1 and last.counts.keys() == row.counts.keys():
            merged[-1] = LayerRow(last.first, row.last, last.counts + row.counts)
        else:
            merged.append(row)
    size = -(-len(merged) // _LAYERS)
    groups = [merged[at : at + size] for at in range(0, len(merged), size)]
    return [
        LayerRow(some[0].first, some[-1].last, sum((row.counts for row in some), Counter[str]())) for some in groups
    ]


def _next(graph: KnownGraph) -> list[int]:
    """Return the nodes that come next: they wait only for nodes that are started."""
    started = {node.ordinal for node in graph.nodes if node.outcome == "open"}
    return [
        node.ordinal
        for node in graph.nodes
        if node.outcome == "waiting" and not started.isdisjoint(node.after) and started.issuperset(graph.left_of(node))
    ]


def _named(graph: KnownGraph) -> list[tuple[tuple[str, str], str, list[int], int]]:
    """Return the nodes that matter most now: state, outcome, the first of them, and how many there are."""
    counts, found = _counts(graph), list[tuple[tuple[str, str], str, list[int], int]]()
    for outcome in ("dead", "expired", "open"):
        first = islice((node.ordinal for node in graph.nodes if node.outcome == outcome), _SOME)
        found.append((STATES[outcome], outcome, [*first], counts[outcome]))
    following = _next(graph)
    found.append((("wait", "next"), "waiting", following[:_SOME], len(following)))
    return [one for one in found if one[3]]


def _chosen(graph: KnownGraph, state: str, layer: str) -> list[int]:
    """Return the nodes of the list: all, or those in a state, or in some layers."""
    bounds = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", layer)
    first, last = (int(bounds[1]), int(bounds[2] or bounds[1])) if bounds else (0, len(graph.nodes))
    return [
        node.ordinal
        for node in graph.nodes
        if state in ("", node.outcome) and (not bounds or first <= graph.layers[node.ordinal] + 1 <= last)
    ]


async def read_graph(visit: Visit, record: BatchRecord, *, opening: bool) -> ShownGraph | None:
    """Read the graph of a batch for its page; None if it has no order. `opening`: the page is not open yet."""
    if not record.nodes:
        return None
    graph = await graphs_of(visit).read(visit.client, record)
    state = visit.get("node") if visit.get("node") in STATES else ""
    layer, at = visit.get("layer"), visit.get("at")
    chosen = graph.derive(("chosen", state, layer), lambda: _chosen(graph, state, layer))
    first = min(int(at), max(len(chosen) - 1, 0)) // _ROWS * _ROWS if at.isdecimal() and len(at) < 6 else 0
    rows, drawing = chosen[first : first + _ROWS], graph.drawing
    named = graph.derive("named", lambda: _named(graph)) if drawing is None or len(graph.nodes) > _SMALL else []
    looked_at = dict.fromkeys(at for _, _, some, _ in named for at in some)
    looked_at |= dict.fromkeys(rows if drawing is None else range(len(graph.nodes)))
    await graph.look(visit.client, [*looked_at], *((_LOOKED_AT,) if opening else ()))
    await graph.find_reasons(visit.client, [*looked_at])

    def show(ordinals: Sequence[int]) -> list[ShownNode]:
        return [show_node(visit, graph, record, graph.nodes[one]) for one in ordinals]

    counts = _counts(graph)
    boxes = [] if drawing is None else [*zip(drawing.boxes, show(range(len(graph.nodes))), strict=True)]
    lines = [] if drawing is None else [(line, graph.nodes[line.node].outcome == "done") for line in drawing.lines]
    words = ", ".join(f"{count(counts[name])} {word}" for name, (_, word) in STATES.items() if counts[name])
    return ShownGraph(
        *(record.nodes, len(graph.nodes), max(graph.layers, default=-1) + 1, drawing, boxes, lines),
        table=[] if drawing is not None else graph.derive("table", lambda: _table(graph)),
        named=[NamedNodes(state, outcome, show(some), every) for state, outcome, some, every in named],
        counts=counts,
        rows=show(rows),
        words=words,
        state=state,
        layer=layer,
        first=first,
        found=len(chosen),
    )


async def find_node(visit: Visit) -> str | None:
    """Return the address of the page of a node, if a job or a batch that is not there may be that of one."""
    queue, name = check_queue(visit.get("queue")), visit.get("id")
    batch = name.rpartition(".")[0]
    if not NAME.fullmatch(batch):
        return None
    record = await visit.client.send(visit.client.store(queue).batch(batch))
    return visit.url("/node", queue=queue, batch=batch, id=name) if record is not None and record.nodes else None


async def nodes_beside(visit: Visit, status: JobStatus) -> dict[str, tuple[list[tuple[str, str]], int]]:
    """Return names and addresses of the nodes before that of a job and after it, and how many there are."""
    member = read_member(status.batch)
    if member is None or not (NAME.fullmatch(member.queue) and NAME.fullmatch(member.batch)):
        return {}
    found = await graphs_of(visit).beside(visit.client, member, status.created)
    if found is None:
        return {}

    def links(nodes: Sequence[GraphNode]) -> list[tuple[str, str]]:
        return [(node.name, visit.url("/node", queue=member.queue, batch=member.batch, id=node.id)) for node in nodes]

    beside = {
        "before it": (links(found.before), found.all_before),
        "after it": (links(found.after), found.all_after),
    }
    return {name: one for name, one in beside.items() if one[1]}


class _FoundNode(Struct, frozen=True):
    """The node of a page."""

    record: BatchRecord
    graph: KnownGraph
    node: GraphNode
    href: str
    """The address of its job, or of the batch of its jobs; empty = it has neither."""


async def _find(visit: Visit) -> _FoundNode:
    queue, batch, name = check_queue(visit.get("queue")), visit.get("batch"), visit.get("id")
    client = visit.client
    record = await client.send(client.store(queue).batch(batch)) if NAME.fullmatch(batch) else None
    if record is None or not record.nodes:
        raise JobMissing(f"There is no graph {batch:.200} in queue {queue}, or its retention is over.")
    graph = await graphs_of(visit).read(client, record)
    node = next((node for node in graph.nodes if node.id == name), None)
    if node is None and len(graph.nodes) < record.nodes:
        raise JobMissing(
            f"{len(graph.nodes):,} of the {record.nodes:,} nodes of graph {batch} are read, and {name:.200} is not "
            "among them: load the page again."
        )
    if node is None:
        raise JobMissing(f"There is no job {redacted_member(name):.200}, and no such node in graph {batch}.")
    href = ""
    if node.outcome in _STARTED and node.each:
        if await client.send(client.store(queue).batch(node.id)) is not None:
            href = visit.url("/batch", queue=queue, id=node.id)
    elif node.outcome in _STARTED and node.queue and await client.status(node.queue, node.id) is not None:
        href = visit.url("/job", queue=node.queue, id=node.id)
    await graph.find_reasons(client, [node.ordinal])
    return _FoundNode(record, graph, node, href)


async def _node(visit: Visit) -> dict[str, Any]:
    """Return the page of a node; if it has a job, that of the job."""
    found = await _find(visit)
    return {"redirect": found.href} if found.href else await _show_page(visit, found)


async def _follow_node(visit: Visit) -> dict[str, Any]:
    return await _show_page(visit, await _find(visit))


async def _show_page(visit: Visit, found: _FoundNode) -> dict[str, Any]:
    graph, record, node = found.graph, found.record, found.node
    after = graph.derive(("after", node.ordinal), lambda: _after(graph, node.ordinal))
    left = set(graph.left_of(node))
    before = sorted(node.after, key=lambda at: (at not in left, at))
    shown = [*before[:_SOME], *after[:_SOME]]
    await graph.look(visit.client, shown)
    reason = graph.reasons.get(node.ordinal)
    sentence = (
        f"it has been started, and has {'a batch' if node.each else 'a job'} now"
        if found.href
        else why_no_job(replace(node, why=reason), graph.nodes, record)
    )
    return {
        "record": record,
        "node": node,
        "state": ("wait", "waits") if sentence.startswith("waits") else STATES[node.outcome],
        "sentence": sentence,
        "href": found.href,
        "before": [show_node(visit, graph, record, graph.nodes[at]) for at in before[:_SOME]],
        "after": [show_node(visit, graph, record, graph.nodes[at]) for at in after[:_SOME]],
        "all_before": len(before),
        "all_after": len(after),
        "command": f"evsched explain {node.id} --queue {graph.queue}",
    }


def _after(graph: KnownGraph, ordinal: int) -> list[int]:
    return [node.ordinal for node in graph.nodes[ordinal + 1 :] if ordinal in node.after]


VIEWS = (View("/node", "node", _node, part="batches", every=1.0, follow=_follow_node),)
