"""Malformed answers: an invalid head fails the request, and an invalid body is cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from evsched import RetryLater
from evsched.targets.intake import Answer
from tests.support.outbound import ask, new_session
from tests.support.patience import PATIENCE

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@asynccontextmanager
async def saying(parts: Sequence[bytes]) -> AsyncGenerator[tuple[str, asyncio.Event]]:
    """Run a server that answers with those packets; yield its URL, and an event that is set when the client closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)  # noqa: TID251 - the client reads each in a turn of its own
            await reader.read()
        writer.transport.abort()
        closed.set()

    closed = asyncio.Event()
    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", closed


async def answer_to(parts: Sequence[bytes]) -> Answer:
    """Return the answer, after the client has closed the connection."""
    async with saying(parts) as (url, closed), new_session() as session:
        try:
            return await ask(session, url, method="GET")
        finally:
            await asyncio.wait_for(closed.wait(), PATIENCE)


@pytest.mark.parametrize(
    "head",
    [
        b"<html>hello</html>\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 099 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\nabc",
        b"HTTP/1.1 100 Continue\r\nContent-Length: 3\r\n\r\nabc" + OK + b"Content-Length: 0\r\n\r\n",
        OK + b"no colon\r\nContent-Length: 0\r\n\r\n",
        OK + b"a: b\0c\r\nContent-Length: 0\r\n\r\n",
        OK + b"a : b\r\nContent-Length: 0\r\n\r\n",
        OK + b"Content-Length: abc\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Content-Length: 99999999999999999999999\r\n\r\n",
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
        OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_malformed_head_fails_the_request(head: bytes) -> None:
    with pytest.raises(RetryLater, match="sent an answer that is not valid HTTP"):
        await answer_to([head])


@pytest.mark.parametrize("turns", ["one packet", "two packets"])
@pytest.mark.parametrize(
    ("body", "kept"),
    [
        (b"1\r\nx\r\n|ZZ\r\n", b"x"),
        (b"|ZZ\r\n", b""),
        (b"1\r\nx|yz\r\n", b"x"),
        (b"1\r\nx\r\n|-1\r\nx\r\n", b"x"),
        (b"1\r\nx\r\n|fffffffffffffffff\r\nx\r\n", b"x"),
    ],
)
async def test_a_body_that_is_not_valid_is_cut(turns: str, body: bytes, kept: bytes) -> None:
    """At once: nothing more can be read, so there is nothing to wait for."""
    first, second = body.split(b"|")
    parts = [CHUNKED + first + second] if turns == "one packet" else [CHUNKED + first, second]
    answer = await answer_to(parts)
    assert (answer.status, answer.body, answer.whole) == (200, kept, False)


async def test_a_body_that_is_compressed_is_left_as_it_is() -> None:
    async with (
        saying([OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi"]) as (url, _),
        new_session() as session,
    ):
        answer = await ask(session, url, method="GET")
    assert (answer.body, answer.whole, answer.header("content-encoding")) == (b"hi", True, "gzip")


async def test_cookies_of_one_answer_are_not_sent_with_the_next_request() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(OK + b"Set-Cookie: a=b; Path=/\r\nContent-Length: 0\r\n\r\n")
        await reader.read()
        writer.close()

    heads = list[bytes]()
    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server, new_session() as session:
        for _ in range(2):
            await ask(session, f"http://shop.test:{server.sockets[0].getsockname()[1]}/", method="GET")
    assert len(heads) == 2
    assert b"cookie" not in heads[1].lower()
