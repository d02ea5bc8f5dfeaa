"""Connections that are kept for the next request: one of HTTP/2 for many at a time, one of HTTP/1.1 for one at a time.

The connections are those of httpcore, the library under httpx. Its pool is not used: it looks at all its connections
twice for each request, so hundreds at once take it longer than the requests themselves. Nor is httpx's client: it would
keep cookies from the request of one job to that of the next, and decompress a body of any size.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Final, Self, cast

import h2.events
import h2.exceptions
import httpcore

from evsched.jobs.steering import RetryLater
from evsched.targets.answer import BODY_MOST, Answer
from evsched.targets.network import Connector
from evsched.targets.request import Request
from evsched.targets.url import Target

_KEPT: Final = 4.0
"""Seconds for which an idle connection is kept. Node.js and uvicorn close theirs after 5 s, most others later."""

_STREAMS: Final = 100
"""Requests on one HTTP/2 connection. httpcore sends no more at a time, and most servers allow as many."""

_CONNECTIONS: Final = 3
"""Connections on which a request is tried, one after the other, if the server closes each before it looks at it."""

_CLOSED: Final = "closed the connection before it had answered"
_NOT_HTTP: Final = "sent an answer that is not valid HTTP"

_BROKEN: Final = (httpcore.NetworkError, httpcore.ProtocolError, h2.exceptions.H2Error)

_ENDS: Final = (h2.events.ConnectionTerminated, h2.events.StreamReset)

_Kind = httpcore.AsyncHTTP11Connection | httpcore.AsyncHTTP2Connection


class _Connection:
    """A connection, and how many requests use it."""

    def __init__(self, http: _Kind, most: int) -> None:
        self.http = http
        self.most = most
        self.running = 0
        self.left = False
        """A request was left before its answer was read. httpcore does not reset the stream of such a request, which
        then counts for ever, and so does what arrives for it. So no other request is sent on this connection."""

    @property
    def usable(self) -> bool:
        """Whether another request may be sent on it, if it is not full."""
        return not self.left and self.http.is_available() and not self.http.has_expired()


class _Server:
    """The connections to one server."""

    def __init__(self, *, tls: bool) -> None:
        self.http2: bool | None = None if tls else False
        """Whether it speaks HTTP/2; None = not known yet."""
        self.connecting = asyncio.Lock()
        """Held while a connection is opened that others may share."""
        self.requests = 0
        """How many are under way, or wait for a connection."""
        self.all = set[_Connection]()
        self._free = list[_Connection]()
        """Those with room for another request; the one that was used last is the last one."""

    @property
    def may_share(self) -> bool:
        """Whether the next connection may serve several requests at a time."""
        return self.http2 is not False

    def take(self) -> _Connection | None:
        """Return a connection for one more request; None if there is none."""
        while self._free:
            connection = self._free[-1]
            if connection.usable:
                connection.running += 1
                if connection.running == connection.most:
                    self._free.pop()
                return connection
            self._free.pop()
        return None

    def add(self, stream: httpcore.AsyncNetworkStream, origin: httpcore.Origin) -> _Connection:
        """Return a connection on a stream that was just opened, for its first request."""
        tls = stream.get_extra_info("ssl_object")
        self.http2 = tls is not None and tls.selected_alpn_protocol() == "h2"
        if self.http2:
            connection = _Connection(httpcore.AsyncHTTP2Connection(origin, stream, _KEPT), _STREAMS)
            self._free.append(connection)
        else:
            connection = _Connection(httpcore.AsyncHTTP11Connection(origin, stream, _KEPT), 1)
        connection.running = 1
        self.all.add(connection)
        return connection

    async def give_back(self, connection: _Connection) -> None:
        """End a request on a connection: keep it for the next one, or close it."""
        connection.running -= 1
        if connection.usable:
            if connection.running == connection.most - 1:  # it was full
                self._free.append(connection)
        else:
            await self.close_if_idle(connection)

    async def close_if_idle(self, connection: _Connection) -> None:
        """Close a connection if no request uses it."""
        if not connection.running:
            self.all.discard(connection)
            await connection.http.aclose()


class Pool:
    """The connections of one worker. It is an async context manager, and closes them at its end."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
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
        for server in self._servers.values():
            for connection in server.all:
                await connection.http.aclose()

    async def send(self, request: Request, headers: dict[str, str]) -> Answer:
        """Send a request with those headers; return the answer. It takes as long as the server does.

        Raises:
            GiveUp: it must not be sent to that address.
            RetryLater: the server cannot be reached, or its answer cannot be read.
        """
        target = request.target
        server = self._servers.setdefault(target.origin, _Server(tls=target.scheme == "https"))
        server.requests += 1
        try:
            for _ in range(_CONNECTIONS):
                connection = await self._take(server, target)
                try:
                    return await _exchange(connection, request, headers)
                except httpcore.ConnectionNotAvailable:
                    pass  # the server has closed it, and has not looked at the request
                finally:
                    await server.give_back(connection)
            raise RetryLater(None, f"{target.origin} {_CLOSED}")
        except _BROKEN as error:
            raise RetryLater(None, f"{target.origin} {_CLOSED if _is_closed(error) else _NOT_HTTP}") from None
        finally:
            server.requests -= 1

    async def _take(self, server: _Server, target: Target) -> _Connection:
        if (free := server.take()) is not None:
            return free
        if server.may_share:
            # The first connection tells which protocol the server speaks. If it is HTTP/2, all who wait here share it.
            async with server.connecting:
                if (free := server.take()) is not None:
                    return free
                if server.may_share:
                    return await self._connect(server, target)
        return await self._connect(server, target)

    async def _connect(self, server: _Server, target: Target) -> _Connection:
        stream = await self._connector.connect(target)
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.ensure_future(self._sweep())
        return server.add(stream, _url(target).origin)

    async def _sweep(self) -> None:
        """Close idle connections when their time is over, and forget servers without any; end when none is left."""
        while self._servers:
            await asyncio.sleep(_KEPT)
            for origin, server in list(self._servers.items()):
                for connection in [one for one in server.all if not one.usable]:
                    await server.close_if_idle(connection)
                if not server.all and not server.requests:
                    del self._servers[origin]


def _is_closed(error: Exception) -> bool:
    """Tell whether the server has ended the connection, or the stream of HTTP/2, and has not sent anything wrong."""
    event = error.args[0] if error.args else None
    return isinstance(error, httpcore.NetworkError) or "disconnected" in str(error) or isinstance(event, _ENDS)


def _url(target: Target) -> httpcore.URL:
    return httpcore.URL(
        scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
    )


async def _exchange(connection: _Connection, request: Request, headers: dict[str, str]) -> Answer:
    length = {"content-length": f"{len(request.content)}"} if request.has_body else {}
    sent = {"host": request.target.authority, **headers, **length}
    whole = False
    try:
        response = await connection.http.handle_async_request(
            httpcore.Request(request.method, _url(request.target), headers=list(sent.items()), content=request.content)
        )
        try:
            body, whole = await _read(response)
        finally:
            await response.aclose()
    finally:
        connection.left = connection.left or not whole
    received = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in response.headers]
    return Answer(response.status, received, body, whole)


async def _read(response: httpcore.Response) -> tuple[bytes, bool]:
    """Read a body; return what there is of it up to `BODY_MOST`, and whether that is all."""
    body = bytearray()
    async with contextlib.aclosing(cast("AsyncGenerator[bytes]", response.aiter_stream())) as parts:
        async for part in parts:
            body += part
            if len(body) > BODY_MOST:
                return bytes(body[:BODY_MOST]), False
    return bytes(body), True
