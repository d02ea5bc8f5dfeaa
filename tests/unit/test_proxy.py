"""The proxy forwards, delays, drops, cuts and resets as a test asks it to."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.proxy import BOTH, Direction, Proxy

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1000):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    writer.close()


@asynccontextmanager
async def echoing() -> AsyncGenerator[Proxy]:
    """Run a proxy in front of a server that sends back all it receives."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with Proxy((host, port)) as proxy:
        yield proxy
    server.close()
    await server.wait_closed()


@asynccontextmanager
async def link(proxy: Proxy) -> AsyncGenerator[Connection]:
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
    yield reader, writer
    writer.transport.abort()


async def answer(to: Connection, text: bytes, seconds: float = PATIENCE) -> bytes:
    reader, writer = to
    writer.write(text)
    async with asyncio.timeout(seconds):
        return await reader.readexactly(len(text))


async def test_forwards_both_ways() -> None:
    async with echoing() as proxy, link(proxy) as client:
        assert await answer(client, b"one") == b"one"
        assert await answer(client, b"x" * 1_000_000) == b"x" * 1_000_000
        assert (proxy.links, proxy.accepted) == (1, 1)


async def test_forwards_to_a_unix_socket(tmp_path: Path) -> None:
    server = await asyncio.start_unix_server(_echo, tmp_path / "s")
    async with Proxy(str(tmp_path / "s")) as proxy, link(proxy) as client:
        assert await answer(client, b"one") == b"one"
    server.close()
    await server.wait_closed()


async def test_forwards_the_close_of_a_link() -> None:
    async with echoing() as proxy, link(proxy) as (reader, writer):
        writer.write_eof()
        assert await reader.read() == b""
        await proxy.until(lambda: proxy.links == 0)


@pytest.mark.parametrize("direction", BOTH)
async def test_delays_one_direction_and_keeps_the_order(direction: Direction) -> None:
    clock = asyncio.get_running_loop().time
    async with echoing() as proxy, link(proxy) as client:
        proxy.delay(0.05, direction)
        before = clock()
        client[1].write(b"slow ")
        await proxy.until(lambda: proxy.received[direction] == 5)
        proxy.heal()  # what follows is not delayed, and yet does not overtake
        client[1].write(b"quick")
        assert await client[0].readexactly(10) == b"slow quick"
        assert clock() - before >= 0.05


@pytest.mark.parametrize("direction", BOTH)
async def test_swallows_and_keeps_the_link(direction: Direction) -> None:
    async with echoing() as proxy, link(proxy) as client:
        assert await answer(client, b"before") == b"before"
        proxy.swallow(direction)
        received = proxy.received[direction]
        with pytest.raises(TimeoutError):
            await answer(client, b"during", 0.02)
        await proxy.until(lambda: proxy.received[direction] == received + 6)  # else it would be forwarded after heal()
        assert proxy.links == 1
        proxy.heal()
        assert await answer(client, b"after") == b"after"


async def test_a_swallowed_close_does_not_reach_the_server() -> None:
    closed = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionResetError:
            pass
        closed.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with Proxy((host, port)) as proxy:
        async with link(proxy):
            await proxy.until(lambda: proxy.links == 1)
            proxy.swallow("up")
        await proxy.until(lambda: proxy.links == 0)
        assert not closed.is_set()
    async with asyncio.timeout(PATIENCE):
        await closed.wait()  # the close by the proxy itself does reach it
    server.close()
    await server.wait_closed()


async def test_forgotten_links_stay_silent_and_new_ones_work() -> None:
    async with echoing() as proxy, link(proxy) as old:
        assert await answer(old, b"one") == b"one"
        proxy.forget()
        old[1].write(b"two")
        await proxy.until(lambda: proxy.received["up"] == len(b"onetwo"))
        async with link(proxy) as client:
            assert await answer(client, b"new") == b"new"
        assert proxy.received["down"] == len(b"onenew")


async def test_resets_all_links_and_accepts_new_ones() -> None:
    async with echoing() as proxy:
        async with link(proxy) as client:
            assert await answer(client, b"one") == b"one"
            proxy.reset()
            with pytest.raises(ConnectionResetError):
                await client[0].readexactly(1)
        async with link(proxy) as client:
            assert await answer(client, b"two") == b"two"
        assert proxy.accepted == 2


async def test_cuts_once_after_a_given_number_of_bytes() -> None:
    async with echoing() as proxy:
        async with link(proxy) as (reader, writer):
            proxy.cut_after(4, "up")
            writer.write(b"123456789")
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(9)
        async with link(proxy) as client:
            assert await answer(client, b"123456789") == b"123456789"


async def test_a_target_that_is_not_there_ends_the_link(tmp_path: Path) -> None:
    async with Proxy(str(tmp_path / "nothing")) as proxy, link(proxy) as client:
        with pytest.raises(ConnectionResetError):
            await client[0].readexactly(1)
