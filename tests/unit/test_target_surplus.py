"""An HTTP/1.1 connection is not used again after unrequested data arrived on it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest

from evsched import RetryLater
from evsched.client.target_tasks import HttpMethod
from evsched.targets import session as sessions
from tests.support.endpoint import Endpoint, Received, Reply
from tests.support.outbound import Tls, ask, new_session, send
from tests.support.patience import PATIENCE

FINE = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
MISSING = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


class Talker:
    """A server that says one thing to the first request on each connection, and another one to all others."""

    def __init__(self, *said: bytes) -> None:
        self.said = said
        self.connections = 0
        self.url = ""
        self.writer: asyncio.StreamWriter | None = None
        """Of the last connection."""
        self.ended = asyncio.Event()
        """Set when a client has closed a connection."""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writer = writer
        said = self.said if self.connections == 1 else (MISSING,)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            for part in said:
                await reader.readuntil(b"\r\n\r\n")
                for segment in part.split(b"PAUSE"):
                    if segment == b"CLOSE":
                        writer.transport.abort()
                    writer.write(segment)
                    for _ in range(5):  # turns of the event loop, in which the client reads the segment
                        await asyncio.sleep(0)  # noqa: TID251
            await reader.read()
        writer.transport.abort()
        self.ended.set()


@asynccontextmanager
async def talker(*said: bytes, tls: Tls | None = None) -> AsyncGenerator[Talker]:
    found = Talker(*said)
    context = None if tls is None else tls("http/1.1")
    async with await asyncio.start_server(found.talk, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        found.url = f"http{'' if tls is None else 's'}://127.0.0.1:{port}"
        yield found


@pytest.mark.parametrize("with_tls", [False, True])
@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("POST", FINE + FINE),
        ("POST", FINE + b"H"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
        ("POST", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello"),
        ("POST", b'HTTP/1.1 204 No Content\r\n\r\n{"ok":true}'),
        ("POST", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\r\n"),
        ("POST", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + FINE),
        ("POST", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nPAUSE0\r\n\r\n" + FINE),
        ("POST", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nPAUSEok" + FINE),
    ],
)
async def test_surplus_after_an_answer_is_not_the_next_answer(
    tls: Tls, with_tls: bool, method: HttpMethod, said: bytes
) -> None:
    async with talker(said, tls=tls if with_tls else None) as server, new_session() as session:
        assert await send(session, server.url, method=method) in (200, 204)
        assert await send(session, server.url) == 404
        assert server.connections == 2


@pytest.mark.parametrize("with_tls", [False, True])
@pytest.mark.parametrize("said", [FINE, b""])
async def test_bytes_between_two_requests_are_not_an_answer(tls: Tls, with_tls: bool, said: bytes) -> None:
    """An answer, or the end of the connection, which is still unread in the socket."""
    async with talker(FINE, tls=tls if with_tls else None) as server, new_session() as session:
        assert await send(session, server.url) == 200
        assert server.writer is not None
        if said:
            server.writer.write(said)
        else:
            server.writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        assert await send(session, server.url) == 404
        assert server.connections == 2


async def test_a_connection_on_which_a_surplus_arrives_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_KEPT", 3600.0)
    async with talker(FINE) as server, new_session() as session:
        assert await send(session, server.url) == 200
        assert server.writer is not None
        server.writer.write(FINE)
        await asyncio.wait_for(server.ended.wait(), PATIENCE)
        assert await send(session, server.url) == 404


@pytest.mark.parametrize("with_tls", [False, True])
async def test_a_request_that_crosses_the_end_of_its_connection_is_sent_again(tls: Tls, with_tls: bool) -> None:
    """Many servers close a connection shortly after the last answer and never read such a request."""
    async with talker(FINE, b"CLOSE", tls=tls if with_tls else None) as server, new_session() as session:
        assert await send(session, server.url) == 200
        assert await send(session, server.url) == 404
        assert server.connections == 2


@pytest.mark.parametrize("method", ["POST", "GET", "PUT"])
@pytest.mark.parametrize("answers", [0, 1])
async def test_a_request_is_sent_again_once_at_most(answers: int, method: HttpMethod) -> None:
    """Not at all after a connection that is closed before its first answer: then the request may be to blame."""

    async def answer(received: Received) -> Reply:
        return Reply(hang_up=len(endpoint.requests) > answers)

    async with Endpoint(answer) as endpoint, new_session() as session:
        for _ in range(answers):
            assert await send(session, endpoint.url, method=method) == 200
        with pytest.raises(RetryLater, match="closed the connection before it had answered"):
            await send(session, endpoint.url, method=method)
        assert len(endpoint.requests) == (3 if answers else 1)


async def test_a_request_is_sent_again_on_a_new_connection() -> None:
    """All kept connections may be as old as the one that was closed."""
    together = asyncio.Barrier(2)

    async def answer(received: Received) -> Reply:
        if received.path == "/first":
            await together.wait()
        return Reply(hang_up=received.path == "/then" and endpoint.connections == 2)

    async with Endpoint(answer) as endpoint, new_session() as session:
        assert await asyncio.gather(*(send(session, f"{endpoint.url}/first") for _ in range(2))) == [200] * 2
        assert await send(session, f"{endpoint.url}/then") == 200
        assert (endpoint.connections, len(endpoint.requests)) == (3, 4)


async def test_a_request_is_not_sent_again_when_its_answer_has_begun() -> None:
    async with talker(FINE, b"HTTP/1.1 2PAUSECLOSE") as server, new_session() as session:
        assert await send(session, server.url) == 200
        with pytest.raises(RetryLater, match="closed the connection before it had answered"):
            await send(session, server.url)
        assert server.connections == 1


async def test_an_answer_in_many_parts_is_one_answer() -> None:
    said = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-LengthPAUSE: 4\r\n\r\nabPAUSEcd"
    async with talker(said, FINE) as server, new_session() as session:
        answer = await ask(session, server.url, "x")
        assert (answer.status, answer.body, answer.whole) == (200, b"abcd", True)
        assert await send(session, server.url) == 200
        assert server.connections == 1
