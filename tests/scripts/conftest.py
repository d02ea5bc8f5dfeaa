"""Scripts are tested alone: state in, one call, state out."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Protocol

import pytest

from evsched.jobs.record import JobStatus
from evsched.store.store import Store
from evsched.transport.call import Call, T
from evsched.transport.embedded import EmbeddedRedis
from evsched.transport.senders import SyncSender
from tests.support.snapshot import snapshot

NOW = 1_900_000_000.0
State = Callable[[], dict[str, Any]]


class Send(Protocol):
    """Send one call to the test's server and return its reply."""

    def __call__(self, call: Call[T], /) -> T: ...


def status_of(send: Send, store: Store, job_id: str) -> JobStatus:
    """Return the status of a job that exists."""
    status = send(store.at(NOW).look(job_id))
    assert status is not None
    return status


@pytest.fixture
def send(server: EmbeddedRedis) -> Generator[Send]:
    sender = SyncSender(server.url)
    yield sender.send
    sender.close()


@pytest.fixture
def state(raw: Any, queue: str) -> State:
    """Return a function that reads the whole state of the queue."""
    return lambda: snapshot(raw, queue)
