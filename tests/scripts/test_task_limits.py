"""The limits of tasks: a job counts in the group of its task and in its own group."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from evsched.client.explain import explain
from evsched.jobs.job import Done
from evsched.store.client_calls import New
from evsched.store.gate_limits import Limits
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

DONE = Done(b"null", 60, False)
LIMIT = "concurrency:task:slow"


def payload(task: Any, size: int = 0) -> bytes:
    return json.dumps({"args": ["x" * size], "task": task}, separators=(",", ":")).encode()


def due(send: Send, store: Store, jobs: dict[str, bytes], **options: Any) -> float:
    """Bring jobs to the gate; return how long a dispatcher may sleep then."""
    send(store.enqueue([New(name, text, due=NOW, **options) for name, text in jobs.items()]))
    return send(store.at(NOW).dispatch(limit=999, cap=300_000)).sleep


def start(send: Send, store: Store, worker: str = "w") -> dict[str, Any]:
    return {job.id: job for job in send(store.at(NOW).start(worker, (), hold=99, lease=15)).jobs}


def test_task_concurrency_bounds_its_jobs_and_each_end_admits_one(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({LIMIT: 2}))
    due(send, store, {f"s{n}": payload("slow") for n in range(5)} | {f"q{n}": payload("quick") for n in range(3)})
    jobs = start(send, store)
    assert sorted(jobs) == ["q0", "q1", "q2", "s0", "s1"]
    assert start(send, store) == {}
    assert explain(store.queue, send(store.at(NOW).explain("s4"))).sentence == (
        "the gate is closed to task slow by the concurrency limit: 2 of 2"
    )
    assert send(store.at(NOW).complete("w", [(jobs["s0"], DONE), (jobs["q0"], DONE)])) == []
    assert list(start(send, store)) == ["s2"]
    send(store.at(NOW).limit({LIMIT: None}))
    assert list(start(send, store)) == ["s3", "s4"]
    assert not {"limits", "throttled", "in_flight", "backlog:task:slow"} & state().keys()


def test_a_job_counts_in_its_own_group_and_in_that_of_its_task(send: Send, store: Store, state: State) -> None:
    """Each limit lets two pass, and a job needs both: a job that one of them lets go may be held by the other."""
    send(store.at(NOW).limit({LIMIT: 2, "concurrency:*": 2}))
    for group in ("alice", "bob"):
        due(send, store, {f"{group}-slow{n}": payload("slow") for n in range(3)}, group=group)
        due(send, store, {f"{group}-quick{n}": payload("quick") for n in range(2)}, group=group)
    first = start(send, store)
    assert sorted(first) == ["alice-slow0", "alice-slow1", "bob-quick0", "bob-quick1"]
    counts = state()["in_flight"]
    assert {name: counts[f"#{name}"] for name in ("alice", "bob", "task:slow")} == {
        "alice": "2",
        "bob": "2",
        "task:slow": "2",
    }
    # Alice has room again, and her quick job takes it at once: her third slow job does not block it.
    send(store.at(NOW).limit({LIMIT: 1}))
    send(store.at(NOW).complete("w", [(first["alice-slow0"], DONE)]))
    assert state()["ready"] == ["alice-quick0"]
    start(send, store)
    # The task has room again, alice has none: bob's slow job takes it once bob has room.
    send(store.at(NOW).limit({LIMIT: 2}))
    assert start(send, store) == {}
    send(store.at(NOW).complete("w", [(first["bob-quick0"], DONE)]))
    assert list(start(send, store)) == ["bob-slow0"]
    assert send(store.recount()) == []


def test_all_jobs_of_limited_groups_and_tasks_run_in_any_order_of_ends(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({LIMIT: 1, "concurrency:*": 2, "concurrency:task:slower": 1}))
    for group in "abc":
        for task in ("slow", "slower", "quick"):
            due(send, store, {f"{group}-{task}-{n}": payload(task) for n in range(9)}, group=group)
    done, running = Counter[str](), start(send, store)
    while running:
        tasks, groups = (Counter(name.split("-")[part] for name in running) for part in (1, 0))
        assert max(tasks["slow"], tasks["slower"], groups["a"] - 1, groups["b"] - 1, groups["c"] - 1) <= 1
        name = sorted(running)[sum(done.values()) % len(running)]
        send(store.at(NOW).complete("w", [(running.pop(name), DONE)]))
        done[name] += 1
        running |= start(send, store)
    assert (len(done), set(done.values())) == (81, {1})
    assert not {"backlog", "throttled"} & {name for name, value in state().items() if value}


def test_jobs_that_are_ready_or_run_count_when_a_task_gets_its_first_limit(send: Send, store: Store) -> None:
    send(store.at(NOW).limit({"concurrency": 50}))  # so that jobs are counted already
    due(send, store, {f"s{n}": payload("slow") for n in range(40)})
    jobs = start(send, store)
    due(send, store, {f"t{n}": payload("slow") for n in range(40)})
    send(store.at(NOW).limit({LIMIT: 5}))
    assert send(store.recount()) == []
    ready = start(send, store)
    assert len(ready) == 10
    send(store.at(NOW).complete("w", [(job, DONE) for job in jobs.values()]))
    assert start(send, store) == {}
    send(store.at(NOW).complete("w", [(job, DONE) for job in ready.values()]))
    assert len(start(send, store)) == 5
    send(store.at(NOW).limit({"rate:task:slow": 100, LIMIT: None}))
    assert send(store.recount()) == []


def test_group_is_open_when_its_jobs_moved_before_the_first_task_limit(send: Send, store: Store, raw: Any) -> None:
    send(store.at(NOW).limit({"concurrency:a": 1}))
    due(send, store, {"q0": payload("quick"), "q1": payload("quick")}, group="a")
    assert list(start(send, store)) == ["q0"]
    raw.hset(f"evsched:{{{store.queue}}}:job:q0", "group", "b")
    send(store.at(NOW).limit({LIMIT: 5}))
    assert list(start(send, store)) == ["q1"]


def test_a_job_of_another_client_counts_too(send: Send, store: Store, raw: Any) -> None:
    """It may have escaped characters, spaces, its own id, and no record until it is due."""
    send(store.at(NOW).limit({LIMIT: 1, "concurrency:task:a/é": 1}))
    schedule = f"evsched:{{{store.queue}}}:schedule"
    same = ['{"id":"0%s", "task": "slow"}', '{"task":"s\\u006cow","id":"1%s"}']
    others = [
        '{"args":["slow"],"task":"quick","id":"2%s"}',
        '{"task":"a\\/\\u00e9","id":"3%s"}',
        '{"task":"a/é","id":"4%s"}',
    ]
    raw.zadd(schedule, {text % name: n for n, name in enumerate("ab", 1) for text in same + others})
    send(store.at(NOW).dispatch(limit=99, cap=999))
    assert sorted(start(send, store)) == ["0a", "2a", "2b", "4a"]


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b'{"task":1}', b'{"task":["slow"]}', b'"slow"', payload("other"), payload("slower")]
)
def test_a_job_of_no_limited_task_counts_in_its_own_group_alone(
    send: Send, store: Store, state: State, text: bytes
) -> None:
    send(store.at(NOW).limit({LIMIT: 1}))
    due(send, store, {"a": text}, group="alice")
    assert state()["in_flight"] == {"a": "alice", "*": "1", "#alice": "1"}


def test_a_job_whose_own_group_is_that_of_its_task_counts_once(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({LIMIT: 5}))
    due(send, store, {"a": payload("slow")}, group="task:slow")
    assert state()["in_flight"] == {"a": "task:slow", "*": "1", "#task:slow": "1"}


def test_a_rate_limits_a_task_and_the_default_of_groups_does_not(send: Send, store: Store) -> None:
    send(store.at(NOW).limit({"rate:task:slow": 100, "burst:task:slow": 3, "concurrency:*": 1, "rate:*": 1}))
    assert due(send, store, {f"s{n}": payload("slow") for n in range(9)}) == pytest.approx(0.05, abs=0.03)
    assert len(start(send, store)) == 3


def test_long_payloads_are_read_some_at_a_time(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({LIMIT: 99}))
    assert due(send, store, {f"s{n}": payload("slow", 150_000) for n in range(12)}) == 0  # more is to be done at once
    assert len(state()["ready"]) == 7
    send(store.at(NOW).dispatch(limit=9, cap=300_000))
    assert len(state()["ready"]) == 12


def test_tasks_with_limits_are_listed_for_the_gate(send: Send, store: Store, state: State) -> None:
    shown = send(store.at(NOW).limit({LIMIT: 2, "rate:task:slow": 5, "concurrency:task:b": 1, "burst:task:c": 2}))
    assert shown.groups["task:slow"] == {"concurrency": 2, "rate": 5}
    assert state()["limits"]["tasks"] == "slow}b"
    send(store.at(NOW).limit({LIMIT: None}))
    assert state()["limits"]["tasks"] == "b}slow"
    send(store.at(NOW).limit({"rate:task:slow": None, "concurrency:task:b": None}))
    assert "tasks" not in state()["limits"]
    assert send(store.at(NOW).limit({"burst:task:c": None})) == Limits()
