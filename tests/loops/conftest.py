"""What most tests of loops start from: a system of one queue, with a short grace, and an app without tasks yet."""

from __future__ import annotations

import pytest

from evsched import App
from evsched.config import Config
from evsched.embedded import EmbeddedRedis


@pytest.fixture
def config(server: EmbeddedRedis, queue: str) -> Config:
    return Config(url=server.url, queues=(queue,), concurrency=10, grace=0.2)


@pytest.fixture
def app(queue: str) -> App:
    return App(queue=queue)
