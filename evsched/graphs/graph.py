"""A graph as a program sees it: name its nodes, say which stand behind which, enqueue it; then wait for its results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, cast

from msgspec import Struct

from evsched.batches.batch import Batch, NewBatch
from evsched.batches.batch_options import EXPIRES, RETENTION, BatchOptions
from evsched.batches.node import KEPT_MOST, GraphNode, StoredNode, Take, failed_before
from evsched.batches.starter import write_nodes
from evsched.client.client import Client
from evsched.client.option_values import finite_seconds
from evsched.client.task_handle import Outlet, TaskCall
from evsched.errors import BadArguments, ConfigError, JobDead, JobMissing
from evsched.jobs.job import encode
from evsched.store.batch_calls import PlanRow

NODES_MOST: Final = 10_000
"""Nodes of a graph, and items for each of which a node has a job; lua/batch_plan.lua has the same limit."""

EDGES_MOST: Final = 100_000
"""Pairs of nodes of which one stands behind the other: they take some 10 bytes each."""

_FOREVER: Final = 10 * 365 * 86400.0
"""Seconds for which the results of a graph are kept that never expires, if it does not end."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]*[A-Za-z_-][A-Za-z0-9_-]*")
_TAKEN: Final = frozenset(("done", "failed", "progress"))
"""Names that would give a node the ids of callbacks."""

_ID_MOST: Final = 200


class _Planned(Struct, frozen=True):
    """A node as a program has named it."""

    call: TaskCall[Any]
    after: tuple[str, ...]
    takes: Mapping[str, str]
    """The arguments that are results, and of which nodes. The name "" = by position."""
    despite: bool = False
    over: str | None = None
    limit: int = 0


class Graph:
    """A graph that is to be enqueued: see docs/graphs.md."""

    def __init__(self, app: Outlet, id: str | None, queue: str, options: BatchOptions) -> None:  # noqa: A002
        self._app = app
        self._id = id
        self._queue = queue
        self._options = options
        self._nodes: dict[str, _Planned] = {}
        self._last = ""

    def add(
        self,
        name: str,
        call: TaskCall[Any],
        *,
        after: str | Sequence[str] | Mapping[str, str] = (),
        take: Sequence[str] | None = None,
        despite_failure: bool = False,
    ) -> None:
        """Add a node: a job of the call `task.s(...)`, once the nodes `after` which it stands are done.

        The handler gets the result of each by an argument of that node's name; `after={"rows": "fetch"}`: by another
        name. `take`: only those of these nodes. `despite_failure`: the job runs when all of them have ended, however;
        the result of a node that is not done is None.

        Raises:
            ConfigError: the name is not valid, or taken, or an option is not.
            BadArguments: the task cannot be called with these arguments.
        """
        if not isinstance(despite_failure, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"node {name}: despite_failure is {despite_failure!r:.100}: give True or False")
        self._add(name, call, after, take, despite=despite_failure)

    def each(
        self,
        name: str,
        call: TaskCall[Any],
        *,
        over: str,
        limit: int = 1000,
        after: str | Sequence[str] | Mapping[str, str] = (),
        take: Sequence[str] | None = None,
    ) -> None:
        """Add a node that has a job for each item of a result: that of the node `over`, which must be a list.

        The handler gets the item as its next argument by position. The result of the node is the list of the results,
        in the order of the items. `limit`: with more items the node fails. The others: as of `add`.

        Raises as `add`.
        """
        if type(limit) is not int or not 0 < limit <= NODES_MOST:
            raise ConfigError(f"node {name}: limit is {limit!r:.100}: give a whole number from 1 to {NODES_MOST:,}")
        if not isinstance(over, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"node {name}: over is {over!r:.100}: give the name of a node")
        self._add(name, call, after, take, over=over, limit=limit)

    def follow(self, name: str, call: TaskCall[Any]) -> None:
        """Add a node behind the last one, whose result is the next argument by position, if the handler has one more.

        Raises as `add`.
        """
        _check(call, name)
        takes = {"": self._last} if self._last and call.task.takes_more(call.args, call.kwargs) else {}
        self._keep(name, _Planned(call, (self._last,) if self._last else (), takes))

    def _add(
        self,
        name: str,
        call: TaskCall[Any],
        after: str | Sequence[str] | Mapping[str, str],
        take: Sequence[str] | None,
        *,
        despite: bool = False,
        over: str | None = None,
        limit: int = 0,
    ) -> None:
        _check(call, name)
        _check_names("after", name, after)
        _check_names("take", name, take or ())
        names = [after] if isinstance(after, str) else after
        takes = dict(names) if isinstance(names, Mapping) else {one: one for one in names}
        before = tuple(dict.fromkeys(takes.values()))
        if take is not None:
            if lost := set(take).difference(before):
                raise ConfigError(f"node {name}: take names {_list(lost)}, and it stands after {_list(before)}")
            takes = {argument: node for argument, node in takes.items() if node in take}
        if twice := set(takes).intersection(call.kwargs):
            raise BadArguments(f"node {name}: the argument {_list(twice)} is given, and is a result too")
        if over is not None:
            before = tuple(dict.fromkeys((*before, over)))
        self._keep(name, _Planned(call, before, takes, despite, over, limit))

    def _keep(self, name: str, node: _Planned) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _TAKEN:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"node {name!r}: its name must have letters, digits, _ and -, and not only digits; {_list(_TAKEN)} are "
                "the names of callbacks"
            )
        if name in self._nodes:
            raise ConfigError(f"node {name} is added twice: give one of them another name")
        try:
            self._outline(node)
        except BadArguments as error:
            hint = "; take=() if it needs none of the results" if any(node.takes) else ""
            raise BadArguments(f"node {name}: {error}{hint}") from None
        except ConfigError as error:
            raise ConfigError(f"node {name}: {error}") from None
        self._nodes[name] = node
        self._last = name

    def _outline(self, node: _Planned) -> Any:
        by_position = node.over is not None or "" in node.takes
        named = [argument for argument in node.takes if argument]
        return node.call.task.outline(node.call.args, node.call.kwargs, later=by_position, named=named)

    async def enqueue(self) -> EnqueuedGraph:
        """Check the graph, and enqueue it: then it is fixed. It is a batch, which the returned handle looks at.

        Raises:
            ConfigError: nodes stand behind each other in a circle, or behind one that there is not; or there are too
                many; or an option is not valid.
            BadArguments: a callback does not take its argument.
            JobExists: there is a batch of that id, and its retention is not over.
        """
        return await self.put(self._app.client)

    async def put(self, client: Client) -> EnqueuedGraph:
        """Do as `enqueue`, through a client."""
        batch = NewBatch(self._id, self._queue, client, self._options)
        rows = self._rows(batch.id)
        async with batch:
            await write_nodes(client, client.store(batch.queue), batch.id, rows)
        return EnqueuedGraph(batch.id, batch.queue, client, [*self._nodes])

    def _rows(self, batch: str) -> list[PlanRow]:
        """Return the nodes as `batch_plan` takes them, each behind the nodes that it waits for.

        Raises:
            ConfigError
        """
        if not self._nodes:
            raise ConfigError("the graph has no nodes: add one with add(name, task.s(...))")
        order = self._order()
        ordinals = {name: at for at, name in enumerate(order)}
        longest = max(map(len, order), default=0) + (6 if any(node.over for node in self._nodes.values()) else 1)
        if len(batch) + longest > _ID_MOST:
            raise ConfigError(f"id {batch}: with the longest name of a node, it must not exceed {_ID_MOST} characters")
        options = cast("dict[str, Any]", self._options)
        expires = options.get("expires", EXPIRES)
        kept = _FOREVER if expires is None else finite_seconds("expires", expires)
        kept = min(KEPT_MOST, kept + finite_seconds("retention", options.get("retention", RETENTION)))
        rows = list[PlanRow]()
        for name in order:
            node = self._nodes[name]
            job = f"{batch}.{name}"
            made = encode(self._node(name, node, ordinals, kept))
            queue = node.call.task.queue if node.over is None else self._queue
            after = [ordinals[one] for one in node.after]
            rows.append(PlanRow(made, f"/{job}" if node.over else job, queue, after, node.despite))
        return rows

    def _order(self) -> list[str]:
        """Return the names of the nodes, each behind the nodes that it waits for.

        Raises:
            ConfigError
        """
        for name, node in self._nodes.items():
            if lost := [one for one in node.after if one not in self._nodes]:
                raise ConfigError(f"node {name} stands after {_list(lost)}, which is not a node of the graph")
        edges = sum(len(node.after) for node in self._nodes.values())
        if len(self._nodes) > NODES_MOST or edges > EDGES_MOST:
            raise ConfigError(
                f"the graph has {len(self._nodes):,} nodes and {edges:,} edges: at most {NODES_MOST:,} and "
                f"{EDGES_MOST:,} are allowed"
            )
        try:
            return [*TopologicalSorter({name: node.after for name, node in self._nodes.items()}).static_order()]
        except CycleError as error:
            circle = " -> ".join(cast("list[str]", error.args[1]))
            raise ConfigError(f"the graph has a circle: {circle}") from None

    def _node(self, name: str, node: _Planned, ordinals: Mapping[str, int], kept: float) -> StoredNode:
        def take(other: str, argument: str = "") -> Take:
            planned = self._nodes[other]
            return Take(other, ordinals[other], planned.call.task.queue, argument, planned.over is not None)

        job, payload = self._outline(node)
        own = payload.get("retention")
        return StoredNode(
            name=name,
            queue=node.call.task.queue,
            payload=payload | {"retention": kept},
            retention=min(KEPT_MOST, node.call.task.retention if own is None else own),
            priority=job.priority,
            group=job.group,
            due=job.due,
            delay=job.delay,
            takes=tuple(take(other, argument) for argument, other in node.takes.items()),
            over=None if node.over is None else take(node.over),
            limit=node.limit,
            despite=node.despite,
        )


class EnqueuedGraph(Batch):
    """A graph that was enqueued: a batch, whose first members are its nodes."""

    def __init__(self, batch: str, queue: str, client: Client, names: Sequence[str]) -> None:
        super().__init__(batch, queue, client)
        self._names = tuple(names)

    async def result(self, node: str | None = None, *, timeout: timedelta | float | None = None) -> Any:
        """Wait until the graph has ended, and return the result of a node; None = of the node that was added last.

        Raises:
            JobDead: the node is not done; the message says why.
            JobMissing: there is no such node, or its record is not kept any more.
            TimeoutError: the graph did not end in time.
        """
        name = self._names[-1] if node is None else node
        if name not in self._names:
            raise JobMissing(f"graph {self.id} has no node {name!r:.100}")
        await self.wait(timeout)
        found = await self.node(name)
        if found.outcome != "done":
            raise JobDead(f"{found.id} {await self._why(found)}")
        if found.each:
            return await Batch(found.id, self.queue, self._client).results(NODES_MOST)
        status = await self._client.status(found.queue, found.id)
        if status is None:
            raise JobMissing(f"{found.id} is done, but its record is not kept any more: give it a longer retention")
        return status.result

    async def _why(self, node: GraphNode) -> str:
        if node.outcome != "stopped":
            status = None if node.each else await self._client.status(node.queue, node.id)
            reason = node.why or (None if status is None else status.reason)
            return f"is {node.outcome}" + (f": {reason}" if reason else "")
        return f"was stopped: {failed_before(node, await self.nodes(0, node.ordinal))}"


def chain(app: Outlet, calls: Sequence[TaskCall[Any]], id: str | None, queue: str, options: BatchOptions) -> Graph:  # noqa: A002
    """Return a graph of calls one after the other, each of which gets the result of the one before it.

    Raises:
        ConfigError, BadArguments: as `Graph.add`.
    """
    if not calls:
        raise ConfigError("chain() has no calls: give it task.s(...), one for each job")
    graph, seen = Graph(app, id, queue, options), dict[str, int]()
    for at, call in enumerate(calls, 1):
        _check(call, str(at))
        name = re.sub(r"[^A-Za-z0-9_-]", "_", call.task.name)
        seen[name] = seen.get(name, 0) + 1
        graph.follow(name if seen[name] == 1 and name not in _TAKEN else f"{name}-{at}", call)
    return graph


def _check(call: Any, name: str) -> None:
    if not isinstance(call, TaskCall):
        raise ConfigError(f"node {name}: {call!r:.100} is not a call of a task: give task.s(...)")


def _check_names(option: str, name: str, value: Any) -> None:
    found: list[Any] = []
    if isinstance(value, Mapping):
        found += [*cast("Mapping[Any, Any]", value), *cast("Mapping[Any, Any]", value).values()]
    elif isinstance(value, Sequence | set | frozenset):
        found += cast("Sequence[Any]", value)
    else:
        found.append(value)
    if not all(isinstance(one, str) for one in found):
        raise ConfigError(f"node {name}: {option} is {value!r:.100}: give names of nodes")


def _list(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
