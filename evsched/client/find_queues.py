"""Which queues there are, for those who show them all."""

from __future__ import annotations

import asyncio
import math
from typing import Any, NamedTuple

from evsched.client import operations
from evsched.client.operations import ONCE_LIMIT, Operation, Send, Step, nodes, send
from evsched.errors import StoreDown, StoreRefused
from evsched.store import server
from evsched.transport.address import Host
from evsched.transport.senders import BatchingSender


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
    down: list[Host]


def find_queues_once(url: str, slices: float = math.inf) -> Answered:
    """Return the queues of the nodes that answer: all are asked at the same time, once. For a cluster.

    Raises:
        StoreDown: no node answers.
        StoreRefused
    """
    return asyncio.run(_ask_all(url, slices))


async def _ask_all(url: str, slices: float) -> Answered:
    sender, found = BatchingSender(url, reply_timeout=ONCE_LIMIT), set[str]()

    async def perform(step: Step) -> Any:
        assert isinstance(step, Send)
        return await sender.send(step.call)

    async def read_set() -> bool:
        try:
            names = await sender.send(server.queue_names())
        except (StoreDown, StoreRefused):
            return False
        found.update(names)
        return bool(names)

    async def ask(node: Host) -> Host | None:
        """Add the queues of which a node has keys; return the node if it does not answer."""
        try:
            dispatched = await operations.run(operations.once(_has_dispatcher(node)), perform)
            if not (await served and dispatched):
                await operations.run(operations.once(_scan(node, found, slices)), perform)
        except StoreDown:
            return node
        return None

    try:
        primaries = [node for node in await sender.nodes() if node is not None]
        served = asyncio.ensure_future(read_set())
        down = await asyncio.gather(*map(ask, primaries))
        await served
    finally:
        await sender.close()
    return Answered(sorted(found), [node for node in down if node is not None])


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
        keys = yield from send(server.scan(cursor or 0).at(node))
        found.update(keys.queues)
        cursor = keys.next
