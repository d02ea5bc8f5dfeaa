"""The plan of a graph: check the names and the order of its nodes, and write them as rows of the home."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, cast

from msgspec import Struct

from evsched.batches.node import KEPT_MOST, StoredNode, Take
from evsched.errors import BadArguments, ConfigError
from evsched.jobs.job import encode
from evsched.store.batch_calls import PlanRow
from evsched.store.client_calls import New

NODES_MOST: Final = 10_000
"""Nodes of a graph, and items for each of which a node has a job; lua/batch_plan.lua has the same limit."""

EDGES_MOST: Final = 100_000
"""Pairs of nodes of which one stands behind the other: they take some 10 bytes each."""

_FOREVER: Final = 10 * 365 * 86400.0
"""Seconds for which the results of a graph are kept that never expires, if it does not end."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]*[A-Za-z_-][A-Za-z0-9_-]*")
TAKEN: Final = frozenset(("done", "failed", "progress"))
"""Names that would give a node the ids of callbacks."""

_ID_MOST: Final = 200


class Edges(Struct, frozen=True):
    """The nodes before a node."""

    after: tuple[str, ...] = ()
    takes: Mapping[str, str] = {}
    """The arguments that are results, and of which nodes. The name "" = by position."""
    over: str | None = None


class PlannedNode(Struct, frozen=True):
    """A node that is to be written."""

    queue: str
    job: New
    """Its priority, group, due and delay are those of the node's job."""
    payload: dict[str, Any]
    """That of its job, without the arguments that come later."""
    retention: float
    """Seconds for which the record of the job is kept, unless the payload says so."""
    edges: Edges
    despite: bool = False
    limit: int = 0


def check_name(name: Any, nodes: Mapping[str, Any]) -> None:
    """Check the name of a node that is added to others.

    Raises:
        ConfigError: it is not valid, or taken.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in TAKEN:
        raise ConfigError(
            f"node {name!r}: its name must have letters, digits, _ and -, and not only digits; {names_of(TAKEN)} are "
            "the names of callbacks"
        )
    if name in nodes:
        raise ConfigError(f"node {name} is added twice: give one of them another name")


def edges_of(
    name: str,
    after: str | Sequence[str] | Mapping[str, str],
    take: Sequence[str] | None,
    over: str | None,
    given: Iterable[str],
) -> Edges:
    """Return the edges of a node. `given`: the arguments by name that it has already.

    Raises:
        ConfigError: `take` names a node that is not before it.
        BadArguments: an argument is given, and is a result too.
    """
    names = [after] if isinstance(after, str) else after
    takes = dict(names) if isinstance(names, Mapping) else {one: one for one in names}
    before = tuple(dict.fromkeys(takes.values()))
    if take is not None:
        if lost := set(take).difference(before):
            raise ConfigError(f"node {name}: take names {names_of(lost)}, and it stands after {names_of(before)}")
        takes = {argument: node for argument, node in takes.items() if node in take}
    if twice := set(takes).intersection(given):
        raise BadArguments(f"node {name}: the argument {names_of(twice)} is given, and is a result too")
    if over is not None:
        before = tuple(dict.fromkeys((*before, over)))
    return Edges(before, takes, over)


def plan_rows(
    batch: str, home: str, nodes: Mapping[str, PlannedNode], expires: float | None, retention: float
) -> list[PlanRow]:
    """Return the nodes as `batch_plan` takes them, each behind the nodes that it waits for.

    Raises:
        ConfigError: nodes stand behind each other in a circle, or behind one that there is not; or there are too many.
    """
    order = _order(nodes)
    ordinals = {name: at for at, name in enumerate(order)}
    longest = max(map(len, order), default=0) + (6 if any(node.edges.over for node in nodes.values()) else 1)
    if len(batch) + longest > _ID_MOST:
        raise ConfigError(f"id {batch}: with the longest name of a node, it must not exceed {_ID_MOST} characters")
    kept = min(KEPT_MOST, (_FOREVER if expires is None else expires) + retention)
    rows = list[PlanRow]()
    for name in order:
        node, job = nodes[name], f"{batch}.{name}"
        made = encode(_stored(name, nodes, ordinals, kept))
        queue = node.queue if node.edges.over is None else home
        after = [ordinals[one] for one in node.edges.after]
        rows.append(PlanRow(made, job if node.edges.over is None else f"/{job}", queue, after, node.despite))
    return rows


def _order(nodes: Mapping[str, PlannedNode]) -> list[str]:
    """Return the names of the nodes, each behind the nodes that it waits for.

    Raises:
        ConfigError
    """
    for name, node in nodes.items():
        if lost := [one for one in node.edges.after if one not in nodes]:
            raise ConfigError(f"node {name} stands after {names_of(lost)}, which is not a node of the graph")
    edges = sum(len(node.edges.after) for node in nodes.values())
    if len(nodes) > NODES_MOST or edges > EDGES_MOST:
        raise ConfigError(
            f"the graph has {len(nodes):,} nodes and {edges:,} edges: at most {NODES_MOST:,} and {EDGES_MOST:,} are "
            "allowed"
        )
    try:
        return [*TopologicalSorter({name: node.edges.after for name, node in nodes.items()}).static_order()]
    except CycleError as error:
        circle = " -> ".join(cast("list[str]", error.args[1]))
        raise ConfigError(f"the graph has a circle: {circle}") from None


def _stored(name: str, nodes: Mapping[str, PlannedNode], ordinals: Mapping[str, int], kept: float) -> StoredNode:
    def take(other: str, argument: str = "") -> Take:
        planned = nodes[other]
        return Take(other, ordinals[other], planned.queue, argument, planned.edges.over is not None)

    node = nodes[name]
    own = node.payload.get("retention")
    return StoredNode(
        name=name,
        queue=node.queue,
        payload=node.payload | {"retention": kept},
        retention=min(KEPT_MOST, node.retention if own is None else own),
        priority=node.job.priority,
        group=node.job.group,
        due=node.job.due,
        delay=node.job.delay,
        takes=tuple(take(other, argument) for argument, other in node.edges.takes.items()),
        over=None if node.edges.over is None else take(node.edges.over),
        limit=node.limit,
        despite=node.despite,
    )


def names_of(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
