"""defer: a run that cannot begin uses up nothing, and its job comes back. `test_reopen.py` has more about windows."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from evsched.jobs.job import Deferred, FetchedJob, Retried
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State, status_of

UNKNOWN = Deferred(NOW + 5.123456789, "unknown task 't'", cause="task", unknown_since=NOW - 60.5)


def fetch(send: Send, store: Store, now: float = NOW, **more: Any) -> list[FetchedJob]:
    send(store.at(now).dispatch(limit=99, cap=1000))
    return send(store.at(now).start("w", (), hold=99, lease=15)).jobs


@pytest.fixture
def run(send: Send, store: Store) -> FetchedJob:
    send(store.at(NOW).enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    return fetch(send, store)[0]


def test_deferred_job_of_an_unknown_task_keeps_its_unknown_since(
    send: Send, store: Store, run: FetchedJob, state: State
) -> None:
    assert send(store.at(NOW).defer("w", [(run, UNKNOWN)])) == []
    status = status_of(send, store, "a")
    assert (status.place, status.due, status.attempt) == ("schedule", UNKNOWN.due, 0)
    assert (status.reason, status.unknown_since) == (UNKNOWN.reason, UNKNOWN.unknown_since)
    (again,) = fetch(send, store, NOW + 6)
    assert (again.due, again.planned) == (UNKNOWN.due, NOW)
    assert status_of(send, store, "a").unknown_since == UNKNOWN.unknown_since
    assert send(store.unknown("a")) == b"1899999939.5 1900000005.1234567"
    assert send(store.at(NOW + 6).defer("w", [(again, UNKNOWN)])) == []
    before = state()
    assert send(store.at(NOW + 6).defer("w", [(again, UNKNOWN)])) == ["a"]  # a second call finds the run lost
    assert state() == before


@pytest.mark.parametrize("how", ["retried", "rescheduled", "by ZADD", "deferred for its window"])
def test_rescheduled_job_is_no_longer_marked_as_unknown(
    send: Send, store: Store, run: FetchedJob, raw: Any, how: str
) -> None:
    send(store.at(NOW).defer("w", [(run, UNKNOWN)]))
    if how == "rescheduled":
        send(store.at(NOW).reschedule("a", NOW + 9))
    elif how == "by ZADD":
        raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW + 9}, xx=True)
    else:
        (again,) = fetch(send, store, NOW + 6)
        if how == "retried":
            send(store.at(NOW + 6).retry("w", [(again, Retried(0.0, "no luck"))]))
        else:
            send(store.at(NOW + 6).defer("w", [(again, Deferred(NOW + 60, "closed"))]))
    assert status_of(send, store, "a").unknown_since is None


LIMITS = [{"rate": 1.0}, {"rate:g": 1.0}, {"rate": 1.0, "rate:g": 1.0, "concurrency:g": 1.0}]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_job_that_does_not_begin_takes_nothing_off_the_rates(
    send: Send, store: Store, limits: dict[str, float]
) -> None:
    send(store.at(NOW).limit({**limits, "burst": 1.0, "burst:g": 1.0}))
    send(store.at(NOW).enqueue([New(name, b'{"task":"t"}', due=NOW - 1, group="g") for name in "abc"]))
    for name in "ab":
        (run,) = fetch(send, store)
        assert run.id == name
        assert send(store.at(NOW).defer("w", [(run, replace(UNKNOWN, due=NOW + 60))])) == []
    (last,) = fetch(send, store)
    assert last.id == "c"
    send(store.at(NOW).enqueue([New("d", b'{"task":"t"}', due=NOW - 1, group="g")]))
    assert fetch(send, store) == []  # no more is given back than was taken


def test_returned_job_does_not_count_as_progress(send: Send, store: Store) -> None:
    send(store.at(NOW).limit({"rate": 0.001, "burst": 1.0}))
    send(store.at(NOW).enqueue([New(name, b'{"task":"t"}', due=NOW - 1) for name in "abc"]))
    (run,) = fetch(send, store)
    later = NOW + 5000
    assert send(store.at(later).defer("w", [(run, replace(UNKNOWN, due=later + 60))])) == []
    assert [job.id for job in fetch(send, store, later)] == ["b"]


def test_deferred_job_that_is_to_stop_ends_as_cancelled_without_an_attempt(
    send: Send, store: Store, run: FetchedJob
) -> None:
    send(store.at(NOW).cancel("a"))
    assert send(store.at(NOW).defer("w", [(run, UNKNOWN)])) == []
    status = status_of(send, store, "a")
    assert (status.place, status.outcome, status.attempt) == ("finished", "cancelled", 0)
    assert status.reason == "cancelled before it ran"
