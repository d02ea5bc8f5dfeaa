"""The names of all queues: found in the set that dispatchers keep, and among the keys of Redis."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from evsched import keys
from evsched.client.operations import ONCE_LIMIT, Operation, Send, Step, nodes, once, run, send
from evsched.errors import StoreDown, StoreRefused
from evsched.store import server
from evsched.transport.address import Host
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import nodes_down, topology

_PAST_SLICES: Final = 1000
"""Slices of each node's keys in which queues with nothing but a past are looked for: about 0.3 s of Redis's time."""


def find_queues(slices: float = math.inf, *, past: bool = False) -> Operation[list[str]]:
    """Return the names of all queues, sorted. `slices`: how many thousand keys of each node are read at most.

    While a dispatcher runs, it keeps their set, which is read at once. Without one the keys are read as well, since a
    queue that was made by ZADD alone is in no set yet. In a cluster each node has dispatchers and keys of its own.

    `past`: also queues that have nothing but a history or an audit trail. No set has those: if a dispatcher runs, they
    are looked for among the first million keys of each node, and not at all if this Redis user may not read the keys.

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
            yield from _scan(node, found, slices, past=past)
        elif past:
            yield from _scan_past(node, found)
    return sorted(found)


class Answered(NamedTuple):
    """The queues that nodes know, and the primaries of a cluster that did not answer."""

    names: list[str]
    """Those on primaries that answered."""
    lost: list[str]
    """Those on the others."""
    down: list[Host]


def find_queues_once(url: str, slices: float = math.inf, *, past: bool = False) -> Answered:
    """Find the queues of a cluster, as `ask_nodes`."""
    return asyncio.run(_ask_nodes_of(url, slices, past=past))


async def _ask_nodes_of(url: str, slices: float, *, past: bool) -> Answered:
    sender = BatchingSender(url, reply_timeout=ONCE_LIMIT)

    async def perform(step: Step) -> Any:
        assert isinstance(step, Send)
        return await sender.send(step.call)

    try:
        return await ask_nodes(url, perform, slices, past=past)
    finally:
        await sender.close()


async def ask_nodes(
    url: str, perform: Callable[[Step], Awaitable[Any]], slices: float = math.inf, *, past: bool = False
) -> Answered:
    """Find the queues of a cluster. All nodes are asked at the same time, once; `perform` sends the calls.

    `slices`, `past`: as of `find_queues`.

    Raises:
        StoreDown: no node answers.
        StoreRefused
    """
    cluster, found = topology(url), set[str]()
    assert cluster is not None

    async def read_set() -> bool:
        try:
            names = await run(once(send(server.queue_names())), perform)
        except (StoreDown, StoreRefused):
            return False
        found.update(names)
        return bool(names)

    async def ask(node: Host) -> bool:
        """Add the queues of which a node has keys; return whether it answers."""
        try:
            dispatched = await run(once(_has_dispatcher(node)), perform)
            if not (await served and dispatched):
                await run(once(_scan(node, found, slices, past=past)), perform)
            elif past:
                await run(once(_scan_past(node, found)), perform)
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


def _scan_past(node: Host | None, found: set[str]) -> Operation[None]:
    try:
        yield from _scan(node, found, _PAST_SLICES, past=True)
    except StoreRefused:
        pass  # a right is missing


def _scan(node: Host | None, found: set[str], slices: float, *, past: bool) -> Operation[None]:
    """Add the queues of which a node has keys."""
    cursor = None
    while cursor != 0 and slices > 0:
        slices -= 1
        part = yield from send(server.scan(cursor or 0, past=past).at(node))
        found.update(part.queues)
        cursor = part.next
