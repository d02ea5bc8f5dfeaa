"""The traceback and the class of a failure: they are kept in the record from the failed run until the next outcome."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Retried, Snoozed, decode
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, status_of

TRACE = "Traceback (most recent call last):\n..."


@pytest.fixture
def start(send: Send, store: Store) -> Callable[[], FetchedJob]:
    """Return a function that dispatches job "a", and starts it."""
    send(store.at(NOW).enqueue([New("a", b'{"task":"t"}', due=NOW)]))

    def start() -> FetchedJob:
        send(store.at(NOW).dispatch(limit=10, cap=1000))
        (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
        return run

    return start


@pytest.fixture
def raised(send: Send, store: Store) -> Callable[[], tuple[str | None, str | None]]:
    def look() -> tuple[str | None, str | None]:
        status = status_of(send, store, "a")
        return status.traceback, status.error

    return look


def fail(send: Send, store: Store, run: FetchedJob) -> None:
    assert send(store.at(NOW).retry("w", [(run, Retried(0.0, "no luck", traceback=TRACE, error="E"))])) == []


ENDS: dict[str, Callable[[Store, FetchedJob], Any]] = {
    "done": lambda store, run: store.at(NOW).complete("w", [(run, Done(b"1", 300.0, False))]),
    "asked for another attempt": lambda store, run: store.at(NOW).retry("w", [(run, Retried(9.0, "later"))]),
    "given up without a traceback": lambda store, run: store.at(NOW).bury("w", [(run, Buried("expired", False))]),
    "cancelled": lambda store, run: store.at(NOW).abort("w", [(run, Aborted(300.0, False))]),
    "interrupted": lambda store, run: store.at(NOW).requeue("w", "it was stopped"),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_run_that_ends_without_an_error_deletes_the_earlier_traceback(
    send: Send,
    store: Store,
    start: Callable[[], FetchedJob],
    raised: Callable[[], tuple[str | None, str | None]],
    end: str,
) -> None:
    fail(send, store, start())
    assert raised() == (TRACE, "E")
    run = start()
    assert raised() == (TRACE, "E")
    send(store.begin("w", [(run, "1")]))
    send(ENDS[end](store, run))
    assert raised() == (None, None)


NOT_FAILED: dict[str, Callable[[Store, FetchedJob], Any]] = {
    "outside its window": lambda store, run: store.at(NOW).defer("w", [(run, Deferred(NOW, "closed"))]),
    "snoozed": lambda store, run: store.at(NOW).snooze("w", [(run, Snoozed("snoozed"))]),
    "handed back": lambda store, run: store.at(NOW).requeue("w", "it was stopped"),
}


def expire(send: Send, store: Store, run: FetchedJob) -> None:
    assert send(store.at(NOW).bury("w", [(run, Buried("expired", True, "expired", began=False))])) == []


@pytest.mark.parametrize("between", [(), *((name,) for name in NOT_FAILED), ("snoozed", "outside its window")])
def test_job_buried_before_its_retry_keeps_the_last_failure(
    send: Send, store: Store, start: Callable[[], FetchedJob], between: tuple[str, ...]
) -> None:
    fail(send, store, start())
    for name in between:
        send(NOT_FAILED[name](store, start()))
    expire(send, store, start())
    status = status_of(send, store, "a")
    assert (status.place, status.attempt, status.outcome) == ("dead", 1, "expired")
    assert (status.reason, status.traceback, status.failure) == ("expired; before that: no luck", TRACE, None)
    assert status.error == "E"
    reply = send(store.replied("a"))
    assert reply is not None
    assert decode(reply)["reason"] == "expired; before that: no luck"


@pytest.mark.parametrize("between", NOT_FAILED)
def test_a_job_given_up_before_its_first_attempt_has_no_failure(
    send: Send, store: Store, start: Callable[[], FetchedJob], between: str
) -> None:
    send(NOT_FAILED[between](store, start()))
    expire(send, store, start())
    assert status_of(send, store, "a").reason == "expired"


def test_failure_is_replaced_by_the_next_and_cleared_by_a_revival(
    send: Send, store: Store, start: Callable[[], FetchedJob]
) -> None:
    fail(send, store, start())
    send(store.at(NOW).defer("w", [(start(), Deferred(NOW, "closed"))]))
    assert status_of(send, store, "a").failure == "no luck"
    assert send(store.at(NOW).retry("w", [(start(), Retried(0.0, "worse luck"))])) == []
    status = status_of(send, store, "a")
    assert (status.reason, status.failure, status.traceback) == ("worse luck", None, None)
    assert status.error is None
    expire(send, store, start())
    send(store.at(NOW).revive(["a"]))
    expire(send, store, start())
    assert status_of(send, store, "a").reason == "expired"


def test_retry_with_an_invalid_payload_keeps_the_last_failure(
    send: Send, store: Store, start: Callable[[], FetchedJob], raw: Any
) -> None:
    fail(send, store, start())
    raw.hset(f"evsched:{{{store.queue}}}:job:a", "payload", "x" * 2000)
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    status = status_of(send, store, "a")
    assert status.reason is not None
    assert status.reason.startswith("the payload has 2000 bytes")
    assert status.reason.endswith("; before that: no luck")
    assert (status.traceback, status.error) == (TRACE, "E")


def test_a_dead_job_keeps_its_traceback_until_it_is_revived(
    send: Send, store: Store, start: Callable[[], FetchedJob], raised: Callable[[], tuple[str | None, str | None]]
) -> None:
    send(store.at(NOW).bury("w", [(start(), Buried("no luck", False, traceback=TRACE, error="E"))]))
    assert raised() == (TRACE, "E")
    send(store.at(NOW).revive(["a"]))
    assert raised() == (None, None)


def test_id_scheduled_again_while_failing_runs_without_a_traceback(
    send: Send,
    store: Store,
    start: Callable[[], FetchedJob],
    raised: Callable[[], tuple[str | None, str | None]],
    raw: Any,
) -> None:
    run = start()
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW + 60})
    send(store.at(NOW).bury("w", [(run, Buried("no luck", False, traceback=TRACE, error="E"))]))
    assert raised() == (None, None)
    assert status_of(send, store, "a").place == "schedule"
