"""Servers that break HTTP or flood, seen through the task `evsched.http` alone: whatever library speaks to them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver
from msgspec.structs import replace

from evsched import events
from evsched.config import Config
from evsched.targets.targets_app import make_app
from tests.support.endpoint import Endpoint
from tests.support.names import dns, names, on_loopback
from tests.support.outbound import Tls
from tests.support.site import LOOPBACK, Requests
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
    config: Config,
    raw: Any,
    port: int,
    make_names: Callable[[], AbstractResolver] | None = None,
    **settings: Any,
) -> AsyncGenerator[Requests]:
    """Run a system that may send requests to each host of the domain `test` on a port."""
    (queue,) = config.queues
    allowed = replace(config, http_hosts=(f"*.test:{port}",), http_networks=(LOOPBACK,), **settings)
    async with system(allowed, make_app(allowed, {}, make_names or names(on_loopback))) as running:
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
async def test_malformed_answer_fails_the_request(config: Config, raw: Any, answer: bytes, why: str) -> None:
    async with server(saying(answer)) as port, sending(config, raw, port) as requests:
        assert why in await requests.reason(url=f"http://odd.test:{port}/", payload=ONCE)


FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
HINT = b"HTTP/1.1 103 Early Hints\r\n\r\n"
MANY = b"HTTP/1.1 103 Early Hints\r\n" + b"a:\r\n" * 7400 + b"\r\n"


@pytest.mark.extra
@pytest.mark.parametrize("early", [MANY * 60, HINT * 20_000], ids=["many headers each", "without headers"])
async def test_informational_answers_without_end_are_not_read_to_their_end(
    config: Config, raw: Any, tls: Tls, early: bytes
) -> None:
    async with server(saying(early + FINE), tls()) as port, sending(config, raw, port) as requests:
        why = await requests.reason(url=f"https://shop.test:{port}/", payload=ONCE)
        assert f"https://shop.test:{port} sent" in why


@pytest.mark.extra
async def test_unanswered_names_do_not_delay_other_requests(config: Config, raw: Any, queue: str) -> None:
    """Their jobs have ended, and their lookups have not."""
    async with (
        Endpoint() as endpoint,
        dns("127.0.0.1") as (_, make_names),
        sending(config, raw, endpoint.port, make_names) as requests,
    ):
        for n in range(600):
            url = f"http://n{n}.dead.test:{endpoint.port}/"
            requests.schedule(f"dead-{n}", url=url, timeout=0.05, payload=ONCE)
        await requests.recorder.wait(events.JobBuried, count=600)
        await requests.result("good", url=f"http://good.test:{endpoint.port}/", timeout=5, payload=ONCE)
