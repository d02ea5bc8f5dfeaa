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
from evsched.ledger.run_table import DAY
from evsched.ledger.run_writer import HistoryService
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
    return _running(config, Service)


@pytest.fixture
def writing(config: Config) -> Running:
    """Return a context manager that runs a writer of the history; `keep` and `changes` of the settings.

    It waits in Redis for hours, so only an event makes it read.
    """
    config = replace(config, probe_interval=NO_CAP)

    def writing(
        recorder: Recorder | None = None, keep: float = 90 * DAY, **changes: Any
    ) -> AbstractAsyncContextManager[Recorder]:
        return _running(config, lambda runtime: HistoryService(runtime, keep))(recorder, **changes)

    return writing


def _running(config: Config, make: Callable[[Runtime], Service | HistoryService]) -> Running:
    @asynccontextmanager
    async def running(recorder: Recorder | None = None, **changes: Any) -> AsyncGenerator[Recorder]:
        recorder = recorder or Recorder()
        settings = replace(config, **changes)
        sender = BatchingSender(settings.url)
        relay = asyncio.ensure_future(make(Runtime(settings, sender, Events(recorder).emit)).run("Redis"))
        try:
            yield recorder
        finally:
            relay.cancel()
            ended = await asyncio.gather(relay, return_exceptions=True)
            await sender.close()
            if isinstance(ended[0], Exception):
                raise ended[0]

    return running
