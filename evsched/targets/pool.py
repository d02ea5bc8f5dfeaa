"""Connections that are kept for the next request: one of HTTP/2 for many at a time, one of HTTP/1.1 for one at a time.

A request waits here until a connection has room for it, and not inside a connection: when all are full, another one is
opened. No pool of a library is used. That of httpcore, the library under httpx, looks at all its connections for each
request, and its connections of HTTP/2 keep requests waiting; httpx's client keeps cookies from the request of one job
to that of the next, and decompresses a body of any size.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Final, Self

from evsched.client.target_request import Request
from evsched.client.target_url import Target
from evsched.jobs.steering import RetryLater
from evsched.targets.addresses import Address
from evsched.targets.answer import Answer
from evsched.targets.connection import Connection
from evsched.targets.exchange import Disturbed, Exchange, Progress, Unsent
from evsched.targets.files import Files
from evsched.targets.http2 import STREAMS
from evsched.targets.network import Connector
from evsched.transport.backoff import reconnect_delay

_KEPT: Final = 4.0
"""Seconds for which an idle connection is kept. Node.js and uvicorn close theirs after 5 s, most others later."""

_WINDOW: Final = 2**16 - 1
"""Bytes of bodies that a connection takes at a time, unless its server allows more (RFC 9113, 6.9.2)."""

_REFUSALS: Final = 10
"""How often a server may refuse a request in one attempt. The pauses in between grow, to 3.5 s in all, or less by the
half of them that is random."""

_GOODBYE: Final = 2.0
"""Seconds for the end of all connections when the worker stops."""


class _Server:
    """The connections to one server."""

    def __init__(self, target: Target, connector: Connector, files: Files) -> None:
        self.requests = 0
        """How many are under way, or wait for a connection."""
        self.all = set[Connection]()
        """Those that are open, or being closed."""
        self._target = target
        self._connector = connector
        self._files = files
        self._free = dict[Connection, None]()
        """Those that may have room for another request; the one that was used last is the last one."""
        self._most = STREAMS if target.scheme == "https" else 1
        """How many requests the next connection will take at a time, as far as it is known."""
        self._window = _WINDOW
        """How many bytes of their bodies it will take at a time, as far as it is known."""
        self._connecting = 0
        """Connections that are being opened, each for a request."""
        self._waiting = 0
        """Requests that wait for room on a connection, or for one that is being opened."""
        self._change = asyncio.Event()
        """Set when there may be room."""

    async def take(self, progress: Progress, size: int, *, alone: bool) -> Connection:
        """Return a connection for a request, which must be sent on it at once.

        `size`: the bytes of its body. `alone`: on a new connection.
        """
        if not alone and (free := self._take_free(size)) is not None:
            return free
        progress.missing = f"the address of {self._target.host} was not found"
        addresses = await self._connector.addresses(self._target)
        progress.missing = f"{self._target.origin} did not accept a connection"
        while alone or (free := self._take_free(size)) is None:
            if any(connection.allows_none for connection in self.all):
                progress.missing = f"{self._target.origin} allowed no request on its connection"
                await self._wait()
            elif alone or self._waiting >= self._connecting * (self._fitting(size) - 1):
                connection = await self._connect(addresses)
                if not connection.allows_none:
                    return connection
            else:
                await self._wait()
        return free

    def sweep(self, now: float) -> None:
        """Close the connections that have been idle for too long."""
        for connection in list(self.all):
            if not connection.running and now - connection.idle_since > _KEPT:
                connection.close()

    def _take_free(self, size: int) -> Connection | None:
        now = asyncio.get_running_loop().time()
        passed = list[Connection]()
        """Those that have room for a request, but not for so large a body."""
        try:
            while self._free:
                connection = next(reversed(self._free))
                if not connection.running and now - connection.idle_since > _KEPT:
                    connection.close()
                elif connection.has_room(size):
                    return connection
                elif connection.has_room(0):
                    passed.append(connection)
                self._free.pop(connection, None)
            return None
        finally:
            self._free.update(dict.fromkeys(reversed(passed)))

    def _fitting(self, size: int) -> int:
        """Return how many requests with bodies of a size the next connection will take at a time."""
        return max(1, min(self._most, self._window // size)) if size else self._most

    async def _wait(self) -> None:
        self._waiting += 1
        try:
            await self._change.wait()
        finally:
            self._waiting -= 1

    async def _connect(self, addresses: Sequence[Address]) -> Connection:
        self._connecting += 1
        try:
            connection = await self._files.open(partial(self._connector.connect, self._target, addresses))
        finally:
            self._connecting -= 1
            self._wake()
        self._most = max(1, connection.most)
        self._window = connection.window
        self.all.add(connection)
        self._free[connection] = None
        connection.changed = self._look
        return connection

    def _look(self, connection: Connection) -> None:
        """Take note that a connection may have room for another request, or has gone."""
        self._files.note(connection)
        self._free.pop(connection, None)
        if not connection.gone:
            self._free[connection] = None
        elif connection.ended.is_set():
            self.all.discard(connection)
        self._wake()

    def _wake(self) -> None:
        """Let the requests that wait look again."""
        if self._waiting:
            self._change.set()
            self._change = asyncio.Event()


class Pool:
    """The connections of one worker. It is an async context manager, and closes them at its end."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self._files = Files()
        self._servers = dict[str, _Server]()
        """By their origins."""
        self._sweeping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
        left = [connection for server in self._servers.values() for connection in server.all]
        for connection in left:
            connection.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                for connection in left:
                    await connection.ended.wait()

    async def send(self, request: Request, headers: dict[str, str], progress: Progress) -> Answer:
        """Send a request with those headers; return the answer. It takes as long as the server does.

        Raises:
            GiveUp: it must not be sent to that address.
            RetryLater: the server cannot be reached, it refuses the request, or its answer cannot be read.
        """
        origin = request.target.origin
        server = self._servers.get(origin)
        if server is None:
            server = self._servers[origin] = _Server(request.target, self._connector, self._files)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.ensure_future(self._sweep())
        server.requests += 1
        try:
            refusals, alone = 0, False
            while True:
                connection = await server.take(progress, len(request.content), alone=alone)
                progress.missing = f"{origin} did not answer"
                progress.exchange = Exchange(request, headers, alone=alone)
                try:
                    return await connection.exchange(progress.exchange)
                except Disturbed as error:
                    if alone:
                        raise RetryLater(None, str(error)) from None
                    alone = True
                    progress.exchange = None
                except Unsent:
                    progress.exchange = None
                    refusals += 1
                    if refusals == _REFUSALS:
                        why = f"{origin} refused the request {_REFUSALS} times, and did not look at it"
                        raise RetryLater(None, why) from None
                    progress.missing = f"{origin} did not take the request, which it refused {refusals} times,"
                    await asyncio.sleep(reconnect_delay(refusals - 1))
        finally:
            server.requests -= 1

    async def _sweep(self) -> None:
        """Close idle connections when their time is over, and forget servers without any; end when none is left."""
        while self._servers:
            await asyncio.sleep(_KEPT)
            for origin, server in list(self._servers.items()):
                server.sweep(asyncio.get_running_loop().time())
                if not server.all and not server.requests:
                    del self._servers[origin]
