"""The graphs whose pages are open, as all viewers share them: the plan is read once, then only how the nodes ended.

The plan of a large graph is read a part at a time, as long as a page may take. How all nodes have ended is one call.
Each reading looks at some of the nodes whose jobs wait or run, beginning with the ones that it looked at longest ago.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from evsched.batches.member import OUTCOMES, ends
from evsched.batches.node import GraphNode, Neighbors, read_neighbors, read_plan
from evsched.client.operations import send_many
from evsched.console.graph_layout import Drawing, lay_out, layers_of
from evsched.console.page import MeteredClient
from evsched.jobs.record import MemberAddress
from evsched.store.batch_calls import BatchRecord
from evsched.transport.call import Call

T = TypeVar("T")

_SLICE: Final = 250
"""Nodes of the plan that one round trip reads."""

_LOOK: Final = 0.1
"""Seconds for which one reading of a page reads the plan."""

_KEPT: Final = 50_000
"""Nodes of all graphs that are kept, at most, or those of one graph: some 500 bytes each."""

_OPEN_AT_ONCE: Final = 3
"""Nodes whose jobs an open page looks at in one reading: a command each."""

_NEIGHBORS: Final = 10
_JOBS: Final = 1000
"""Jobs whose neighbors are kept."""

_DERIVED: Final = 1000
"""Values that are kept of one graph, such as sentences about nodes, and lists that viewers have asked for."""

_WAITING: Final = OUTCOMES.index("waiting")
LEFT: Final = frozenset(("waiting", "open", "stopped"))
"""The outcomes of nodes for which others wait."""


class OpenNode(Struct, frozen=True):
    """A node that has been started and has not ended, as it was looked at last."""

    runs: bool = False
    batch: BatchRecord | None = None
    """That of its jobs, of an `each`."""


class KnownGraph:
    """One graph."""

    def __init__(self, record: BatchRecord) -> None:
        self.id, self.queue = record.id, record.queue
        self.nodes = list[GraphNode]()
        """Those whose plan has been read, by their ordinals."""
        self.open = OrderedDict[int, OpenNode]()
        """The open nodes, and the batches of nodes, as they were read last; first the one that was read longest ago."""
        self.reasons = dict[int, str | None]()
        """Why nodes that are dead have no job; None = they have one."""
        self._derived = dict[Any, Any]()
        """Values that follow from how the nodes have ended. They are forgotten when that changes."""
        self._codes = b""
        self._settled: tuple[Any, ...] | None = None
        self._layers: list[int] | None = None
        self._drawing: tuple[Drawing | None, ...] = ()

    async def read(self, client: MeteredClient, record: BatchRecord) -> None:
        """Read the nodes: first the plan as far as there is time, then how they have ended."""
        store, until = client.store(self.queue), time.monotonic() + _LOOK
        while len(self.nodes) < record.nodes:
            first = len(self.nodes)
            found = await client.run(read_plan(store, self.id, range(first, min(first + _SLICE, record.nodes))))
            if len(self.nodes) == first:  # another page may have read it meanwhile
                self.nodes += found
                self._codes += bytes([_WAITING]) * len(found)
                self._layers, self._drawing, self._settled = None, (), None
                self._derived.clear()
            if time.monotonic() > until:
                break
        settled = (record.finished, record.round, record.done, record.stopped)
        if self.nodes and (record.finished is None or self._settled != settled):
            codes = await client.run(ends(store, self.id, 0, len(self.nodes) - 1))
            if len(codes) == len(self.nodes):  # else another page has read more of the plan meanwhile
                self._note(codes)
                self._settled = settled

    def _note(self, codes: bytes) -> None:
        """Note how the nodes have ended."""
        if codes == self._codes:
            return
        for at, (old, new) in enumerate(zip(self._codes, codes, strict=True)):
            if old != new:
                self.nodes[at] = replace(self.nodes[at], outcome=OUTCOMES[new])
                self.reasons.pop(at, None)
                self.open.pop(at, None)
        self._codes = codes
        self._derived.clear()

    def derive(self, key: Any, make: Callable[[], T]) -> T:
        """Return what follows from how the nodes have ended, made once until that changes."""
        if key not in self._derived:
            if len(self._derived) >= _DERIVED:
                self._derived.clear()
            self._derived[key] = make()
        return self._derived[key]

    async def look(self, client: MeteredClient, ordinals: Sequence[int], most: int = _OPEN_AT_ONCE) -> None:
        """Look at some of these nodes: whether their jobs run, or how far their batches are."""
        nodes = [self.nodes[at] for at in ordinals]
        due = [node for node in nodes if node.outcome == "open" or (node.each and node.ordinal not in self.open)]
        due = [node for node in due if node.outcome not in ("waiting", "stopped") and node.queue]
        places = {at: place for place, at in enumerate(self.open)}
        due = sorted(due, key=lambda node: places.get(node.ordinal, -1))[:most]
        if not due:
            return
        calls = list[Call[Any]]()
        for node in due:
            if node.each:
                calls.append(client.store(self.queue).batch(node.id))
            else:
                calls.append(client.store(client.shards.home(node.queue, node.id)).worker_of(node.id))
        for node, found in zip(due, await client.run(send_many(calls)), strict=True):
            if self.nodes[node.ordinal] is node:  # it has not changed meanwhile
                self.open[node.ordinal] = OpenNode(batch=found) if node.each else OpenNode(runs=bool(found))
                self.open.move_to_end(node.ordinal)

    async def find_reasons(self, client: MeteredClient, ordinals: Sequence[int]) -> None:
        """Read why these nodes have no job, if they are dead."""
        dead = [at for at in ordinals if self.nodes[at].outcome == "dead" and at not in self.reasons]
        if dead:
            found = await client.send(client.store(self.queue).batch_failures(self.id, dead))
            self.reasons |= zip(dead, found, strict=True)

    def left_of(self, node: GraphNode) -> list[int]:
        """Return the nodes for which a node waits."""
        return [at for at in node.after if self.nodes[at].outcome in LEFT]

    @property
    def layers(self) -> list[int]:
        """The layer of each node, from 0."""
        if self._layers is None:
            self._layers = layers_of([node.after for node in self.nodes])
        return self._layers

    @property
    def drawing(self) -> Drawing | None:
        """Where the nodes are drawn; None if they are too many."""
        if not self._drawing:
            self._drawing = (lay_out([node.after for node in self.nodes]),)
        return self._drawing[0]


class KnownGraphs:
    """All graphs that a console knows."""

    def __init__(self) -> None:
        self._graphs = OrderedDict[tuple[str, str, float], KnownGraph]()
        self._neighbors = OrderedDict[tuple[MemberAddress, float | None], Neighbors | None]()

    async def read(self, client: MeteredClient, record: BatchRecord) -> KnownGraph:
        """Read the nodes of a graph, and return it."""
        key = record.queue, record.id, record.created
        graph = self._graphs.setdefault(key, KnownGraph(record))
        self._graphs.move_to_end(key)
        await graph.read(client, record)
        while len(self._graphs) > 1 and sum(len(one.nodes) for one in self._graphs.values()) > _KEPT:
            self._graphs.popitem(last=False)
        return graph

    async def beside(self, client: MeteredClient, address: MemberAddress, created: float | None) -> Neighbors | None:
        """Return the nodes beside that of a job, which are read once; None if it is not that of a node."""
        key = address, created
        if key not in self._neighbors:
            reading = read_neighbors(client.store(address.queue), address.batch, address.ordinal, _NEIGHBORS)
            self._neighbors[key] = await client.run(reading)
            while len(self._neighbors) > _JOBS:
                self._neighbors.popitem(last=False)
        return self._neighbors[key]
