"""Connections to real servers: which are shared, which are kept, and which are not used again."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from evsched import GiveUp, RetryLater
from evsched.targets import session as sessions
from tests.support.endpoint import Endpoint, Received, Reply, always, fine
from tests.support.outbound import Tls, ask, new_session, send
from tests.support.patience import PATIENCE


async def test_requests_one_after_the_other_share_a_connection() -> None:
    async with Endpoint() as endpoint, new_session() as session:
        assert [await send(session, endpoint.url, "a") for _ in range(5)] == [200] * 5
        assert endpoint.connections == 1


async def test_hundreds_of_requests_run_at_once() -> None:
    together = asyncio.Barrier(300)

    async def answer(received: Received) -> Reply:
        await together.wait()
        return Reply()

    async with Endpoint(answer) as endpoint, new_session() as session:
        assert await asyncio.gather(*(send(session, endpoint.url) for _ in range(300))) == [200] * 300
        assert await asyncio.gather(*(send(session, endpoint.url) for _ in range(300))) == [200] * 300
        assert endpoint.connections == 300


async def test_a_server_with_tls_may_speak_http1_alone(tls: Tls) -> None:
    together = asyncio.Barrier(20)

    async def answer(received: Received) -> Reply:
        await together.wait()
        return Reply()

    async with Endpoint(answer, tls=tls()) as endpoint, new_session() as session:
        assert await asyncio.gather(*(send(session, endpoint.url) for _ in range(20))) == [200] * 20
        assert endpoint.connections == 20


async def test_a_connection_is_not_used_again_after_a_body_that_was_cut() -> None:
    async with Endpoint(always(Reply(body=b"x" * 200_000))) as endpoint, new_session() as session:
        for _ in range(3):
            answer = await ask(session, endpoint.url, method="GET")
            assert (len(answer.body), answer.whole) == (65536, False)
        assert endpoint.connections == 3


async def test_an_idle_connection_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "_KEPT", 0.01)
    async with Endpoint() as endpoint, new_session() as session:
        await send(session, endpoint.url)
        await asyncio.wait_for(endpoint.ended.acquire(), PATIENCE)
        await send(session, endpoint.url)
        assert endpoint.connections == 2


@pytest.mark.parametrize("with_tls", [False, True])
async def test_a_connection_that_the_server_closed_is_not_used_again(tls: Tls, with_tls: bool) -> None:
    closing = always(Reply(headers={"connection": "close"}, body=b"x"))
    async with Endpoint(closing, tls=tls() if with_tls else None) as endpoint, new_session() as session:
        assert [await send(session, endpoint.url) for _ in range(3)] == [200] * 3
        assert endpoint.connections == 3


async def test_the_certificate_must_be_for_the_host_of_the_url(tls: Tls) -> None:
    async with Endpoint(fine, tls=tls()) as endpoint, new_session() as session:
        assert await send(session, f"https://shop.test:{endpoint.port}/") == 200
        with pytest.raises(RetryLater, match="by TLS: its certificate is not valid: Hostname mismatch"):
            await send(session, f"https://other.test:{endpoint.port}/")
        assert len(endpoint.requests) == 1


async def test_the_certificate_must_be_trusted(tls: Tls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    async with Endpoint(fine, tls=tls()) as endpoint, new_session() as session:
        with pytest.raises(RetryLater, match="by TLS: its certificate is not valid: unable to get local issuer"):
            await send(session, endpoint.url)
        assert endpoint.requests == []


async def test_a_server_that_speaks_something_else_is_named() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.com ESMTP\r\n\r\n")
        await reader.read()  # until the client has gone
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, new_session() as session:
        with pytest.raises(RetryLater, match=f"http://127.0.0.1:{port} sent an answer that is not valid HTTP"):
            await send(session, f"http://127.0.0.1:{port}/")
        with pytest.raises(RetryLater, match="cannot be connected to by TLS: WRONG_VERSION_NUMBER"):
            await send(session, f"https://127.0.0.1:{port}/")


async def test_a_server_that_ends_a_request_without_an_answer(tls: Tls) -> None:
    async with Endpoint(always(Reply(hang_up=True)), tls=tls()) as endpoint, new_session() as session:
        with pytest.raises(RetryLater, match="closed the connection before it had answered"):
            await send(session, endpoint.url)
        assert len(endpoint.requests) == 1


@pytest.mark.parametrize("with_tls", [False, True])
@pytest.mark.parametrize("status", [200, 404, 503])
async def test_the_status_decides_although_the_body_breaks_off(tls: Tls, with_tls: bool, status: int) -> None:
    """To repeat a request that is done could do the work twice."""
    reply = Reply(status, {"retry-after": "7"}, b"abcd", after_half="break off")
    async with Endpoint(always(reply), tls=tls() if with_tls else None) as endpoint, new_session() as session:
        answer = await ask(session, endpoint.url, "x")
        assert (answer.status, answer.body, answer.whole) == (status, b"ab", False)
        assert answer.header("retry-after") == "7"
        assert len(endpoint.requests) == 1


async def test_the_next_address_is_tried_if_one_does_not_answer() -> None:
    addresses = ["127.0.0.2", "127.0.0.3"]  # nobody listens on the first
    async with Endpoint(hosts=("127.0.0.3",)) as endpoint, new_session(lambda host: addresses) as session:
        assert await send(session, f"http://shop.test:{endpoint.port}/") == 200


async def test_an_address_that_swallows_packets_is_not_waited_for() -> None:
    async with Endpoint(hosts=("127.0.0.3",)) as endpoint, AsyncExitStack() as silent:
        full = silent.enter_context(socket.socket())
        full.bind(("127.0.0.2", endpoint.port))
        full.listen(0)
        for _ in range(4):  # more than the system accepts for a program that accepts none
            waits = silent.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(full.getsockname())
        async with new_session(lambda host: ["127.0.0.2", "127.0.0.3"]) as session:
            assert await send(session, f"http://shop.test:{endpoint.port}/") == 200


async def test_addresses_that_are_not_allowed_are_left_out() -> None:
    addresses = ["127.0.0.1", "127.0.0.3"]
    async with (
        Endpoint(hosts=("127.0.0.1",)) as inside,
        Endpoint(hosts=("127.0.0.3",), port=inside.port) as outside,
        new_session(lambda host: addresses, "127.0.0.3/32") as session,
    ):
        assert await send(session, f"http://shop.test:{inside.port}/") == 200
        addresses.pop()
        with pytest.raises(GiveUp, match=r"127.0.0.1, which is not public"):
            await send(session, f"http://other.test:{inside.port}/")
        assert (inside.connections, outside.connections) == (0, 1)


async def test_host_whose_only_allowed_address_is_silent_is_tried_again() -> None:
    async with Endpoint(hosts=("127.0.0.1",)) as inside:
        async with new_session(lambda host: ["127.0.0.1", "127.0.0.3"], "127.0.0.3/32") as session:
            with pytest.raises(RetryLater, match="cannot be connected to"):
                await send(session, f"http://shop.test:{inside.port}/")
        assert inside.connections == 0


async def test_the_reason_for_teredo_does_not_name_a_setting_that_does_not_help() -> None:
    async with new_session() as session:
        with pytest.raises(GiveUp, match=r"has the Teredo address 2001:0:101:101::fefe:fefe: requests are never sent"):
            await send(session, "http://[2001:0:101:101::fefe:fefe]/")


async def test_a_server_with_tls_that_dies_while_it_is_written_to(tls: Tls, caplog: pytest.LogCaptureFixture) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=tls())
    async with server, new_session() as session:
        with pytest.raises(RetryLater, match="closed the connection before it had answered"):
            await send(session, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/", "a" * 10_000_000)
        await asyncio.wait_for(ended.wait(), PATIENCE)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("answers", "with_tls"),
    [
        (False, False),
        (False, True),
        (True, False),
    ],  # asyncio does not say how much TLS has left to send
)
async def test_a_request_that_is_given_up_or_answered_is_not_sent_to_its_end(
    tls: Tls, monkeypatch: pytest.MonkeyPatch, answers: bool, with_tls: bool
) -> None:
    """A server that does not read would keep its connection open, and the body in memory."""
    make_socket = sessions.Connector._open  # pyright: ignore[reportPrivateUsage]

    def make_small(self: sessions.Connector, info: Any) -> socket.socket:
        made = make_socket(self, info)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # so that the system takes a part of the body alone
        return made

    monkeypatch.setattr(sessions.Connector, "_open", make_small)
    size, found = 1_000_000, asyncio.get_running_loop().create_future()
    arrived, given_up = asyncio.Event(), asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read = len(await reader.readuntil(b"\r\n\r\n"))
        if answers:
            writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        arrived.set()
        await given_up.wait()
        with suppress(ConnectionError):
            while part := await reader.read(65536):
                read += len(part)
        writer.transport.abort()
        found.set_result(read)

    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    server = await asyncio.start_server(talk, sock=listening, ssl=tls() if with_tls else None)
    url = f"http{'s' if with_tls else ''}://127.0.0.1:{listening.getsockname()[1]}/"
    async with server, new_session() as session:
        sending = asyncio.create_task(send(session, url, "a" * size))
        await asyncio.wait_for(arrived.wait(), PATIENCE)
        if answers:
            assert await sending == 413
        else:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        given_up.set()
        assert await asyncio.wait_for(found, PATIENCE) < size


async def test_a_server_that_ends_the_handshake() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server, new_session() as session:
        with pytest.raises(RetryLater, match=r"cannot be connected to by TLS: (it closed|Connection reset)"):
            await send(session, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
