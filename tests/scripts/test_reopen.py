"""reopen: jobs that were deferred for a named window are judged again when that window is changed, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.jobs.job import Deferred, FetchedJob
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

OPENS = NOW + 3600

CLOSED = Deferred(OPENS, "outside its window night", "night", "22:00-06:00 UTC")


@pytest.fixture
def runs(send: Send, store: Store) -> list[FetchedJob]:
    """Three runs held by worker "w", and the window `night`."""
    send(store.set_window("night", "22:00-06:00 UTC"))
    send(store.enqueue([New(name, b'{"task":"t"}', due=NOW) for name in "abc"]))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    return send(store.at(NOW).start("w", (), hold=3, lease=15)).jobs


def defer(send: Send, store: Store, runs: list[FetchedJob], deferred: Deferred = CLOSED) -> None:
    assert send(store.at(NOW).defer("w", [(run, deferred) for run in runs])) == []


def test_jobs_that_wait_for_the_window_are_due_at_once(
    send: Send, store: Store, runs: list[FetchedJob], state: State
) -> None:
    defer(send, store, runs)
    assert state()["deferred:night"] == dict.fromkeys("abc", OPENS)
    assert send(store.at(NOW + 1).reopen("night", limit=2)) == (2, 1)
    assert send(store.at(NOW + 1).reopen("night", limit=2)) == (1, 0)
    after = state()
    assert after["schedule"] == dict.fromkeys("abc", NOW + 1)
    assert "deferred:night" not in after
    assert send(store.at(NOW + 1).reopen("night", limit=2)) == (0, 0)
    assert state() == after


def test_jobs_that_were_moved_meanwhile_are_left_alone(
    send: Send, store: Store, runs: list[FetchedJob], state: State
) -> None:
    defer(send, store, runs)
    send(store.at(NOW).reschedule("a", OPENS + 60))
    send(store.at(NOW).cancel("b"))
    assert send(store.at(NOW + 1).reopen("night")) == (1, 0)
    assert state()["schedule"] == {"a": OPENS + 60, "c": NOW + 1}


def test_jobs_that_wait_for_another_window_or_an_unnamed_one_stay(
    send: Send, store: Store, runs: list[FetchedJob], state: State
) -> None:
    send(store.set_window("day", "06:00-22:00 UTC"))
    defer(send, store, runs[:1], Deferred(OPENS, "closed", "day", "06:00-22:00 UTC"))
    defer(send, store, runs[1:], Deferred(OPENS, "closed"))
    assert send(store.at(NOW + 1).reopen("night")) == (0, 0)
    assert state()["schedule"] == dict.fromkeys("abc", OPENS)
    assert state()["deferred:day"] == {"a": OPENS}


@pytest.mark.parametrize("window", ["00:00-24:00 UTC", None])
def test_a_job_deferred_by_an_outdated_window_is_due_at_once(
    send: Send, store: Store, runs: list[FetchedJob], state: State, window: str | None
) -> None:
    """The window was changed, and `reopen` ran, after the worker had read the window and before it wrote."""
    send(store.set_window("night", window))
    defer(send, store, runs)
    assert state()["schedule"] == dict.fromkeys("abc", NOW)
    assert "deferred:night" not in state()


def test_notes_whose_due_has_passed_are_deleted(
    send: Send, store: Store, runs: list[FetchedJob], raw: Any, state: State
) -> None:
    key = f"evsched:{{{store.queue}}}:deferred:night"
    raw.zadd(key, {f"old-{n}": NOW - n for n in range(1, 6)})
    defer(send, store, runs[:2])
    assert sorted(state()["deferred:night"]) == ["a", "b", "old-1"]
    assert 3600 < raw.ttl(key) <= 3660


def test_a_note_that_cannot_be_written_does_not_stop_defer(
    send: Send, store: Store, runs: list[FetchedJob], raw: Any, state: State
) -> None:
    raw.set(f"evsched:{{{store.queue}}}:deferred:night", "x")
    defer(send, store, runs)
    assert state()["schedule"] == dict.fromkeys("abc", OPENS)
