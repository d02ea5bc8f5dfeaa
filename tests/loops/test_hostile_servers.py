"""Servers that break HTTP or flood, seen through the task `evsched.http` alone: whatever library speaks to them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from evsched.config import Config
from evsched.targets.names import Resolve
from evsched.targets.program import make_app
from tests.support.site import LOOPBACK, Requests, on_loopback
from tests.support.system import system

ONCE = {"retry": {"attempts": 1}}

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def server(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    """Run a server that speaks as it likes; yield its port."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await talk(reader, writer)
        writer.transport.abort()

    async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls) as found:
        yield found.sockets[0].getsockname()[1]


@asynccontextmanager
async def sending(
    config: Config, raw: Any, port: int, resolve: Resolve = on_loopback, **settings: Any
) -> AsyncGenerator[Requests]:
    """Run a system that may send requests to each host of the domain `test` on a port."""
    (queue,) = config.queues
    allowed = replace(config, http_hosts=(f"*.test:{port}",), http_networks=(LOOPBACK,), **settings)
    async with system(allowed, make_app(allowed, {}, resolve)) as running:
        yield Requests(running, raw, queue)


def saying(answer: bytes) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await reader.read()

    return talk


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "sent an answer that is not valid HTTP",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Long: %s\r\n\r\n" % (b"x" * 256 * 1024),
            "sent more than 256 KiB of headers in one answer",
        ),
    ],
    ids=["a length and chunks", "one long header"],
)
async def test_an_answer_that_breaks_the_rules_is_no_answer(config: Config, raw: Any, answer: bytes, why: str) -> None:
    async with server(saying(answer)) as port, sending(config, raw, port) as requests:
        assert why in await requests.reason(url=f"http://odd.test:{port}/", payload=ONCE)
