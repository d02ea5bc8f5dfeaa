"""Routes: how a connection finds the server that it goes to.

`Primary` is the one server of a URL, `ClusterRoute` the node of a cluster that owns a key's slot, or a given node.

Without Sentinel it is where the URL says. With Sentinel it is looked up anew for each connection that is opened. When
the primary has moved, all connections to the old one are cut. Otherwise an old primary that hangs, or whose machine is
away, would hold them until they time out. A process notices the move when one of its connections finds another primary,
or hears of it from the sentinels (`followed`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final, Protocol, cast

from redis import exceptions

from evsched.errors import StoreDown
from evsched.transport.address import Address, Host, parse
from evsched.transport.call import Word
from evsched.transport.links import AsyncLink, SyncLink
from evsched.transport.open_links import OpenLinks
from evsched.transport.sentinel import SentinelAsker
from evsched.transport.topology import Topology, topology

_HELLO: Final = ("HELLO", "2")
"""Its reply has the server's role. Every user may send it."""


class Route(Protocol):
    """Opens links to a server."""

    async def connect(self, link: AsyncLink) -> None:
        """Open a link.

        Raises:
            StoreDown: the server cannot be found, or is no primary any more.
            StoreRefused: those that are asked for it refuse.
            RedisError, OSError: of redis-py.
        """
        ...

    def connect_sync(self, link: SyncLink) -> None:
        """Open a link, unless it is open. Raises as `connect` does."""
        ...

    def lost(self) -> None:
        """Note that the server does not answer, or that another one has its place."""
        ...


class Primary:
    """Opens links to the primary of a URL."""

    def __init__(self, address: Address) -> None:
        self._asker = None if address.sentinels is None else SentinelAsker(address.scheme, address.sentinels)
        self._at: Host | None = None
        """Where the primary was found last."""
        self._links = OpenLinks()

    async def connect(self, link: AsyncLink) -> None:
        """See `Route`."""
        if self._asker is None:
            await link.connect()
            return
        at = await self._asker.ask()
        self._links.add(link)
        self._found(at)
        _aim(link, at)
        await link.connect()
        try:
            await link.send_command(*_HELLO, check_health=False)
            reply = cast(Any, await link.read_response())
        except exceptions.ResponseError:
            reply = []  # renamed by an operator
        self._check(at, reply)

    def connect_sync(self, link: SyncLink) -> None:
        """See `Route`."""
        if self._asker is None:
            link.connect()
            return
        any_link: Any = link
        if any_link._sock is not None:
            if (any_link.host, any_link.port) == self._at:
                return
            link.disconnect()
        at = self._asker.ask_sync()
        self._found(at)
        _aim(link, at)
        link.connect()
        try:
            link.send_command(*_HELLO, check_health=False)
            reply = cast(Any, link).read_response()
        except exceptions.ResponseError:
            reply = []
        self._check(at, reply)

    def lost(self) -> None:
        """See `Route`. It is found anew for each link."""

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[None]:
        """Listen to the sentinels, in this event loop."""
        hosts = () if self._asker is None else self._asker.hosts
        listening = [asyncio.ensure_future(self._listen(host)) for host in hosts]
        try:
            yield
        finally:
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)

    async def _listen(self, host: Host) -> None:
        assert self._asker is not None
        async for at in self._asker.moves(host):
            self._found(at)

    def _found(self, at: Host) -> None:
        """Note where the primary is. If it has moved, cut the links to the old one."""
        before, self._at = self._at, at
        if before is not None and before != at:
            self._links.cut(before)

    def _check(self, at: Host, reply: Any) -> None:
        """Check the reply to HELLO, and that the primary has not moved meanwhile.

        Raises:
            StoreDown: the failover is not over.
        """
        fields = dict(zip(reply[::2], reply[1::2], strict=False))
        if fields.get(b"role") == b"replica":
            raise StoreDown(f"{at[0]}:{at[1]} is a replica: the failover is not over", kind="readonly")
        if at != self._at:
            raise StoreDown("the primary has moved meanwhile", kind="readonly")


class ClusterRoute:
    """Opens links to a node of a cluster: `node`, or the one that owns the slot of `near`, or any primary."""

    def __init__(self, cluster: Topology, near: Word | None, node: Host | None) -> None:
        self._cluster = cluster
        self._near = near
        self._node = node
        self._at = node
        """The node that the link was opened to last."""

    async def connect(self, link: AsyncLink) -> None:
        """See `Route`."""
        self._cluster.links.add(link)
        self._at = self._node or await self._cluster.owner(self._near)
        _aim(link, self._at)
        await link.connect()

    def connect_sync(self, link: SyncLink) -> None:
        """See `Route`."""
        at = self._at = self._node or self._cluster.owner_sync(self._near)
        any_link: Any = link
        if any_link._sock is not None and (any_link.host, any_link.port) != at:
            link.disconnect()
        _aim(link, at)
        link.connect()

    def lost(self) -> None:
        """See `Route`."""
        self._cluster.lost(self._at)


def _aim(link: Any, at: Host) -> None:
    link.host, link.port = at


@cache
def primary(url: str) -> Primary:
    """Return the primary of a URL, the same for all connections of the process."""
    return Primary(parse(url))


def route(url: str, near: Word | None = None, node: Host | None = None) -> Route:
    """Return how connections to the server of a URL are opened; in a cluster, to the node that has the key `near`."""
    cluster = topology(url)
    return primary(url) if cluster is None else ClusterRoute(cluster, near, node)
