"""Fixtures for tests of the Django backend: the site in this process, with a worker in the test's event loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any

import django
import pytest
from django.conf import settings

from evsched.config import Config
from evsched.errors import JobDead
from evsched.transport.embedded import EmbeddedRedis
from tests.django import settings as of_site
from tests.support.patience import NO_CAP, PATIENCE
from tests.support.system import System, system

if not settings.configured:
    settings.configure(**{name: value for name, value in vars(of_site).items() if name.isupper()})
    django.setup()

from evsched.django.backend import redis_of, split_id
from evsched.django.worker_app import make_app


@pytest.fixture
def site(server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """Give the site the test's Redis; yield its URL."""
    monkeypatch.setenv("EVSCHED_URL", server.url)
    yield server.url
    redis_of(server.url).client.close()
    redis_of.cache_clear()


@pytest.fixture
async def looped(site: str) -> AsyncGenerator[str]:
    """Do as `site`, for a test with an event loop: its connection is closed at the end."""
    yield site
    await redis_of(site).app.close()


@pytest.fixture
async def running(looped: str) -> AsyncGenerator[System]:
    """Run a dispatcher and a worker of the site."""
    config = Config(url=looped, concurrency=4, shutdown_grace=0.2, safety_cap=NO_CAP, unknown_task_grace=0.0)
    async with system(config, make_app()) as found:
        yield found


@pytest.fixture
def ended(site: str) -> Callable[[Any], Awaitable[Any]]:
    """Wait until the job of a result has ended; return the result, refreshed."""

    async def wait(result: Any) -> Any:
        job_id, queue = split_id(result.id)
        with suppress(JobDead):
            await redis_of(site).app.job(job_id, queue=queue).result(PATIENCE)
        await result.arefresh()
        return result

    return wait
