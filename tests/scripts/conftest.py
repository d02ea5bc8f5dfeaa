"""Scripts are tested alone: state in, one call, state out."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from evsched.transport.call import Call
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.support.snapshot import snapshot


@pytest.fixture
def send(server: EmbeddedRedis) -> Generator[Callable[[Call[Any]], Any]]:
    sender = SyncSender(server.url)
    yield sender.send
    sender.close()


@pytest.fixture
def state(raw: Any, queue: str) -> Callable[[], dict[str, Any]]:
    """Return the whole state of the queue now."""
    return lambda: snapshot(raw, queue)
