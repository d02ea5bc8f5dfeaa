"""What a process tells over HTTP: /metrics for Prometheus, /healthz and /readyz for who starts and ends processes.

It answers GET and HEAD, one request a connection, and nothing else: no framework is needed for three pages, and none
of them takes input. It binds to 127.0.0.1 unless told otherwise.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Final

from msgspec import Struct
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from evsched.errors import CannotStart

_PATIENCE: Final = 5.0
"""Seconds in which a request must have come, and its answer must be taken."""

_LONGEST: Final = 8192
"""Bytes of a request's head."""

_MOST: Final = 32
"""Connections at one time: Prometheus needs one."""


class Page(Struct, frozen=True):
    status: HTTPStatus
    body: bytes
    kind: str = "text/plain; charset=utf-8"


class Listener:
    """Serves one process.

    `refresh()` reads what is read when a scrape comes; `ready()` returns None, or why the process is not ready.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        refresh: Callable[[], Awaitable[None]],
        ready: Callable[[], Awaitable[str | None]],
    ) -> None:
        self._registry = registry
        self._refresh = refresh
        self._ready = ready
        self._server: asyncio.Server | None = None
        self._open = 0
        self._scrape = asyncio.Lock()
        self._builder = ThreadPoolExecutor(1, "evsched-metrics")
        """A thread of its own: handlers may hold all those that the loop shares."""

    async def open(self, host: str, port: int) -> str:
        """Listen on a port, 0 = any that is free; return the URL.

        Raises:
            CannotStart: the port is taken, or there is no such host.
        """
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=_LONGEST)
        except OSError as error:
            raise CannotStart(f"metrics on {host}:{port}: {error.strerror or error}: choose another port") from None
        return _url(self._server)

    async def adopt(self, listening: socket.socket) -> str:
        """Listen on a socket that listens already; return the URL."""
        self._server = await asyncio.start_server(self._serve, sock=listening, limit=_LONGEST)
        return _url(self._server)

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        self._builder.shutdown(wait=False)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(_PATIENCE):
                if self._open > _MOST:
                    page, method = Page(HTTPStatus.SERVICE_UNAVAILABLE, b"too many connections\n"), "GET"
                else:
                    page, method = await self._read(reader)
                writer.write(_head(page) + (b"" if method == "HEAD" else page.body))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError):
            pass  # who asks and goes away has lost only the answer
        finally:
            self._open -= 1
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> tuple[Page, str]:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.LimitOverrunError:
            return Page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, b"the request is too long\n"), "GET"
        line, *fields = head.split("\r\n")
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return Page(HTTPStatus.BAD_REQUEST, b"not HTTP/1\n"), "GET"
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return Page(HTTPStatus.METHOD_NOT_ALLOWED, b"GET or HEAD\n"), method
        headers = {name.strip().lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        return await self._page(path, headers.get("accept", "")), method

    async def _page(self, path: str, accept: str) -> Page:
        if path == "/metrics":
            encode, kind = choose_encoder(accept)
            async with self._scrape:  # gauges are set anew by one scrape at a time
                await self._refresh()
                # It may take some ms: jobs go on meanwhile.
                body = await asyncio.get_running_loop().run_in_executor(self._builder, encode, self._registry)
            return Page(HTTPStatus.OK, body, kind)
        if path == "/healthz":
            return Page(HTTPStatus.OK, b"ok\n")  # that it is said at all says it: the loop turns
        if path == "/readyz":
            wrong = await self._ready()
            if wrong is None:
                return Page(HTTPStatus.OK, b"ok\n")
            return Page(HTTPStatus.SERVICE_UNAVAILABLE, f"{wrong}\n".encode())
        return Page(HTTPStatus.NOT_FOUND, b"there are /metrics, /healthz and /readyz\n")


def _url(server: asyncio.Server) -> str:
    host, port, *_ = server.sockets[0].getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _head(page: Page) -> bytes:
    return (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.kind}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode("latin-1")
