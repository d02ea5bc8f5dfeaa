"""Scores that ZADD accepts but no clock shows, and how long a dispatcher may sleep then."""

from __future__ import annotations

import math
from typing import Any

import pytest

from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

MEMBER = '{"task":"t","id":"a"}'


def dispatch(store: Store, now: float = NOW, **more: Any) -> Any:
    return store.at(now).dispatch(limit=100, cap=1000, **more)


@pytest.mark.parametrize("score", ["-inf", "-1", "0", "-1e300"])
def test_a_score_before_1970_or_of_zero_is_due_now(
    send: Send, store: Store, state: State, raw: Any, score: str
) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {MEMBER: score})
    step = send(dispatch(store))
    assert (step.moved, step.sleep, step.buried) == ([NOW], math.inf, [])
    assert float(state()["job:a"]["due"]) == NOW


@pytest.mark.parametrize(("score", "sleep"), [("+inf", math.inf), ("1e300", 1e300), ("1900000000.5", 0.5)])
def test_a_later_score_is_not_due(send: Send, store: Store, state: State, raw: Any, score: str, sleep: float) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {MEMBER: score})
    before = state()
    step = send(dispatch(store))
    assert (step.moved, step.sleep) == ([], pytest.approx(sleep))
    assert state() == before


@pytest.mark.parametrize("microseconds", [1, 2, 10, 999_999])
def test_a_job_is_dispatched_not_a_microsecond_early_or_late(send: Send, store: Store, microseconds: int) -> None:
    due = (NOW * 1_000_000 + microseconds) / 1_000_000
    send(store.enqueue([New("a", b'{"task":"t"}', due=due)]))
    just_before = (NOW * 1_000_000 + microseconds - 1) / 1_000_000
    assert send(dispatch(store, just_before)).moved == []
    assert send(dispatch(store, due)).moved == [due]


def test_redis_clock_counts_when_no_time_is_given(send: Send, store: Store, raw: Any) -> None:
    whole, micro = raw.time()
    (due,) = send(store.enqueue([New("a", b'{"task":"t"}', delay=3600.0)]))
    assert 3600 <= due - (whole + micro / 1e6) < 3610
    step = send(store.dispatch(limit=10, cap=1000))
    assert step.moved == []
    assert 3590 < step.sleep <= 3600


def test_null_is_absent_in_an_inline_job(send: Send, store: Store, state: State, raw: Any) -> None:
    member = '{"task":"t","id":"a","priority":null,"group":null}'
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {member: 0})
    send(dispatch(store))
    assert state()["job:a"] == {"payload": member, "due": "1900000000.000000"}


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ('{"task":"t","id":["a"]}', "the id of the inline job is not a string"),
        ('{"task":"t","group":7}', "the group of the inline job is not a string"),
        ('{"task":"t","id":""}', "A-Z a-z 0-9"),
        ('{"task":"t","id":"a\\u0000b"}', "A-Z a-z 0-9"),
        ('{"task":"t","priority":true}', "from 0 to 9"),
        ('{"task":"t","priority":-1}', "from 0 to 9"),
        ('{"task":"t","priority":10}', "from 0 to 9"),
        ('{"task":"t","priority":[5]}', "from 0 to 9"),
        ('{"task":"t","group":"' + "g" * 201 + '"}', "more than 200 bytes"),
        ("{", "not valid JSON"),
        ("{}x", "not valid JSON"),
    ],
)
def test_an_invalid_member_is_dead_with_its_record_and_the_next_job_moves(
    send: Send, store: Store, state: State, raw: Any, member: str, reason: str
) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {member: 0})
    send(store.enqueue([New("next", b'{"task":"t"}', due=NOW)]))
    step = send(dispatch(store))
    ((job_id, stored),) = step.buried
    after = state()
    assert reason in stored
    assert (after["ready"], after["dead"], "schedule" in after) == (["next"], {job_id: NOW}, False)
    assert (after[f"job:{job_id}"]["payload"], after[f"job:{job_id}"]["reason"]) == (member, stored)


def test_the_canary_leaves_nothing(send: Send, store: Store, state: State) -> None:
    send(dispatch(store, canary="d1"))
    assert state() == {}
