"""The connections to Redis, and the routes by which they find their server.

A `Connection` does not retry: after an error it is closed, and the next use opens it again. `subscription.py` receives
messages; `senders.py` sends calls.

`PrimaryRoute` leads to the primary of a URL. `ClusterRoute` leads to a given node of a cluster, or to the node that
owns the slot of a key. Without Sentinel, the primary is where the URL says. With Sentinel, it is looked up for each
connection that is opened, and the role of the server is checked. If the server is not a primary, another sentinel is
asked, because the first may be out of date. When the primary has moved, all connections to the old one are cut.
Otherwise an old primary that hangs, or whose machine is gone, would hold them until they time out.

After a planned failover, the old primary accepts writes for some ten seconds, until the sentinels demote it, and these
writes are lost. So services listen to the sentinels (`followed`), and other programs ask them again while they write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any, Final, cast

from redis import exceptions

from evsched import forks
from evsched.errors import StoreDown, StoreError
from evsched.transport.address import Address, Host, parse
from evsched.transport.call import Word
from evsched.transport.links import (
    BlockingLink,
    Link,
    OpenLinks,
    ShortReplies,
    descriptors,
    is_cut,
    new_link,
    open_link,
    pack,
    read_reply_of,
)
from evsched.transport.redis_errors import MOVED, link_error, named
from evsched.transport.servers import SentinelAsker, Topology, topology

_HELLO: Final = ("HELLO", "2")
"""Its reply has the server's role. Every user may send it."""

_CHECK_INTERVAL: Final = 1.0
"""Seconds for which an open connection is used before the sentinels are asked again. Writes to an old primary in
that time may be lost. An idle program asks nothing."""

_CHECK_RETRY: Final = 10.0
"""The same after no sentinel has answered: each unreachable one delays the program by a second."""


class PrimaryRoute:
    """Opens links to the primary of a URL."""

    node: Host | None = None
    """The node of a cluster that a link was opened to last; None = no link was opened, or there is no cluster."""

    def __init__(self, address: Address) -> None:
        self._asker = None if address.sentinels is None else SentinelAsker(address.scheme, address.sentinels)
        self._at: Host | None = None
        """Where the primary was found last."""
        self._links = OpenLinks()
        self._listeners = 0
        """How many event loops listen to the sentinels."""
        self._next_check = 0.0
        """When open links are due to be checked, by the monotonic clock."""

    def is_due(self, link: Link) -> bool:
        """Return whether `connect` has to check where an open link leads."""
        if self._asker is None:
            return False
        return _aimed(link) != self._at or (not self._listeners and time.monotonic() >= self._next_check)

    async def connect(self, link: Link) -> None:
        """Open a link. If it is open, check where it leads.

        Raises:
            StoreDown: the server cannot be found, or is no longer a primary.
            StoreRefused: the servers that know where it is refuse to answer.
            RedisError, OSError: of redis-py.
        """
        if self._asker is None:
            await open_link(link)
            return
        if link.is_connected:
            if await self._is_current(self._asker, link):
                return
            await link.disconnect(nowait=True)
        before, refuted = self._at, dict[Host, Exception]()
        blocking = isinstance(link, BlockingLink)
        while (answer := await self._asker.ask(blocking=blocking)).primary not in refuted:
            try:
                self._links.add(link)
                _aim(link, answer.primary)
                await open_link(link)
                self._confirm(answer.primary, await _hello(link), before)
                return
            except (exceptions.RedisError, OSError, StoreError) as error:
                await link.disconnect(nowait=True)
                refuted[answer.primary] = error
            self._asker.ask_last(answer.sentinel)
        raise refuted[answer.primary]

    async def _is_current(self, asker: SentinelAsker, link: Link) -> bool:
        """Return whether an open link leads to the primary, as the sentinels say if the check is due."""
        if _aimed(link) != self._at:
            return False
        if not self.is_due(link):
            return True
        self._next_check = time.monotonic() + _CHECK_INTERVAL  # first: other callers need not ask too
        try:
            return (await asker.ask(blocking=isinstance(link, BlockingLink))).primary == _aimed(link)
        except StoreError:
            self._next_check = time.monotonic() + _CHECK_RETRY
            return True

    def lost(self) -> None:
        """Do nothing: the primary is looked up for each link."""

    async def doubtful_sentinels(self) -> list[tuple[Host, str]]:
        """Return the sentinels that do not name the primary that was found last, with the reason."""
        return [] if self._asker is None or self._at is None else await self._asker.doubtful(self._at)

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[None]:
        """Listen to the sentinels, in this event loop."""
        hosts = () if self._asker is None else self._asker.hosts
        listening = [asyncio.ensure_future(self._listen(host)) for host in hosts]
        self._listeners += 1
        try:
            yield
        finally:
            self._listeners -= 1
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)

    async def _listen(self, host: Host) -> None:
        assert self._asker is not None
        async for at in self._asker.moves(host):
            self._move(at)

    def _move(self, at: Host) -> None:
        """Note where the primary is. If it has moved, cut the links to the old one."""
        before, self._at = self._at, at
        if before is not None and before != at:
            self._links.cut(before)

    def _confirm(self, at: Host, hello: Any, before: Host | None) -> None:
        """Note that a server is the primary, by its reply to HELLO. `before`: the primary when the search began.

        Raises:
            StoreDown: it is a replica, or the primary has moved meanwhile.
        """
        fields = dict(zip(hello[::2], hello[1::2], strict=False))
        if fields.get(b"role") == b"replica":
            raise StoreDown(f"{at[0]}:{at[1]} is a replica: the failover is not over", kind="readonly")
        if self._at not in (before, at):
            raise StoreDown("the primary has moved meanwhile", kind="readonly")
        self._next_check = time.monotonic() + _CHECK_INTERVAL
        self._move(at)


class ClusterRoute:
    """Opens links to a node of a cluster: `node`, or the one that owns the slot of `near`, or any primary."""

    def __init__(self, cluster: Topology, near: Word | None, node: Host | None) -> None:
        self._cluster = cluster
        self._near = near
        self._only = node
        self.node = node

    def is_due(self, link: Link) -> bool:
        return False

    async def connect(self, link: Link) -> None:
        """Open a link. Raises as `PrimaryRoute.connect` does."""
        self._cluster.links.add(link)
        at = self.node = self._only or await self._cluster.owner(self._near)
        _aim(link, at)
        await open_link(link)
        if self._only is None and not self._cluster.is_primary(at):  # it waited to be opened, and was not cut
            raise StoreDown(f"{at[0]}:{at[1]} has lost its slots meanwhile", kind=MOVED)

    def lost(self) -> None:
        """Note that the node does not answer, or that another one has its place."""
        self._cluster.lost(self.node)


def _aim(link: Link, at: Host) -> None:
    to: Any = link.raw if isinstance(link, BlockingLink) else link
    to.host, to.port = at


def _aimed(link: Link) -> Host:
    to: Any = link.raw if isinstance(link, BlockingLink) else link
    return to.host, to.port


async def _hello(link: Link) -> Any:
    try:
        await link.send_packed_command([pack(_HELLO)], check_health=False)
        return cast(Any, await link.read_response())
    except exceptions.ResponseError:
        return []  # renamed by an operator


@cache
def primary(url: str) -> PrimaryRoute:
    """Return the primary of a URL, the same for all connections of the process."""
    return PrimaryRoute(parse(url))


Route = PrimaryRoute | ClusterRoute


def route(url: str, near: Word | None = None, node: Host | None = None) -> Route:
    """Return how connections to the server of a URL are opened; in a cluster, to the node that has the key `near`."""
    cluster = topology(url)
    return primary(url) if cluster is None else ClusterRoute(cluster, near, node)


_ELSEWHERE: Final = frozenset(
    (exceptions.ReadOnlyError, exceptions.AskError, exceptions.MovedError, exceptions.ClusterDownError)
)
"""Errors by which a server says that it is no longer the primary, or, in a cluster, not that of the key. The primary
has to be found again. Without Sentinel and cluster, the name may resolve to another host."""


_OPEN: Final = 20.0
"""Seconds to open a connection, with the wait for its turn: on a busy machine, a worker opens hundreds over TLS."""

_LATE: Final = 0.02
"""The most seconds by which a timer of a healthy event loop is late."""


class _Deadline(AbstractAsyncContextManager[None]):
    """A time limit that does not count the time in which the event loop did not run. At most it doubles.

    A busy machine, or a handler that blocks the loop, delays the reading of a reply that came in time. With a plain
    time limit all connections would count as dead at once, and opening them again would cost more than the work.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._due, self._expire)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(*error)

    def _expire(self) -> None:
        late = min(self._loop.time() - self._due, self._left)
        if late < _LATE:
            self._limit.reschedule(self._loop.time())
            return
        self._left -= late
        self._due = self._loop.time() + late
        self._timer = self._loop.call_at(self._due, self._expire)


class Connection:
    """One connection. `exchange` is for one caller at a time.

    `short_replies`: a reply that is long is an error. `blocking`: for a program without an event loop, the limit in
    seconds to receive a reply; then `links.finish` runs the coroutines.
    """

    def __init__(
        self,
        url: str,
        *,
        near: Word | None = None,
        node: Host | None = None,
        short_replies: bool = False,
        blocking: float | None = None,
    ) -> None:
        self.ran = set[str]()
        """The SHAs of the scripts that were sent since it was opened."""
        address, parser = parse(url), {"parser_class": ShortReplies} if short_replies else {}
        options = {**address.options, "db": address.db}
        self._route = route(url, near, node)
        if blocking is None:
            self._connection: Link = new_link(address.scheme, **options, **parser)
            self._limit: Callable[[float], AbstractAsyncContextManager[None]] = _Deadline
        else:
            self._connection = BlockingLink(address.scheme, **options, socket_timeout=blocking)
            self._limit = self._connection.limit
        forks.hold(self)

    def descriptors(self) -> Iterable[int]:
        """Return the descriptor of its socket: a forked child that held it would keep the connection open."""
        return descriptors(self._connection)

    async def exchange(self, commands: Sequence[tuple[Word, ...]], reply_timeout: float) -> list[Any]:
        """Send commands, and return their replies; an error reply is returned as an exception.

        Raises:
            StoreDown: no connection, or no reply within `reply_timeout` seconds; the commands may have been done.
            StoreRefused: the password, user or database is wrong.
        """
        link, sent = self._connection, False
        try:
            if is_cut(link):
                await self.close()
            if not link.is_connected or self._route.is_due(link):
                async with self._limit(_OPEN + reply_timeout):
                    await self._route.connect(link)
            async with self._limit(reply_timeout):
                sent = True
                await link.send_packed_command([pack(words) for words in commands], check_health=False)
                replies = [await read_reply_of(link) for _ in commands]
            if not _ELSEWHERE.isdisjoint(map(type, replies)):
                await self._lost()
            return replies
        except TimeoutError:
            await self._lost()
            problem = named(f"Redis gave no answer within {reply_timeout:g} s", self._route.node)
            raise StoreDown(problem, kind="timeout", node=self._route.node, unsure=sent) from None
        except (exceptions.RedisError, OSError) as error:
            await self._lost()
            raise link_error(error, self._route.node, sent=sent) from None
        except BaseException:
            # A reply that is still on its way must not be read as the reply to the next command.
            await self.close()
            raise

    async def _lost(self) -> None:
        self._route.lost()
        await self.close()

    async def close(self) -> None:
        self.ran.clear()
        await self._connection.disconnect(nowait=True)
