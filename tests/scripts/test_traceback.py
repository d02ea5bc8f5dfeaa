"""The traceback of a failure: it is kept in the record from the failed run until the next outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Retried
from evsched.store.clients import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, status_of

TRACE = "Traceback (most recent call last):\n..."


@pytest.fixture
def start(send: Send, store: Store) -> Callable[[], FetchedJob]:
    """Return a function that dispatches job "a", and starts it."""
    send(store.enqueue([New("a", b'{"task":"t"}', due=NOW)], now=NOW))

    def start() -> FetchedJob:
        send(store.dispatch(limit=10, cap=1000, now=NOW))
        (run,) = send(store.start("w", (), hold=1, lease=15, now=NOW)).jobs
        return run

    return start


@pytest.fixture
def traceback(send: Send, store: Store) -> Callable[[], str | None]:
    def look() -> str | None:
        return status_of(send, store, "a").traceback

    return look


def fail(send: Send, store: Store, run: FetchedJob) -> None:
    assert send(store.retry("w", [(run, Retried(0.0, "no luck", traceback=TRACE))], now=NOW)) == []


ENDS: dict[str, Callable[[Store, FetchedJob], Any]] = {
    "done": lambda store, run: store.complete("w", [(run, Done(b"1", 300.0, False))], now=NOW),
    "asked for another attempt": lambda store, run: store.retry("w", [(run, Retried(9.0, "later"))], now=NOW),
    "given up without a traceback": lambda store, run: store.bury("w", [(run, Buried("expired", False))], now=NOW),
    "cancelled": lambda store, run: store.abort("w", [(run, Aborted(300.0, False))], now=NOW),
    "outside its window": lambda store, run: store.defer("w", [(run, Deferred(NOW + 9, "closed"))], now=NOW),
    "interrupted": lambda store, run: store.requeue("w", "it was stopped", now=NOW),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_ends_without_an_error_deletes_the_earlier_traceback(
    send: Send, store: Store, start: Callable[[], FetchedJob], traceback: Callable[[], str | None], end: str
) -> None:
    fail(send, store, start())
    assert traceback() == TRACE
    run = start()
    assert traceback() == TRACE
    send(store.begin("w", [(run, "1")]))
    send(ENDS[end](store, run))
    assert traceback() is None


def test_a_dead_job_keeps_its_traceback_until_it_is_revived(
    send: Send, store: Store, start: Callable[[], FetchedJob], traceback: Callable[[], str | None]
) -> None:
    send(store.bury("w", [(start(), Buried("no luck", False, traceback=TRACE))], now=NOW))
    assert traceback() == TRACE
    send(store.revive(["a"], now=NOW))
    assert traceback() is None


def test_an_id_that_is_scheduled_again_while_it_fails_runs_without_a_traceback(
    send: Send, store: Store, start: Callable[[], FetchedJob], traceback: Callable[[], str | None], raw: Any
) -> None:
    run = start()
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW + 60})
    send(store.bury("w", [(run, Buried("no luck", False, traceback=TRACE))], now=NOW))
    assert traceback() is None
    assert status_of(send, store, "a").place == "schedule"
