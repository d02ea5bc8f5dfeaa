"""A graph as a program sees it: name its nodes, say which stand behind which, enqueue it; then wait for its results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from msgspec import Struct

from evsched.batches.batch import Batch, NewBatch
from evsched.batches.batch_options import EXPIRES, RETENTION, BatchOptions
from evsched.batches.starter import write_nodes
from evsched.client.client import Client
from evsched.client.new_job import Sending
from evsched.client.option_values import lasting_seconds
from evsched.client.task_handle import Outlet, TaskCall
from evsched.errors import BadArguments, ConfigError
from evsched.graphs.plan import NODES_MOST, TAKEN, Edges, PlannedNode, check_name, edges_of, plan_rows
from evsched.store.batch_calls import PlanRow
from evsched.store.client_calls import New


class _Added(Struct, frozen=True):
    """A node as a program has named it."""

    call: TaskCall[Any]
    edges: Edges
    despite: bool = False
    limit: int = 0


class Graph:
    """A graph that is to be enqueued: see docs/graphs.md."""

    def __init__(self, app: Outlet, id: str | None, queue: str, options: BatchOptions) -> None:  # noqa: A002
        self._app = app
        self._id = id
        self._queue = queue
        self._options = options
        self._nodes: dict[str, _Added] = {}
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
        self._keep(name, _Added(call, Edges((self._last,) if self._last else (), takes)))

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
        edges = edges_of(name, after, take, over, call.kwargs)
        self._keep(name, _Added(call, edges, despite, limit))

    def _keep(self, name: str, node: _Added) -> None:
        check_name(name, self._nodes)
        try:
            self._outline(node)
        except BadArguments as error:
            hint = "; take=() if it needs none of the results" if any(node.edges.takes) else ""
            raise BadArguments(f"node {name}: {error}{hint}") from None
        except ConfigError as error:
            raise ConfigError(f"node {name}: {error}") from None
        self._nodes[name] = node
        self._last = name

    def _outline(self, node: _Added, batch: str = "") -> tuple[New, dict[str, Any]]:
        by_position = node.edges.over is not None or "" in node.edges.takes
        named = [argument for argument in node.edges.takes if argument]
        return node.call.task.outline(node.call.args, node.call.kwargs, batch, later=by_position, named=named)

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
        with Sending("", self._queue, {}, self._app.instruments, len(self._nodes), batch.id) as sending:
            outlines = {name: self._outline(added, batch.id) for name, added in self._nodes.items()}
            sending.jobs = [job for job, _ in outlines.values()]
            outlines = {name: (job, await client.sealed_node(payload)) for name, (job, payload) in outlines.items()}
            rows = self._rows(batch.id, outlines)
            async with batch:
                await write_nodes(client, client.store(batch.queue), batch.id, rows)
        return EnqueuedGraph(batch.id, batch.queue, client, self._last)

    def _rows(self, batch: str, outlines: Mapping[str, tuple[New, dict[str, Any]]]) -> list[PlanRow]:
        """Return the nodes as `batch_plan` takes them. Raises as `plan_rows`."""
        if not self._nodes:
            raise ConfigError("the graph has no nodes: add one with add(name, task.s(...))")
        nodes = {
            name: PlannedNode(
                added.call.task.queue,
                *outlines[name],
                added.call.task.retention,
                added.edges,
                added.despite,
                added.limit,
            )
            for name, added in self._nodes.items()
        }
        options = cast("dict[str, Any]", self._options)
        expires = options.get("expires", EXPIRES)
        expires = None if expires is None else lasting_seconds("expires", expires)
        retention = lasting_seconds("retention", options.get("retention", RETENTION))
        return plan_rows(batch, self._queue, nodes, expires, retention)


class EnqueuedGraph(Batch):
    """A graph that was enqueued: a batch, whose first members are its nodes."""

    def __init__(self, batch: str, queue: str, client: Client, last: str) -> None:
        super().__init__(batch, queue, client)
        self._last = last

    async def result(self, node: str | None = None, *, timeout: timedelta | float | None = None) -> Any:
        """Wait until a node has ended, and return its result; None = the node that was added last.

        Raises:
            JobDead: the node is not done; the message says why.
            JobMissing: there is no such node, or its record is not kept any more.
            TimeoutError: it did not end in time.
        """
        return await super().result(self._last if node is None else node, timeout=timeout)


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
        graph.follow(name if seen[name] == 1 and name not in TAKEN else f"{name}-{at}", call)
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
