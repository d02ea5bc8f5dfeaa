"""Servers that break HTTP or flood, seen through the task `evsched.http` alone: whatever library speaks to them."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import events
from evsched.config import Config
from evsched.targets.names import Resolve
from evsched.targets.program import make_app
from tests.support.endpoint import Endpoint
from tests.support.outbound import Tls
from tests.support.patience import PATIENCE
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


def frame(kind: int, body: bytes = b"", *, stream: int = 1, flags: int = 0) -> bytes:
    return len(body).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + body


HEADERS, SETTINGS = 1, 4
WHOLE_HEAD, WHOLE_ANSWER = 4, 5
"""Flags of a frame of headers."""
MANY = 7400
"""Headers of each of 60 informational answers: HTTP/2 counts 35 bytes for each."""
FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


async def many_headers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with 444,000 headers before those that count: one byte each on HTTP/2, four on HTTP/1.1."""
    tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
    if tls.selected_alpn_protocol() != "h2":
        await reader.readuntil(b"\r\n\r\n")
        writer.write((b"HTTP/1.1 103 Early Hints\r\n" + b"a:\r\n" * MANY + b"\r\n") * 60 + FINE)
        await reader.read()
        return
    writer.write(frame(SETTINGS, stream=0))
    await reader.readexactly(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
    found = -1
    while found != HEADERS:
        length, found = int.from_bytes(await reader.readexactly(3)), (await reader.readexactly(1))[0]
        await reader.readexactly(5 + length)
    early = frame(HEADERS, b"\x08\x03103" + b"\x95" * MANY, flags=WHOLE_HEAD)
    writer.write(early * 60 + frame(HEADERS, b"\x88", flags=WHOLE_ANSWER))
    await reader.read()


@pytest.mark.extra
@pytest.mark.parametrize(
    "protocol",
    [
        "http/1.1",
        pytest.param(
            "h2",
            marks=pytest.mark.xfail(
                strict=True,
                reason="headers of HTTP/2 are counted by the bytes of their frames: 20 such answers stop a worker",
            ),
        ),
    ],
)
async def test_an_answer_of_thousands_of_tiny_headers_is_not_read_to_its_end(
    config: Config, raw: Any, tls: Tls, protocol: str
) -> None:
    async with server(many_headers, tls(protocol)) as port, sending(config, raw, port) as requests:
        why = await requests.reason(url=f"https://shop.test:{port}/", payload=ONCE)
        assert "shop.test" in why


@pytest.mark.xfail(
    strict=True,
    reason="the encoder's table has the size that the server sets",
)
async def test_a_server_does_not_decide_how_many_sent_headers_are_remembered(
    config: Config, raw: Any, tls: Tls
) -> None:
    async with (
        Endpoint(tls=tls("h2", "http/1.1"), header_table=2**32 - 1) as endpoint,
        sending(config, raw, endpoint.port) as requests,
    ):
        for n in range(2):
            await requests.result(f"job-{n}", url=f"https://shop.test:{endpoint.port}/")
        assert len(endpoint.requests) == 2
        assert max(endpoint.header_tables, default=0) <= 65536


@pytest.mark.extra
@pytest.mark.xfail(strict=True, reason="a lookup keeps its thread until the system gives up, and 512 are the most")
async def test_names_that_are_not_found_keep_no_other_waiting(config: Config, raw: Any, queue: str) -> None:
    """Their jobs have ended, and their lookups have not: the system takes half a minute."""
    go = threading.Event()

    def lookup(host: str, port: int) -> Sequence[str]:
        if host.endswith(".dead.test"):
            go.wait(PATIENCE)
            raise OSError(-3, "Temporary failure in name resolution")
        return ["127.0.0.1"]

    try:
        async with Endpoint() as endpoint, sending(config, raw, endpoint.port, lookup) as requests:
            for n in range(600):
                url = f"http://n{n}.dead.test:{endpoint.port}/"
                requests.schedule(f"dead-{n}", url=url, timeout=0.05, payload=ONCE)
            await requests.recorder.wait(events.JobBuried, count=600)
            await requests.result("good", url=f"http://good.test:{endpoint.port}/", timeout=1, payload=ONCE)
    finally:
        go.set()
