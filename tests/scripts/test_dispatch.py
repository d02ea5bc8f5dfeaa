"""dispatch.lua: due jobs move in order, and never early."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from evsched.errors import StoreRefused
from evsched.jobs.job import Buried, Done
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State


def jobs(*ids: str, due: float = NOW, **more: Any) -> list[New]:
    return [New(job_id, b'{"task":"t"}', due=due, **more) for job_id in ids]


def dispatch(store: Store, now: float = NOW, limit: int = 250, cap: int = 1000) -> Any:
    return store.at(now).dispatch(limit=limit, cap=cap)


def test_only_due_jobs_move_and_the_reply_says_when_the_next_is_due(send: Send, store: Store, state: State) -> None:
    send(store.enqueue([*jobs("a"), *jobs("b", due=NOW + 0.000001), *jobs("c", due=NOW + 7.25)]))
    step = send(dispatch(store))
    assert (step.now, step.moved, step.buried) == (NOW, [NOW], [])
    assert step.sleep == pytest.approx(0.000001, abs=1e-6)
    after = state()
    assert after["ready"] == ["a"]
    assert list(after["schedule"]) == ["b", "c"]
    assert send(dispatch(store, NOW + 1)).sleep == 6.25


def test_the_sleep_is_infinite_if_no_job_will_ever_be_due(send: Send, store: Store, raw: Any, queue: str) -> None:
    assert send(dispatch(store)).sleep == float("inf")
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"never": "+inf"})
    assert send(dispatch(store)).sleep == float("inf")


def test_the_second_call_changes_nothing(send: Send, store: Store, state: State) -> None:
    send(store.enqueue([*jobs("a", "b"), *jobs("c", due=NOW + 1)]))
    send(dispatch(store))
    before = state()
    assert send(dispatch(store)).moved == []
    assert state() == before


def test_a_call_is_bounded_and_reports_that_more_is_due(send: Send, store: Store, state: State) -> None:
    send(store.enqueue(jobs(*(f"j{n}" for n in range(30)))))
    step = send(dispatch(store, limit=10))
    assert (len(step.moved), step.sleep) == (10, 0)
    assert len(state()["schedule"]) == 20


def test_the_id_of_a_dead_job_whose_record_was_deleted_is_used_again(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    send(store.enqueue(jobs("a", "b")))
    send(dispatch(store))
    runs = send(store.at(NOW).start("w", (), hold=2, lease=15)).jobs
    send(store.at(NOW).bury("w", [(run, Buried("no luck", False)) for run in runs]))
    assert set(state()["dead"]) == {"a", "b"}
    raw.delete(f"evsched:{{{store.queue}}}:job:a")
    send(store.enqueue(jobs("a")))
    send(dispatch(store))
    assert (state()["ready"], set(state()["dead"])) == (["a"], {"b"})


def test_ready_is_kept_short(send: Send, store: Store, state: State) -> None:
    send(store.enqueue(jobs(*(f"j{n:02}" for n in range(40)))))
    send(dispatch(store))
    assert (len(state()["ready"]), len(state()["backlog"])) == (16, 24)


def test_priority_then_fair_shares_in_the_backlog(send: Send, store: Store, state: State) -> None:
    send(store.enqueue(jobs(*(f"fill{n:02}" for n in range(16)))))
    send(dispatch(store))
    send(
        store.enqueue(
            [
                *jobs("a1", "a2", "a3", group="alice"),
                *jobs("b1", group="bob"),
                *jobs("high", priority=9),
                *jobs("low", priority=0),
            ]
        )
    )
    send(dispatch(store))
    assert list(state()["backlog"]) == ["high", "a1", "b1", "a2", "a3", "low"]
    assert send(store.start("w", (), hold=40, lease=15)).jobs[16].id == "high"
    assert "fair" not in state()


def test_an_inline_job_becomes_a_record(send: Send, store: Store, state: State, raw: Any, queue: str) -> None:
    member = '{"task":"t","id":"x","priority":9,"group":"g"}'
    raw.zadd(f"evsched:{{{queue}}}:schedule", {member: NOW})
    send(dispatch(store))
    due = "1900000000"
    assert state() == {
        "ready": ["x"],
        "job:x": {"payload": member, "priority": "9", "group": "g", "due": due},
    }


def test_a_due_of_zero_is_now(send: Send, store: Store, state: State) -> None:
    send(store.enqueue(jobs("a", due=0)))
    send(dispatch(store))
    assert float(state()["job:a"]["due"]) == NOW


def test_a_missing_record_is_waited_for_in_growing_steps(
    send: Send, store: Store, state: State, raw: Any, queue: str
) -> None:
    schedule = f"evsched:{{{queue}}}:schedule"
    raw.zadd(schedule, {"x": NOW - 3})
    looks, now = 0, NOW
    while now - NOW < 1.5:
        step = send(dispatch(store, now))
        assert (step.moved, step.buried) == ([], [])
        looks, now = looks + 1, state()["schedule"]["x"]
    assert looks < 12
    raw.hset(f"evsched:{{{queue}}}:job:x", "payload", '{"task":"t"}')
    assert send(dispatch(store, now)).moved == [NOW - 3]
    assert state() == {"ready": ["x"], "job:x": {"payload": '{"task":"t"}', "due": "1899999997"}}


def test_a_job_whose_record_does_not_come_within_two_seconds_is_dead(
    send: Send, store: Store, state: State, raw: Any, queue: str
) -> None:
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"x": NOW})
    send(dispatch(store))
    ((job_id, reason),) = send(dispatch(store, NOW + 2)).buried
    assert (job_id, "no payload in its record" in reason) == ("x", True)
    assert state()["dead"] == {"x": NOW + 2}


@pytest.mark.parametrize("place", ["backlog", "ready", "dead", "schedule"])
def test_a_place_of_a_wrong_type_moves_nothing(
    send: Send, store: Store, state: State, raw: Any, queue: str, place: str
) -> None:
    send(store.enqueue(jobs("a", "b")))
    key = f"evsched:{{{queue}}}:{place}"
    if place == "schedule":
        raw.rename(key, f"{key}-kept")
    raw.set(key, "wrong")
    before = state()
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        send(dispatch(store))
    assert state() == before
    raw.delete(key)
    if place == "schedule":
        raw.rename(f"{key}-kept", key)
    assert len(send(dispatch(store)).moved) == 2


def test_an_id_scheduled_again_while_it_waits_is_one_job(
    send: Send, store: Store, state: State, raw: Any, queue: str
) -> None:
    ids = [f"j{n:02}" for n in range(20)]
    send(store.enqueue(jobs(*ids)))
    send(dispatch(store))
    before = state()
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"j00": NOW, "j19": NOW})
    send(dispatch(store))
    after = state()
    assert (after["ready"], list(after["backlog"])) == (before["ready"], list(before["backlog"]))


def test_an_id_scheduled_again_while_it_runs_runs_again_afterwards(
    send: Send, store: Store, state: State, raw: Any, queue: str
) -> None:
    send(store.enqueue(jobs("a")))
    send(dispatch(store))
    (run,) = send(store.start("w", (), hold=1, lease=15)).jobs
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"a": NOW})
    send(dispatch(store))
    assert "ready" not in state()
    assert state()["job:a"]["again"] == "1900000000"
    assert send(store.complete("w", [(run, Done(b"1", 0, False))])) == []
    assert state()["schedule"] == {"a": NOW}
    send(dispatch(store))
    (again,) = send(store.start("w", (), hold=1, lease=15)).jobs
    assert (again.id, again.attempt) == ("a", 1)


def test_a_dead_id_scheduled_again_leaves_the_dead_set(
    send: Send, store: Store, state: State, raw: Any, queue: str
) -> None:
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"x": NOW})
    send(dispatch(store))
    send(dispatch(store, NOW + 2))
    raw.hset(f"evsched:{{{queue}}}:job:x", "payload", '{"task":"t"}')
    raw.zadd(f"evsched:{{{queue}}}:schedule", {"x": NOW + 3})
    send(dispatch(store, NOW + 3))
    after = state()
    assert (after["ready"], "dead" in after, "reason" in after["job:x"]) == (["x"], False, False)


def test_a_false_parked_field_holds_no_job_back(send: Send, store: Store, state: State, raw: Any, queue: str) -> None:
    send(store.enqueue(jobs("a")))
    raw.hset(f"evsched:{{{queue}}}:job:a", "parked", "no such group")
    assert send(dispatch(store)).moved == [NOW]
    assert state()["ready"] == ["a"]


@pytest.mark.parametrize("front", [b"{", b"x"], ids=["inline", "an id"])
def test_a_member_too_long_to_be_a_job_is_moved_before_it_is_due(
    send: Send, store: Store, raw: Any, queue: str, front: bytes
) -> None:
    raw.zadd(f"evsched:{{{queue}}}:schedule", {front + b"x" * (1 << 20): NOW + 100, "later": NOW + 200})
    assert send(store.nearest()) == 0
    assert len(send(dispatch(store)).buried) == 1
    assert send(store.nearest()) == NOW + 200
    assert send(dispatch(store)).sleep == 200


def test_the_reply_has_the_opening_of_the_gate_beside_the_next_due(send: Send, store: Store) -> None:
    send(store.at(NOW).limit({"rate": 1, "burst": 1}))
    send(store.enqueue([*jobs("a", "b"), *jobs("c", due=NOW + 0.5)]))
    step = send(dispatch(store))
    assert step.sleep == 0.5
    assert step.opens == 1
    send(store.at(NOW).limit({"rate": None}))
    assert send(dispatch(store)).opens == float("inf")


def test_id_that_is_not_valid_is_dead_with_its_record(send: Send, store: Store, state: State, raw: Any) -> None:
    root, kept = f"evsched:{{{store.queue}}}:", "bad-" + hashlib.sha1(b"a b").hexdigest()
    raw.hset(f"{root}job:a b", mapping={"payload": "{}", "mine": "kept"})
    raw.zadd(f"{root}schedule", {"a b": NOW - 1})
    send(store.at(NOW).dispatch(limit=9, cap=1000))
    after = state()
    assert after["dead"].keys() == {kept}
    assert (after[f"job:{kept}"]["member"], after[f"job:{kept}"]["mine"]) == ("a b", "kept")
    assert "job:a b" not in after
