"""Fixtures for tests of the ledger: a real PostgreSQL, a migrated database for each test, and relays in its loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from evsched import App
from evsched.config import Config
from evsched.events import Events
from evsched.ledger.relay import Service
from evsched.runtime.loops import Runtime
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.patience import NO_CAP
from tests.support.recorder import Recorder

Running = Callable[..., AbstractAsyncContextManager[Recorder]]


@pytest.fixture
def config(server: EmbeddedRedis, queue: str, ledger_url: str) -> Config:
    return Config(
        url=server.url, queues=(queue,), concurrency=10, shutdown_grace=0.2, safety_cap=NO_CAP, ledger_url=ledger_url
    )


@pytest.fixture
def app(queue: str, server: EmbeddedRedis) -> App:
    return App(server.url, queue=queue)


@pytest.fixture
def relaying(config: Config) -> Running:
    """Return a context manager that runs a relay; `changes` of the settings."""

    @asynccontextmanager
    async def running(recorder: Recorder | None = None, **changes: Any) -> AsyncGenerator[Recorder]:
        recorder = recorder or Recorder()
        settings = replace(config, **changes)
        sender = BatchingSender(settings.url)
        relay = asyncio.ensure_future(Service(Runtime(settings, sender, Events(recorder).emit)).run("Redis"))
        try:
            yield recorder
        finally:
            relay.cancel()
            ended = await asyncio.gather(relay, return_exceptions=True)
            await sender.close()
            if isinstance(ended[0], Exception):
                raise ended[0]

    return running
