"""Answers of HTTP/2 that are not valid: each fails its own request, and the others on the connection go on."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from h2.errors import ErrorCodes

from evsched import RetryLater
from tests.support.endpoint import Endpoint, Received, Reply
from tests.support.outbound import Tls, new_pool, send
from tests.support.patience import PATIENCE

DATA, HEADERS, WINDOW_UPDATE = 0, 1, 8
END, HEAD, LAST = 1, 4, 5
"""Flags: the end of the stream, of the headers, of both."""
FINE = b"\x88"
"""The status 200."""

Frames = tuple[tuple[int, int, bytes], ...]


def field(name: str, value: str) -> bytes:
    """Return a header that is not compressed."""
    return b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


MALFORMED: dict[str, Frames] = {
    "less than its length": ((HEADERS, HEAD, FINE + field("content-length", "5")), (DATA, END, b"abc")),
    "more than its length": ((HEADERS, HEAD, FINE + field("content-length", "2")), (DATA, 0, b"abc")),
    "a length and no body": ((HEADERS, LAST, FINE + field("content-length", "5")),),
    "a length and trailers": (
        (HEADERS, HEAD, FINE + field("content-length", "5")),
        (DATA, 0, b"abc"),
        (HEADERS, LAST, field("x-a", "b")),
    ),
    "two lengths": ((HEADERS, HEAD, FINE + field("content-length", "3") + field("content-length", "4")),),
    "a length that is no number": ((HEADERS, HEAD, FINE + field("content-length", "abc")),),
    "no status": ((HEADERS, LAST, field("x-a", "b")),),
    "a status that is no number": ((HEADERS, LAST, field(":status", "abc")),),
    "a status of two digits": ((HEADERS, LAST, field(":status", "20")),),
    "a status below 100": ((HEADERS, LAST, field(":status", "099")),),
    "two statuses": ((HEADERS, LAST, FINE + FINE),),
    "a header of requests": ((HEADERS, LAST, FINE + field(":path", "/")),),
    "a header of the connection": ((HEADERS, LAST, FINE + field("connection", "close")),),
    "a name in capitals": ((HEADERS, LAST, FINE + field("X-A", "b")),),
    "a line feed in a value": ((HEADERS, LAST, FINE + field("x-a", "b\nc")),),
    "a body before the head": ((DATA, END, b"abc"),),
    "an end before the head": ((HEADERS, LAST, b"\x08\x03103"),),
    "trailers without an end": ((HEADERS, HEAD, FINE), (HEADERS, HEAD, field("x-a", "b"))),
    "a status in trailers": ((HEADERS, HEAD, FINE), (HEADERS, LAST, FINE)),
    "a window of nothing": ((WINDOW_UPDATE, 0, bytes(4)),),
}


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED)
async def test_an_answer_that_is_not_valid_fails_its_own_request_alone(tls: Tls, frames: Frames) -> None:
    """RFC 9113, 8.1.1. It is no answer, even if its head was valid."""
    arrived, go = asyncio.Event(), asyncio.Event()

    async def answer(received: Received) -> Reply:
        if received.path == "/bad":
            return Reply(frames=frames)
        arrived.set()
        await go.wait()
        return Reply()

    async with Endpoint(answer, tls=tls("h2")) as endpoint, new_pool() as pool:
        stays = asyncio.create_task(send(pool, f"{endpoint.url}/fine"))
        await asyncio.wait_for(arrived.wait(), PATIENCE)
        with pytest.raises(RetryLater, match="sent an answer that is not valid HTTP"):
            await send(pool, f"{endpoint.url}/bad")
        go.set()
        assert await stays == 200
        assert await send(pool, f"{endpoint.url}/fine") == 200
        assert (endpoint.connections, endpoint.resets) == (1, [ErrorCodes.PROTOCOL_ERROR])
        assert Counter(received.path for received in endpoint.requests) == {"/fine": 2, "/bad": 1}


@pytest.mark.parametrize(
    ("method", "frames", "status"),
    [
        ("HEAD", ((HEADERS, LAST, FINE + field("content-length", "5")),), 200),
        ("GET", ((HEADERS, HEAD, b"\x8b" + field("content-length", "5")), (DATA, END, b"")), 304),
        ("GET", ((HEADERS, HEAD, FINE + field("content-length", "3")), (DATA, 0, b"abc"), (DATA, END, b"")), 200),
    ],
)
async def test_a_length_that_is_not_that_of_a_body(tls: Tls, method: str, frames: Frames, status: int) -> None:
    async def answer(received: Received) -> Reply:
        return Reply(frames=frames)

    async with Endpoint(answer, tls=tls("h2")) as endpoint, new_pool() as pool:
        assert await send(pool, endpoint.url, method="HEAD" if method == "HEAD" else "GET") == status


async def test_the_bytes_of_answers_that_are_not_valid_are_given_back(tls: Tls) -> None:
    """They count against the window of the connection, 16 MiB, which would be used up."""
    head = (HEADERS, HEAD, FINE + field("content-length", "1"))
    frames = (head, *((DATA, 0, bytes(16384)) for _ in range(3)))

    async def answer(received: Received) -> Reply:
        return Reply(frames=frames) if received.path == "/bad" else Reply(body=b"x" * 60_000)

    async with Endpoint(answer, tls=tls("h2")) as endpoint, new_pool() as pool:
        for _ in range(400):
            with pytest.raises(RetryLater, match="not valid HTTP"):
                await send(pool, f"{endpoint.url}/bad")
        assert await send(pool, f"{endpoint.url}/fine") == 200
        assert endpoint.connections == 1


FATAL: dict[str, Frames] = {
    "headers that cannot be decompressed": ((HEADERS, LAST, b"\xff" * 8),),
    "too large a head": ((HEADERS, HEAD, b"\x88\x40\x01a\x7f\xa1\x1e" + b"b" * 4000 + b"\xbe" * 12000),),
    "another frame between headers": ((HEADERS, 0, FINE), (DATA, 0, b"")),
}


@pytest.mark.parametrize("frames", FATAL.values(), ids=FATAL)
async def test_requests_whose_connection_another_one_has_ended_are_sent_again(tls: Tls, frames: Frames) -> None:
    """What harms the state of a connection ends it. Those that are sent again cannot be disturbed once more."""
    together, go = asyncio.Barrier(21), asyncio.Event()

    async def answer(received: Received) -> Reply:
        if received.path == "/bad":
            await together.wait()
            return Reply(frames=frames)
        if not go.is_set():
            await together.wait()
        await go.wait()
        return Reply()

    async with Endpoint(answer, tls=tls("h2")) as endpoint, new_pool() as pool:
        others = [asyncio.create_task(send(pool, f"{endpoint.url}/fine")) for _ in range(20)]
        with pytest.raises(RetryLater, match=r"not valid HTTP|256 KiB of headers"):
            await send(pool, f"{endpoint.url}/bad")
        go.set()
        assert await asyncio.gather(*others) == [200] * 20
        assert endpoint.connections == 21
        assert Counter(received.path for received in endpoint.requests) == {"/fine": 40, "/bad": 1}


@pytest.mark.extra
async def test_answers_that_go_on_after_they_were_cut_cost_the_connection(tls: Tls) -> None:
    """Each costs the worker time, even if requests are sent meanwhile."""
    parts = ((HEADERS, HEAD, FINE), *((DATA, 0, b"") for _ in range(5000)))

    async def answer(received: Received) -> Reply:
        return Reply(frames=parts)

    async with Endpoint(answer, tls=tls("h2")) as endpoint, new_pool() as pool:
        for _ in range(30):
            assert await send(pool, endpoint.url) == 200
        assert endpoint.connections > 1


async def test_a_request_that_ends_each_of_its_connections_is_sent_twice(tls: Tls) -> None:
    """Nobody knows by whose fault the server closed the connection, until each has one of its own."""
    together = asyncio.Barrier(3)

    async def answer(received: Received) -> Reply:
        if len(endpoint.requests) <= 3:
            await together.wait()
            if received.path == "/fine":
                await asyncio.Event().wait()
        return Reply(crash=received.path == "/bad")

    async with Endpoint(answer, tls=tls("h2")) as endpoint, new_pool() as pool:
        others = [asyncio.create_task(send(pool, f"{endpoint.url}/fine")) for _ in range(2)]
        with pytest.raises(RetryLater, match="closed the connection before it had answered"):
            await send(pool, f"{endpoint.url}/bad")
        assert await asyncio.gather(*others) == [200] * 2
        assert Counter(received.path for received in endpoint.requests)["/bad"] == 2
