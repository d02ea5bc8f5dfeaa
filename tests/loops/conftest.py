"""Fixtures for tests of loops: settings for one queue with short graces, an app without tasks, a private server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator

import pytest

from evsched import App, current_job
from evsched.config import Config
from evsched.diagnostics.audit import Audit
from evsched.diagnostics.finding import Finding
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender
from tests.support.api import Caller, calling
from tests.support.patience import NO_CAP


@pytest.fixture
def config(server: EmbeddedRedis, queue: str) -> Config:
    return Config(
        url=server.url, queues=(queue,), concurrency=10, shutdown_grace=0.2, kill_grace=0.2, safety_cap=NO_CAP
    )


@pytest.fixture
def app(queue: str) -> App:
    return App(queue=queue)


@pytest.fixture
def lateness(app: App) -> None:
    """Give the app a task that returns how late its job began."""

    @app.task
    async def lateness() -> float:  # pyright: ignore[reportUnusedFunction]
        return current_job().lateness


@pytest.fixture
async def api(server: EmbeddedRedis) -> AsyncGenerator[Caller]:
    """A caller of the HTTP interface."""
    async with calling(server.url) as caller:
        yield caller


@pytest.fixture(autouse=True)
def every_job_is_in_one_place_after_all(server: EmbeddedRedis, queue: str) -> Generator[None]:
    """Check after each test that the audit finds nothing, except ids without a record, which the tests use."""

    async def audit() -> list[Finding]:
        sender = BatchingSender(server.url)
        try:
            return await Audit(sender, [queue], pause=0.0).run()
        finally:
            await sender.close()

    yield
    assert [finding for finding in asyncio.run(audit()) if finding.check != "no-record"] == []
