"""An answer in thousands of tiny parts: it is read in many turns of the event loop, and not to its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from itertools import repeat

import pytest

from evsched import RetryLater
from evsched.client.target_request import read_request
from evsched.targets import connection
from evsched.targets.answer import Answer
from evsched.targets.exchange import PARTS_MOST, Exchange, Progress
from tests.support.outbound import Tls, new_pool, send
from tests.support.patience import PATIENCE

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = b"1\r\nx\r\n"
HINT = b"HTTP/1.1 103 Early Hints\r\n\r\n"


def frame(kind: int, body: bytes = b"", *, stream: int = 1, flags: int = 0) -> bytes:
    return len(body).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + body


SETTINGS = frame(4, stream=0)
FINE = frame(1, b"\x88", flags=4)
"""The head of an answer: 200."""
BYTE, EMPTY = frame(0, b"x"), frame(0)
END = frame(0, flags=1)
PING, PRIORITY = frame(6, bytes(8), stream=0), frame(2, bytes(4) + b"\x01")
EARLY = frame(1, b"\x08\x03103", flags=4)


class Flood:
    """A server that answers a request with a head, and then with a part again and again."""

    def __init__(self, protocol: str, head: bytes, part: bytes, count: int | None, end: bytes) -> None:
        self.url = ""
        self.ended = asyncio.Event()
        """Set when the client has closed a connection."""
        self.resets = asyncio.Semaphore(0)
        """Released when the client resets a request of HTTP/2."""
        self._is_http2 = protocol == "h2"
        self._head, self._part, self._end = head, part, end
        self._count = count

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            if self._is_http2:
                writer.write(SETTINGS)
                await reader.readexactly(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
                await self._until(reader, 1)
            else:
                await reader.readuntil(b"\r\n\r\n")
            async with asyncio.TaskGroup() as both:
                flooding = both.create_task(self._flood(writer))
                await self._listen(reader)
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

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while self._is_http2:
                await self._until(reader, 3)
                self.resets.release()
            await reader.read()

    async def _until(self, reader: asyncio.StreamReader, kind: int) -> None:
        found = -1
        while found != kind:
            length, found = int.from_bytes(await reader.readexactly(3)), (await reader.readexactly(1))[0]
            await reader.readexactly(5 + length)


@asynccontextmanager
async def flood(
    tls: Tls, protocol: str, head: bytes, part: bytes, count: int | None = None, end: bytes = b""
) -> AsyncGenerator[Flood]:
    found = Flood(protocol, head, part, count, end)
    async with await asyncio.start_server(found.talk, "127.0.0.1", 0, ssl=tls(protocol)) as server:
        found.url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield found


async def answer_of(server: Flood) -> Answer:
    async with new_pool() as pool, asyncio.timeout(PATIENCE):
        return await pool.send(read_request(server.url, "POST", {}, None), {}, Progress())


@pytest.mark.parametrize(
    ("protocol", "head", "part", "end"),
    [("http/1.1", CHUNKED, CHUNK, b"0\r\n\r\n"), ("h2", FINE, BYTE, END)],
)
async def test_the_parts_of_an_answer_are_read_in_many_turns(
    tls: Tls, monkeypatch: pytest.MonkeyPatch, protocol: str, head: bytes, part: bytes, end: bytes
) -> None:
    loop, add, turn, seen = asyncio.get_running_loop(), Exchange.add, 0, Counter[int]()

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        loop.call_soon(next_turn)

    def note(self: Exchange, part: bytes) -> bool:
        seen[turn] += 1
        return add(self, part)

    monkeypatch.setattr(Exchange, "add", note)
    next_turn()
    async with flood(tls, protocol, head, part, 2000, end) as server:
        answer = await answer_of(server)
    assert (answer.status, answer.body, answer.whole) == (200, b"x" * 2000, True)
    assert max(seen.values()) <= connection._TURN  # pyright: ignore[reportPrivateUsage]


@pytest.mark.extra
@pytest.mark.parametrize(
    ("protocol", "head", "part"),
    [("http/1.1", CHUNKED, CHUNK), ("h2", FINE, BYTE), ("h2", FINE, EMPTY)],
)
async def test_an_answer_of_too_many_parts_is_cut(tls: Tls, protocol: str, head: bytes, part: bytes) -> None:
    async with flood(tls, protocol, head, part) as server:
        answer = await answer_of(server)
        assert (answer.status, answer.whole) == (200, False)
        assert len(answer.body) <= PARTS_MOST
        if protocol == "h2":
            await asyncio.wait_for(server.resets.acquire(), PATIENCE)
        await asyncio.wait_for(server.ended.wait(), PATIENCE)


@pytest.mark.extra
@pytest.mark.parametrize(
    ("protocol", "part"),
    [("http/1.1", HINT), ("h2", EARLY), ("h2", PRIORITY), ("h2", PING), ("h2", SETTINGS)],
)
async def test_a_server_that_floods_and_does_not_answer(tls: Tls, protocol: str, part: bytes) -> None:
    """Frames that belong to no request end the connection, others the request."""
    async with flood(tls, protocol, b"", part) as server:
        with pytest.raises(RetryLater, match="sent too many small parts before it had answered"):
            await answer_of(server)
        await asyncio.wait_for(server.ended.wait(), PATIENCE)


LINE = b"x-a: " + b"a" * 900 + b"\r\n"
FIELD = b"\x00\x01a\x7f\x85\x06" + b"a" * 900  # a literal: its name, and its value of 900 bytes


def head_of(protocol: str, frames: int) -> bytes:
    """Return the head of an answer with so many times 16 KiB of headers."""
    if protocol == "http/1.1":
        return b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + LINE * 18 * frames + b"\r\n"
    blocks = [frame(9, FIELD * 18) for _ in range(frames)]
    return frame(1, b"\x88") + b"".join(blocks) + frame(9, flags=4) + END


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
async def test_of_many_headers_some_are_kept(tls: Tls, protocol: str) -> None:
    async with flood(tls, protocol, head_of(protocol, 8), b"", 0) as server:
        answer = await answer_of(server)
    assert (answer.status, answer.whole) == (200, False)
    assert 60_000 < sum(len(name) + len(value) for name, value in answer.headers) <= 65_536


@pytest.mark.parametrize("protocol", ["http/1.1", "h2"])
async def test_a_head_that_is_too_large_is_called_so(tls: Tls, protocol: str) -> None:
    async with flood(tls, protocol, head_of(protocol, 30), b"", 0) as server, new_pool() as pool:
        with pytest.raises(RetryLater, match="sent more than 256 KiB of headers in one answer"):
            await send(pool, server.url)
