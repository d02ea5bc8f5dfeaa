"""Scripts are tested alone: state in, one call, state out."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncCommands
from tests.support.snapshot import snapshot


@pytest.fixture
def send(server: EmbeddedRedis) -> Generator[Callable[[Call[Any]], Any]]:
    commands = SyncCommands(server.url)
    yield commands.send
    commands.close()


@pytest.fixture
def state(raw: Any, queue: str) -> Callable[[], dict[str, Any]]:
    """Return the whole state of the queue now."""
    return lambda: snapshot(raw, queue)
