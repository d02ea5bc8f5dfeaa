"""An answer in thousands of tiny parts: it is read in many turns of the event loop, and not to its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import repeat

import pytest
from aiohttp.client_proto import ResponseHandler

from evsched import RetryLater
from evsched.targets import intake
from evsched.targets.intake import BODY_MOST, Answer
from tests.support.outbound import Tls, ask, new_session, send
from tests.support.patience import PATIENCE

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"1\r\nx\r\n"
HINT = b"HTTP/1.1 103 Early Hints\r\n\r\n"


class Flood:
    """A server that answers a request with a head, and then with a part again and again."""

    def __init__(self, head: bytes, part: bytes, count: int | None, end: bytes) -> None:
        self.url = ""
        self.ended = asyncio.Event()
        """Set when the client has closed a connection."""
        self._head, self._part, self._end = head, part, end
        self._count = count

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            async with asyncio.TaskGroup() as both:
                flooding = both.create_task(self._flood(writer))
                with suppress(ConnectionError):
                    await reader.read()
                flooding.cancel()
        writer.transport.abort()
        self.ended.set()

    async def _flood(self, writer: asyncio.StreamWriter) -> None:
        writer.write(self._head)
        if self._count is not None:
            writer.write(self._part * self._count + self._end)
            return
        with suppress(ConnectionError):
            for several in repeat(self._part * 500):
                writer.write(several)
                await writer.drain()
                # Over TLS, drain() of a lost connection returns at once, each time.
                await asyncio.sleep(0)  # noqa: TID251 - it lets the others run


@asynccontextmanager
async def flood(
    tls: Tls, head: bytes, part: bytes, count: int | None = None, end: bytes = b""
) -> AsyncGenerator[Flood]:
    found = Flood(head, part, count, end)
    async with await asyncio.start_server(found.talk, "127.0.0.1", 0, ssl=tls()) as server:
        found.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield found


async def answer_of(server: Flood) -> Answer:
    async with new_session() as session:
        return await ask(session, server.url)


async def test_the_parts_of_an_answer_are_read_in_many_turns(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, receive, turn, seen = asyncio.get_running_loop(), ResponseHandler.data_received, 0, Counter[int]()

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    def note(self: ResponseHandler, data: bytes) -> None:
        seen[turn] += len(data)
        receive(self, data)

    monkeypatch.setattr(ResponseHandler, "data_received", note)
    next_turn()
    async with flood(tls, CHUNKED, CHUNK, 20_000, b"0\r\n\r\n") as server:
        answer = await answer_of(server)
    assert (answer.status, answer.body, answer.whole) == (200, b"x" * 20_000, True)
    assert max(seen.values()) <= intake._PIECE  # pyright: ignore[reportPrivateUsage]


@pytest.mark.extra
@pytest.mark.parametrize("part", [CHUNK, b"1;" + b"e" * 5000 + b"\r\nx\r\n"], ids=["chunks", "extensions of chunks"])
async def test_an_answer_of_too_many_parts_is_cut(tls: Tls, part: bytes) -> None:
    async with flood(tls, CHUNKED, part) as server:
        answer = await answer_of(server)
        assert (answer.status, answer.whole) == (200, False)
        assert len(answer.body) <= BODY_MOST
        await asyncio.wait_for(server.ended.wait(), PATIENCE)


async def test_an_answer_of_too_many_packets_is_cut(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_PIECES_MOST", 100)
    monkeypatch.setattr(intake, "_PIECE", 1)
    monkeypatch.setattr(intake, "_BODY_PIECE", 1)
    async with flood(tls, b"HTTP/1.1 200 OK\r\nContent-Length: 70\r\n\r\n", b"x", 70) as server:
        answer = await answer_of(server)
    assert (answer.status, answer.whole) == (200, False)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\n\r\n", CHUNKED])
async def test_a_body_without_end_is_cut(tls: Tls, head: bytes) -> None:
    async with flood(tls, head, b"4000\r\n%s\r\n" % (b"x" * 16384)) as server:
        answer = await answer_of(server)
        assert (answer.status, len(answer.body), answer.whole) == (200, BODY_MOST, False)
        await asyncio.wait_for(server.ended.wait(), PATIENCE)


@pytest.mark.extra
async def test_a_server_that_floods_and_does_not_answer(tls: Tls) -> None:
    async with flood(tls, b"", HINT) as server:
        with pytest.raises(RetryLater, match="sent more than 256 KiB of headers in one answer"):
            await answer_of(server)
        await asyncio.wait_for(server.ended.wait(), PATIENCE)


LINE = b"x-a: " + b"a" * 900 + b"\r\n"


def head_of(blocks: int) -> bytes:
    """Return the head of an answer with `blocks` times 16 KiB of headers."""
    return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + LINE * 18 * blocks + b"\r\n"


async def test_the_first_64_kib_of_headers_are_kept(tls: Tls) -> None:
    async with flood(tls, head_of(8), b"", 0) as server:
        answer = await answer_of(server)
    assert (answer.status, answer.whole) == (200, False)
    assert 60_000 < sum(len(name) + len(value) for name, value in answer.headers) <= 65_536


async def test_too_large_head_fails_the_request(tls: Tls) -> None:
    async with flood(tls, head_of(30), b"", 0) as server, new_session() as session:
        with pytest.raises(RetryLater, match="sent more than 256 KiB of headers in one answer"):
            await send(session, server.url)


async def test_head_with_too_many_lines_fails_the_request(tls: Tls) -> None:
    async with flood(tls, b"HTTP/1.1 200 OK\r\n", b"a:\r\n", 5000, b"\r\n") as server, new_session() as session:
        with pytest.raises(RetryLater, match="sent an answer that is not valid HTTP"):
            await send(session, server.url)
