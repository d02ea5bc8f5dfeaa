"""The HTTP server of a process: /metrics for Prometheus, /healthz and /readyz for the process's supervisor.

It answers GET and HEAD, one request a connection, and nothing else: no framework is needed for three pages, and none
of them takes input. By default it binds to 127.0.0.1.

A slow client does not keep others from an answer. A client that is slow to send its request or to receive its response
is disconnected after a time limit, or as soon as too many others are waiting too. The number of scrapes at one time is
limited; /healthz and /readyz, on which the supervision of the process depends, have no such limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, Final

from msgspec import Struct
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from evsched import forks
from evsched.errors import CannotStart

_PATIENCE: Final = 5.0
"""Seconds that a client has to send its request, and again to receive the response."""

_LONGEST: Final = 8192
"""The most bytes of a request's head."""

_WAITED_FOR: Final = 64
"""The most clients that may be waited for at one time, to send a request or to receive a response."""

_SCRAPES: Final = 32
"""The most scrapes at one time, which are answered one after the other. Prometheus makes one."""


def cannot_listen(host: str, port: int, error: Exception) -> CannotStart:
    """Return the error for an address on which the metrics cannot be served."""
    wrong_host = isinstance(error, socket.gaierror) or getattr(error, "errno", None) == errno.EADDRNOTAVAIL
    what = "give a name or an address of this machine with --metrics-host" if wrong_host else "choose another port"
    return CannotStart(f"metrics on {host}:{port}: {getattr(error, 'strerror', None) or error}: {what}")


def url_of(address: tuple[Any, ...]) -> str:
    """Return the URL of a listening socket, whose name is `address`."""
    host, port, *_ = address
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def reserve(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a port, 0 = any that is free, and does not listen.

    Processes of the same user that inherit it may listen on that port, see `HttpServer.open`; others may not.

    Raises:
        CannotStart: the port is taken, or there is no such host.
    """
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # although connections of an earlier process linger
    if reserved.family == socket.AF_INET6:
        reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        reserved.bind((host, port))
    except (OSError, OverflowError) as error:
        reserved.close()
        raise cannot_listen(host, port, error) from None
    # After `bind`, so that it fails where another parent has reserved the port.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return reserved


class HttpPage(Struct, frozen=True):
    status: HTTPStatus
    body: bytes
    kind: str = "text/plain; charset=utf-8"


_TOO_LONG: Final = HttpPage(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"the request is too long\n")


class HttpServer:
    """Serves one process.

    `refresh()` updates the metrics that are read at a scrape. `ready()` returns why the process is not ready, and
    `alive()` which of its loops hangs; None if all is well.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        refresh: Callable[[], Awaitable[None]],
        ready: Callable[[], Awaitable[str | None]],
        alive: Callable[[], str | None],
    ) -> None:
        self._registry = registry
        self._refresh = refresh
        self._ready = ready
        self._alive = alive
        self._server: asyncio.Server | None = None
        self._waiting = dict[asyncio.StreamWriter, None]()
        """The clients that must send their request or receive their response, the one waited for longest first."""
        self._scraping = 0
        self._scrape = asyncio.Lock()
        self._builder = ThreadPoolExecutor(1, "evsched-metrics")
        """A thread of its own: handlers may occupy all threads of the loop's pool."""
        forks.hold(self)

    async def open(self, host: str, port: int, *, reserved: bool = False) -> str:
        """Listen on a port, 0 = any that is free; return the URL. `reserved`: the parent has reserved it.

        Such a port has a socket of its own here, which is closed when this process ends, although the parent keeps the
        port.

        Raises:
            CannotStart: the port is taken, or there is no such host.
        """
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_LONGEST, reuse_port=reserved)
        except OSError as error:
            raise cannot_listen(host, port, error) from None
        return url_of(self._server.sockets[0].getsockname())

    def descriptors(self) -> Iterable[int]:
        """Return the descriptors of its sockets: a forked child that held them would keep the port in use."""
        return [] if self._server is None else [one.fileno() for one in self._server.sockets]

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._waiting):
                _cut(writer)
            await self._server.wait_closed()
        self._builder.shutdown(wait=False)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # so that `drain` ends when the client has received everything
        try:
            async with self._wait_for(writer):
                try:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                except asyncio.LimitOverrunError:
                    head = ""
            page = await self._page(head) if head else _TOO_LONG
            async with self._wait_for(writer):
                writer.write(_head(page) + (b"" if head.startswith("HEAD ") else page.body))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            _cut(writer)  # a client that leaves or is too slow loses only its response
        finally:
            writer.close()

    @contextlib.asynccontextmanager
    async def _wait_for(self, writer: asyncio.StreamWriter) -> AsyncGenerator[None]:
        """Wait for a client inside this context. If too many are waited for, disconnect the one that takes longest."""
        if len(self._waiting) >= _WAITED_FOR:
            slowest = next(iter(self._waiting))
            del self._waiting[slowest]
            _cut(slowest)
        self._waiting[writer] = None
        try:
            async with asyncio.timeout(_PATIENCE):
                yield
        finally:
            self._waiting.pop(writer, None)

    async def _page(self, head: str) -> HttpPage:
        line, *fields = head.split("\r\n")
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return HttpPage(HTTPStatus.BAD_REQUEST, b"not HTTP/1\n")
        if words[0] not in ("GET", "HEAD"):
            return HttpPage(HTTPStatus.METHOD_NOT_ALLOWED, b"GET or HEAD\n")
        match words[1].partition("?")[0]:
            case "/metrics":
                headers = {name.strip().lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
                return await self._metrics(headers.get("accept", ""))
            case "/healthz":
                return _health(self._alive())
            case "/readyz":
                return _health(await self._ready())
            case _:
                return HttpPage(HTTPStatus.NOT_FOUND, b"there are /metrics, /healthz and /readyz\n")

    async def _metrics(self, accept: str) -> HttpPage:
        if self._scraping >= _SCRAPES:
            return HttpPage(HTTPStatus.SERVICE_UNAVAILABLE, b"too many scrapes at one time\n")
        try:
            encode, kind = choose_encoder(accept)
        except (TypeError, ValueError):  # the version is not a number: use the oldest format, which all can read
            encode, kind = choose_encoder("")
        self._scraping += 1
        try:
            async with self._scrape:  # only one scrape at a time may set the gauges
                await self._refresh()
                # It may take some milliseconds; the event loop continues meanwhile.
                body = await asyncio.get_running_loop().run_in_executor(self._builder, encode, self._registry)
        finally:
            self._scraping -= 1
        return HttpPage(HTTPStatus.OK, body, kind)


def _cut(writer: asyncio.StreamWriter) -> None:
    # Send a reset. Otherwise the system would keep what the client has not read.
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _health(problem: str | None) -> HttpPage:
    if problem is None:
        return HttpPage(HTTPStatus.OK, b"ok\n")
    return HttpPage(HTTPStatus.SERVICE_UNAVAILABLE, f"{problem}\n".encode())


def _head(page: HttpPage) -> bytes:
    return (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.kind}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode("latin-1")
