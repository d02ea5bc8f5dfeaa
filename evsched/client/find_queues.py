"""Which queues there are, for those who show them all."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from evsched import keys
from evsched.client import operations
from evsched.client.operations import ONCE_LIMIT, Operation, Send, Step, nodes, send
from evsched.errors import StoreDown, StoreRefused
from evsched.store import server
from evsched.transport.address import Host
from evsched.transport.senders import BatchingSender
from evsched.transport.topology import nodes_down, topology


def find_queues(slices: float = math.inf) -> Operation[list[str]]:
    """Return the names of all queues, sorted. `slices`: how many thousand keys of each node are read at most.

    While a dispatcher runs, it keeps their set, which is read at once. Without one the keys are read as well, since a
    queue that was made by ZADD alone is in no set yet. In a cluster each node has dispatchers and keys of its own.

    Raises:
        StoreDown, StoreRefused
    """
    found, served = set[str](), False
    try:
        found.update((yield from send(server.queue_names())))
        served = bool(found)
    except StoreRefused:
        pass  # a right is missing, or the key is of another type: the other keys say it too
    for node in (yield from nodes()):
        if not (served and (yield from _has_dispatcher(node))):
            yield from _scan(node, found, slices)
    return sorted(found)


class Answered(NamedTuple):
    """The queues that nodes know, and the primaries of a cluster that did not answer."""

    names: list[str]
    """Those on primaries that answered."""
    lost: list[str]
    """Those on the others."""
    down: list[Host]


def find_queues_once(url: str, slices: float = math.inf) -> Answered:
    """Find the queues of a cluster, as `ask_nodes`."""
    return asyncio.run(_ask_nodes_of(url, slices))


async def _ask_nodes_of(url: str, slices: float) -> Answered:
    sender = BatchingSender(url, reply_timeout=ONCE_LIMIT)

    async def perform(step: Step) -> Any:
        assert isinstance(step, Send)
        return await sender.send(step.call)

    try:
        return await ask_nodes(url, perform, slices)
    finally:
        await sender.close()


async def ask_nodes(url: str, perform: Callable[[Step], Awaitable[Any]], slices: float = math.inf) -> Answered:
    """Find the queues of a cluster. All nodes are asked at the same time, once; `perform` sends the calls.

    Raises:
        StoreDown: no node answers.
        StoreRefused
    """
    cluster, found = topology(url), set[str]()
    assert cluster is not None

    async def read_set() -> bool:
        try:
            names = await operations.run(operations.once(send(server.queue_names())), perform)
        except (StoreDown, StoreRefused):
            return False
        found.update(names)
        return bool(names)

    async def ask(node: Host) -> bool:
        """Add the queues of which a node has keys; return whether it answers."""
        try:
            dispatched = await operations.run(operations.once(_has_dispatcher(node)), perform)
            if not (await served and dispatched):
                await operations.run(operations.once(_scan(node, found, slices)), perform)
        except StoreDown:
            return False
        return True

    primaries = await cluster.primaries()
    served = asyncio.ensure_future(read_set())
    answers = await asyncio.gather(*map(ask, primaries))
    await served
    down = [node for node, answered in zip(primaries, answers, strict=True) if not answered]
    if len(down) == len(primaries):
        raise StoreDown(nodes_down(down), kind="connection")
    lost = [name for name in sorted(found) if down and await cluster.owner(keys.root(name)) in down]
    return Answered(sorted(found.difference(lost)), lost, down)


def _has_dispatcher(node: Host | None) -> Operation[bool]:
    try:
        return bool((yield from send(server.dispatchers().at(node))))
    except StoreRefused:
        return False  # a right is missing


def _scan(node: Host | None, found: set[str], slices: float) -> Operation[None]:
    """Add the queues of which a node has keys."""
    cursor = None
    while cursor != 0 and slices > 0:
        slices -= 1
        part = yield from send(server.scan(cursor or 0).at(node))
        found.update(part.queues)
        cursor = part.next
