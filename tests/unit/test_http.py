"""The HTTP server by itself: it answers valid requests beside misbehaving clients."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry, Gauge

from evsched.errors import CannotStart
from evsched.telemetry.http_server import HttpServer, reserve
from tests.support.patience import PATIENCE
from tests.support.web import ask, get

pytestmark = pytest.mark.anyio


class Sick:
    """The state that the HTTP server reports, with a Redis that does not answer until `well` is set."""

    def __init__(self) -> None:
        self.well = asyncio.Event()
        self.asked = asyncio.Event()
        self.refreshed = 0

    async def refresh(self) -> None:
        self.refreshed += 1
        self.asked.set()
        await self.well.wait()

    async def ready(self) -> str | None:
        return None


@asynccontextmanager
async def listening(sick: Sick, size: int = 1) -> AsyncGenerator[str]:
    registry = CollectorRegistry()
    Gauge("some_gauge", "x" * size, registry=registry)
    http_server = HttpServer(registry, sick.refresh, sick.ready, lambda: None)
    try:
        with reserve("127.0.0.1", 0) as reserved:
            url = await http_server.open(*reserved.getsockname()[:2], reserved=True)
        for number in http_server.descriptors():
            with socket.socket(fileno=os.dup(number)) as own:
                own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # the kernel buffers little for a slow client
        yield url
    finally:
        await http_server.close()


@asynccontextmanager
async def connected(url: str, count: int, request: bytes) -> AsyncGenerator[list[asyncio.StreamReader]]:
    """Open many connections, and send on each a request that may be incomplete. Answers are read slowly."""
    parts = urlsplit(url)
    links = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]()
    try:
        for _ in range(count):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1024)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            links.append((reader, writer))
            writer.write(request)
        yield [reader for reader, _ in links]
    finally:
        for _, writer in links:
            writer.transport.abort()


@pytest.mark.parametrize("request_", [b"", b"GET /metrics HTTP/1.1\r\nx: "])
async def test_probes_and_scrapes_are_answered_beside_200_unfinished_requests(request_: bytes) -> None:
    sick = Sick()
    sick.well.set()
    async with listening(sick) as url, connected(url, 200, request_) as readers:
        assert await get(f"{url}/healthz") == (200, "ok\n")
        assert await get(f"{url}/readyz") == (200, "ok\n")
        assert (await get(f"{url}/metrics"))[0] == 200
        with pytest.raises(ConnectionResetError):  # the first of them is cut off
            await asyncio.wait_for(readers[0].read(), PATIENCE)


async def test_probes_are_answered_beside_many_scrapes_that_wait_for_redis() -> None:
    sick = Sick()
    async with listening(sick) as url, connected(url, 200, b"GET /metrics HTTP/1.1\r\n\r\n") as readers:
        await sick.asked.wait()
        assert await get(f"{url}/healthz") == (200, "ok\n")
        assert await get(f"{url}/readyz") == (200, "ok\n")
        sick.well.set()
        answers = [await asyncio.wait_for(reader.readline(), PATIENCE) for reader in readers]
        assert {answer.split(b" ")[1] for answer in answers} == {b"200", b"503"}
        assert sick.refreshed <= 32
        assert (await get(f"{url}/metrics"))[0] == 200


async def test_probes_are_answered_beside_clients_that_do_not_read() -> None:
    sick = Sick()
    sick.well.set()
    async with listening(sick, size=200_000) as url, AsyncExitStack() as stack:
        slow = list[asyncio.StreamReader]()
        for _ in range(10):
            slow += await stack.enter_async_context(connected(url, 8, b"GET /metrics HTTP/1.1\r\n\r\n"))
            assert all([await asyncio.wait_for(reader.read(1), PATIENCE) for reader in slow[-8:]])
            assert await get(f"{url}/healthz") == (200, "ok\n")
        with pytest.raises(ConnectionResetError):  # the first of them is cut off
            await asyncio.wait_for(slow[0].read(), PATIENCE)


@pytest.mark.parametrize(
    "version", ["x", "1.x", "", "1.0.0.x", "2.0.0", "0.0.4", "99999999999999999999", "1.0.0;escaping=y"]
)
async def test_request_for_an_unknown_format_gets_a_plain_page(version: str) -> None:
    sick = Sick()
    sick.well.set()
    async with listening(sick) as url:
        for kind in ("application/openmetrics-text", "text/plain"):
            head = f"GET /metrics HTTP/1.1\r\nAccept: {kind}; version={version}\r\n\r\n"
            page = await ask(url, head.encode())
            assert page.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"some_gauge" in page


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_reserved_port_refuses_clients_unless_a_process_listens(host: str) -> None:
    sick = Sick()
    sick.well.set()
    with reserve(host, 0) as reserved:
        port = reserved.getsockname()[1]
        with pytest.raises(CannotStart, match=f"{port}: .*choose another port"):
            reserve(host, port)  # another parent
        for _ in range(2):  # the process is started again
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(host, port)
            http_server = HttpServer(CollectorRegistry(), sick.refresh, sick.ready, lambda: None)
            url = await http_server.open(*reserved.getsockname()[:2], reserved=True)
            assert urlsplit(url).port == port
            assert (await get(f"{url}/healthz"))[0] == 200
            await http_server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, port)
    reserve(host, port).close()
