"""Fixtures for most tests of loops: settings for one queue with short graces, and an app without tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from evsched import App
from evsched.config import Config
from evsched.diagnostics.audit import Audit
from evsched.diagnostics.finding import Finding
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import BatchingSender


@pytest.fixture
def config(server: EmbeddedRedis, queue: str) -> Config:
    return Config(url=server.url, queues=(queue,), concurrency=10, shutdown_grace=0.2, kill_grace=0.2)


@pytest.fixture
def app(queue: str) -> App:
    return App(queue=queue)


@pytest.fixture(autouse=True)
def every_job_is_in_one_place_after_all(server: EmbeddedRedis, queue: str) -> Generator[None]:
    """After each test, the audit finds nothing wrong, except ids without a record that the test made up."""

    async def audit() -> list[Finding]:
        sender = BatchingSender(server.url)
        try:
            return await Audit(sender, [queue], pause=0.0).run()
        finally:
            await sender.close()

    yield
    assert [finding for finding in asyncio.run(audit()) if finding.check != "no-record"] == []
