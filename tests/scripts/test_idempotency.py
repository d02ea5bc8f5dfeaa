"""Requests that are done once: a repetition changes nothing and gets the reply of the first."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.errors import JobExists, StoreRefused
from evsched.jobs.job import OnConflict
from evsched.store.client_calls import Accepted, New
from evsched.store.queue import IdempotentRequest
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

PAYLOAD = b'{"task":"t"}'
REQUEST = IdempotentRequest("k", "asked")
DAY_MS = 86_400_000


def jobs(*ids: str) -> list[New]:
    return [New(job_id, PAYLOAD, delay=5.0) for job_id in ids]


@pytest.fixture
def key(queue: str) -> str:
    return f"evsched:{{{queue}}}:unique:/k"


@pytest.mark.parametrize("on_conflict", [None, "keep", "replace"])
@pytest.mark.parametrize("within", [None, 0.0, 300.0])
def test_a_repetition_gets_the_first_reply_and_changes_nothing(
    send: Send, store: Store, state: State, raw: Any, key: str, on_conflict: OnConflict | None, within: float | None
) -> None:
    once = store.at(NOW).enqueue_once(REQUEST, jobs("a", "b"), on_conflict=on_conflict, within=within)
    first = Accepted("asked", [("a", NOW + 5), ("b", NOW + 5)])
    assert send(once) == first
    assert DAY_MS - 60_000 < raw.pttl(key) <= DAY_MS
    before, stored = state(), raw.get(key)
    assert send(once) == first
    other = store.at(NOW + 9).enqueue_once(
        IdempotentRequest("k", "other"), jobs("c", "d", "e"), on_conflict=on_conflict, within=within
    )
    assert send(other) == first, "the caller sees by `asked` that it was not the same"
    assert (state(), raw.get(key)) == (before, stored)


@pytest.mark.parametrize("on_conflict", [None, "keep", "replace"])
def test_repeated_request_changes_nothing_after_its_jobs_changed(
    send: Send, store: Store, state: State, on_conflict: OnConflict | None
) -> None:
    once = store.at(NOW).enqueue_once(REQUEST, jobs("a", "b"), on_conflict=on_conflict)
    first = send(once)
    send(store.at(NOW).cancel("a"))
    send(store.at(NOW).reschedule("b", NOW + 99))
    before = state()
    assert before["schedule"] == {"b": NOW + 99}
    assert send(once) == first
    assert state() == before


def test_a_request_that_is_refused_does_not_use_up_its_key(
    send: Send, store: Store, state: State, raw: Any, key: str
) -> None:
    send(store.at(NOW).enqueue(jobs("a")))
    before = state()
    with pytest.raises(JobExists):
        send(store.at(NOW).enqueue_once(REQUEST, jobs("new", "a")))
    with pytest.raises(StoreRefused, match="the argument due is not a valid score"):
        send(store.at(NOW).enqueue_once(REQUEST, [New("new", PAYLOAD, due=float("nan"))]))
    assert (state(), raw.exists(key)) == (before, 0)
    assert send(store.at(NOW).enqueue_once(REQUEST, jobs("b"))).jobs == [("b", NOW + 5)]


def test_a_key_that_redis_has_deleted_is_free(send: Send, store: Store, raw: Any, key: str) -> None:
    send(store.at(NOW).enqueue_once(REQUEST, jobs("a")))
    raw.delete(key)
    assert send(store.at(NOW).enqueue_once(IdempotentRequest("k", "other"), jobs("b"))).jobs == [("b", NOW + 5)]


def test_key_of_another_type_is_overwritten(send: Send, store: Store, raw: Any, key: str) -> None:
    raw.rpush(key, "x")
    assert send(store.at(NOW).enqueue_once(REQUEST, jobs("a"))).jobs == [("a", NOW + 5)]
    assert raw.get(key) == f"{NOW + 86400:.6f} asked a {NOW + 5:.6f}".encode()


def test_a_thousand_jobs_are_one_request(send: Send, store: Store) -> None:
    once = store.at(NOW).enqueue_once(REQUEST, jobs(*(f"j{n}" for n in range(1000))))
    assert send(once).jobs == [(f"j{n}", NOW + 5) for n in range(1000)]
    assert send(once) == send(once)


def test_enqueue_without_a_key_runs_no_additional_command(send: Send, store: Store, raw: Any) -> None:
    send(store.at(NOW).enqueue(jobs("a")))
    raw.config_resetstat()
    send(store.at(NOW).enqueue(jobs("b")))
    used = raw.info("commandstats")
    assert "cmdstat_get" not in used
    assert "cmdstat_set" not in used
