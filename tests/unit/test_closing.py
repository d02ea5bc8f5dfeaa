"""Connections to a Redis that does not answer are closed when the task that uses them is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from evsched import forks
from evsched.config import Config
from evsched.lease import Times
from evsched.services.scale_to_zero import ReadyWatch
from evsched.services.worker_process import WorkerReady
from evsched.store.queue import Announced
from evsched.transport.call import Call, raw
from evsched.transport.connection import Connection
from evsched.transport.senders import BatchingSender
from evsched.transport.subscription import Subscription
from tests.support.patience import PATIENCE
from tests.support.recorder import Recorder

pytestmark = pytest.mark.anyio

Use = Callable[[], Awaitable[object]]


class Silent:
    """A server that answers nothing. `connected`: a client has connected, and sent something."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()

    @asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        async with await asyncio.start_server(self._talk, "127.0.0.1", 0) as server:
            yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/1"

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        self.connected.set()
        await reader.read()
        writer.close()


def exchange(url: str) -> Use:
    connection = Connection(url)
    return lambda: connection.exchange([("PING",)], PATIENCE)


def subscribe(url: str) -> Use:
    subscription = Subscription(url)
    return lambda: subscription.open([], ["news"])


def stop_waiting_for_jobs(url: str) -> Use:
    watch = ReadyWatch(Config(), Times(Config()), WorkerReady("w", ["q"], url), Recorder(), lambda _: Announced())

    async def leave() -> None:
        async with watch:
            pass

    return leave


def descriptors() -> set[int]:
    """Return the descriptors of all connections to Redis."""
    return {one for holder in forks._holders for one in holder.descriptors()}  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("prepare", [exchange, subscribe, stop_waiting_for_jobs])
async def test_connection_being_opened_is_closed_when_its_task_is_cancelled(
    prepare: Callable[[str], Use],
) -> None:
    silent = Silent()
    async with silent.listening() as url:
        before, use = descriptors(), prepare(url)  # `use` keeps the connection from being collected
        using = asyncio.ensure_future(use())
        await asyncio.wait_for(silent.connected.wait(), PATIENCE)
        assert descriptors() != before
        using.cancel()
        await asyncio.wait([using])
        assert using.cancelled()
        assert descriptors() == before


async def test_call_that_was_not_sent_yet_ends_when_its_sender_is_closed() -> None:
    sender = BatchingSender("redis://127.0.0.1:1")
    calling = asyncio.ensure_future(sender.send(Call(("PING",), raw)))
    closing = asyncio.ensure_future(sender.close())  # both run before the batch is sent
    await asyncio.wait([calling, closing], timeout=PATIENCE)
    assert calling.cancelled()
