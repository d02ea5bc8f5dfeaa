"""A connection of HTTP/2: how many requests it has at a time, and what one of them does to the others."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from evsched import RetryLater
from evsched.client.target_request import read_request
from evsched.targets import pool as pools
from evsched.targets.exchange import Progress
from tests.support.endpoint import Endpoint, Received, Reply, always
from tests.support.outbound import Tls, new_pool, send
from tests.support.patience import PATIENCE
from tests.support.topology import pause


async def test_requests_at_the_same_time_share_a_connection_of_http2(tls: Tls) -> None:
    together = asyncio.Barrier(100)

    async def answer(received: Received) -> Reply:
        await together.wait()
        return Reply(body=received.body)

    async with Endpoint(answer, tls=tls("h2", "http/1.1")) as endpoint, new_pool() as pool:
        assert await asyncio.gather(*(send(pool, endpoint.url, "a" * 600) for _ in range(100))) == [200] * 100
        assert endpoint.connections == 1
    assert {received.version for received in endpoint.requests} == {"HTTP/2"}
    assert {len(received.body) for received in endpoint.requests} == {600}


@pytest.mark.extra
@pytest.mark.parametrize(("streams", "connections"), [(None, 2), (100, 2), (1000, 2), (10, 15), (3, 50), (1, 150)])
async def test_a_request_that_no_connection_has_room_for_gets_another_one(
    tls: Tls, streams: int | None, connections: int
) -> None:
    """All 150 must be with the server at one time. It may announce its limit, or none (RFC 9113, 6.5.2)."""
    together = asyncio.Barrier(150)

    async def answer(received: Received) -> Reply:
        await together.wait()
        return Reply()

    async with Endpoint(answer, tls=tls("h2"), streams=streams) as endpoint, new_pool() as pool:
        for _ in range(2):
            assert await asyncio.gather(*(send(pool, endpoint.url) for _ in range(150))) == [200] * 150
        assert endpoint.connections == connections


async def test_a_request_that_is_left_does_not_disturb_the_others(tls: Tls) -> None:
    arrived, go = asyncio.Semaphore(0), asyncio.Event()

    async def answer(received: Received) -> Reply:
        arrived.release()
        await go.wait()
        return Reply()

    async with Endpoint(answer, tls=tls("h2"), streams=2) as endpoint, new_pool() as pool:
        stays, leaves = (asyncio.create_task(send(pool, f"{endpoint.url}/{name}")) for name in ("stays", "leaves"))
        for _ in range(2):
            await asyncio.wait_for(arrived.acquire(), PATIENCE)
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        await asyncio.wait_for(endpoint.pings.acquire(), PATIENCE)
        others = [asyncio.create_task(send(pool, f"{endpoint.url}/{n}")) for n in range(3)]
        for _ in others:
            await asyncio.wait_for(arrived.acquire(), PATIENCE)
        go.set()
        assert await asyncio.gather(stays, *others) == [200] * 4


async def test_a_connection_is_not_used_while_its_server_is_silent(tls: Tls) -> None:
    """A firewall may have forgotten the connection: all requests on it would wait for nothing."""
    talks, arrived = asyncio.Event(), asyncio.Semaphore(0)

    async def answer(received: Received) -> Reply:
        arrived.release()
        if received.path != "/fine":
            await talks.wait()
        return Reply()

    async with Endpoint(answer, tls=tls("h2")) as endpoint, new_pool() as pool:
        first, second = (asyncio.create_task(send(pool, endpoint.url)) for _ in range(2))
        for _ in range(2):
            await asyncio.wait_for(arrived.acquire(), PATIENCE)
        endpoint.silent = True
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert await send(pool, f"{endpoint.url}/fine") == 200
        assert endpoint.connections == 2
        talks.set()
        assert await second == 200


async def test_a_body_that_was_cut_leaves_the_connection_to_others(tls: Tls) -> None:
    async with Endpoint(always(Reply(body=b"x" * 200_000)), tls=tls("h2")) as endpoint, new_pool() as pool:
        for _ in range(200):  # more than fits into the window of the connection, if the rest were still counted
            answer = await pool.send(read_request(endpoint.url, "GET", {}, None), {}, Progress())
            assert (len(answer.body), answer.whole) == (65536, False)
        assert endpoint.connections == 1


async def test_requests_that_a_leaving_server_has_not_looked_at_are_sent_again(tls: Tls) -> None:
    """GOAWAY names the last request that the server answers (RFC 9113, 6.8)."""
    arrived = asyncio.Event()

    async def answer(received: Received) -> Reply:
        n = len(endpoint.requests)
        if n == 30:
            arrived.set()
        await (asyncio.Event() if 10 < n <= 30 else arrived).wait()
        return Reply(leave=n == 10)

    async with Endpoint(answer, tls=tls("h2")) as endpoint, new_pool() as pool:
        assert await asyncio.gather(*(send(pool, endpoint.url) for _ in range(30))) == [200] * 30
        assert endpoint.connections == 2
        assert len(endpoint.requests) == 50  # those above the tenth twice


async def test_a_request_that_the_server_refuses_is_sent_again(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = list[int]()

    def no_delay(refused: int) -> float:
        refusals.append(refused)
        return 0.0

    monkeypatch.setattr(pools, "reconnect_delay", no_delay)

    async def answer(received: Received) -> Reply:
        return Reply(refuse=received.path == "/never" or len(endpoint.requests) < 3)

    async with Endpoint(answer, tls=tls("h2")) as endpoint, new_pool() as pool:
        assert await send(pool, endpoint.url) == 200
        assert len(endpoint.requests) == 3
        refusals.clear()
        with pytest.raises(RetryLater, match="refused the request 10 times, and did not look at it"):
            await send(pool, f"{endpoint.url}/never")
        assert refusals == list(range(9))  # the pauses grow


async def test_a_request_waits_for_a_server_that_allows_none_at_the_moment(tls: Tls) -> None:
    async with Endpoint(tls=tls("h2"), streams=0) as endpoint, new_pool() as pool:
        sending = [asyncio.create_task(send(pool, endpoint.url)) for _ in range(5)]
        await asyncio.wait_for(endpoint.settled.acquire(), PATIENCE)
        assert endpoint.requests == []
        endpoint.allow(5)
        assert await asyncio.gather(*sending) == [200] * 5
        assert endpoint.connections == 1


async def test_a_server_that_allows_no_request_has_refused_none(tls: Tls) -> None:
    async with Endpoint(tls=tls("h2"), streams=0) as endpoint, new_pool() as pool:
        progress = Progress()
        sending = asyncio.create_task(pool.send(read_request(endpoint.url, "POST", {}, None), {}, progress))
        async with asyncio.timeout(PATIENCE):
            while progress.missing != f"{endpoint.url} allowed no request on its connection":
                await asyncio.to_thread(pause)
        assert progress.exchange is None
        assert not endpoint.requests
        sending.cancel()


async def test_a_connection_that_takes_no_more_of_a_body_is_not_used_again(tls: Tls) -> None:
    """The window is that of the connection, so the next body could not be sent either."""
    begun, go = asyncio.Event(), asyncio.Event()

    async def answer(received: Received) -> Reply:
        begun.set()
        await go.wait()
        return Reply()

    async with Endpoint(answer, tls=tls("h2")) as endpoint, new_pool() as pool:
        endpoint.unread = "/"
        stays = asyncio.create_task(send(pool, endpoint.url))
        await asyncio.wait_for(begun.wait(), PATIENCE)
        stalls = asyncio.create_task(send(pool, endpoint.url, "a" * 100_000))
        for _ in (stays, stalls):
            await asyncio.wait_for(endpoint.begun.acquire(), PATIENCE)
        stalls.cancel()
        await asyncio.wait_for(endpoint.pings.acquire(), PATIENCE)
        go.set()
        assert await stays == 200  # after the answer to the ping, so that the server is not taken for silent
        assert await send(pool, endpoint.url) == 200
        assert endpoint.connections == 2


async def test_a_server_that_answers_before_it_has_read_the_body(tls: Tls) -> None:
    """The rest of the body is not sent, and the connection serves the next request."""
    async with Endpoint(always(Reply(413)), tls=tls("h2"), streams=1) as endpoint, new_pool() as pool:
        endpoint.early = True
        assert await send(pool, endpoint.url, "a" * 1_000_000) == 413
        assert await send(pool, endpoint.url) == 413
        assert endpoint.connections == 1


async def test_a_body_that_cannot_be_sent_at_once_gets_a_connection_of_its_own(tls: Tls) -> None:
    """It may fill the window of the connection, and then nothing could be sent beside it."""
    async with Endpoint(tls=tls("h2")) as endpoint, new_pool() as pool:
        for _ in range(2):
            assert await asyncio.gather(*(send(pool, endpoint.url, "a" * 90_000) for _ in range(10))) == [200] * 10
        assert endpoint.connections == 10
    assert {len(received.body) for received in endpoint.requests} == {90_000}


@pytest.mark.parametrize(("count", "size"), [(5, 200_000), (70, 1000)])
async def test_bodies_that_are_not_read_do_not_delay_others(tls: Tls, count: int, size: int) -> None:
    async with Endpoint(tls=tls("h2")) as endpoint, new_pool() as pool:
        endpoint.unread = "/unread"
        endpoint.answer = only_fine
        stuck = [asyncio.create_task(send(pool, f"{endpoint.url}/unread", "a" * size)) for _ in range(count)]
        for _ in stuck:
            await asyncio.wait_for(endpoint.begun.acquire(), PATIENCE)
        for _ in range(3):
            sending = (send(pool, f"{endpoint.url}/fine", "a" * 6000) for _ in range(30))
            assert await asyncio.gather(*sending) == [200] * 30
        assert endpoint.connections <= 10 + len(stuck) * (size > 65_535)
        for one in stuck:
            one.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def only_fine(received: Received) -> Reply:
    if received.path != "/fine":
        await asyncio.Event().wait()
    return Reply()


@pytest.mark.parametrize("lost", [2, 3])
async def test_a_request_that_crosses_the_end_of_its_connection_is_sent_again(tls: Tls, lost: int) -> None:
    """Unless it is the only one that this connection ever had."""

    async def answer(received: Received) -> Reply:
        return Reply(crash=2 <= len(endpoint.requests) <= lost)

    async with Endpoint(answer, tls=tls("h2")) as endpoint, new_pool() as pool:
        assert await send(pool, endpoint.url) == 200
        if lost == 2:
            assert await send(pool, endpoint.url) == 200
        else:
            with pytest.raises(RetryLater, match="closed the connection before it had answered"):
                await send(pool, endpoint.url)
        assert (endpoint.connections, len(endpoint.requests)) == (2, 3)


SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""),
        (b"\xff\xff\xff\x00\x00\x00\x00\x00\x00", b""),  # a frame of 16 MiB
        (SETTINGS, b"\x00\x00\x01\x01\x05\x00\x00\x00\x01\xff"),  # no headers
    ],
)
async def test_a_server_that_speaks_something_else_after_the_handshake(tls: Tls, first: bytes, then: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readexactly(len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
            kind = 0
            while kind != 1:  # until the request is there
                length, kind = int.from_bytes(await reader.readexactly(3)), (await reader.readexactly(1))[0]
                await reader.readexactly(5 + length)
            writer.write(then)
            await reader.read()
        writer.transport.abort()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=tls("h2"))
    async with server, new_pool() as pool:
        with pytest.raises(RetryLater, match=r"sent an answer that is not valid HTTP"):
            await send(pool, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        await asyncio.wait_for(ended.wait(), PATIENCE)
