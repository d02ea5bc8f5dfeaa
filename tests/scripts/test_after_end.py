"""Recurrences that count their interval from the end of each run, script by script."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.jobs.job import Buried, Done, FetchedJob, Retried
from evsched.recurrence.look_ahead import counted_from
from evsched.recurrence.recurrence import Declared, Occurrence, read_declared, read_recurrence
from evsched.store.operator_calls import Violation
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

NAME = "r"
EVERY = 30.0
INF = float("inf")


@pytest.fixture(autouse=True)
def declared(send: Send, store: Store) -> None:
    send(store.declare(Declared(name=NAME, rule="every 30", payload=b'{"task":"t"}', after="end")))


def step(send: Send, store: Store, now: float) -> list[str]:
    """Do as a dispatcher does at that time; return the ids that it put on the schedule."""
    put = list[str]()
    agenda = send(store.at(now).agenda(15, 9))
    for name, seen, fields in agenda.rows:
        plan = read_recurrence(read_declared(name, fields)).plan(float(seen), now, 15)
        put += send(store.at(now).recur(name, seen, plan.put, next_=plan.next, missed=plan.missed)) or []
    return put


def fetch(send: Send, store: Store, now: float) -> FetchedJob:
    send(store.at(now).dispatch(limit=9, cap=1000))
    (job,) = send(store.at(now).start("w", (), hold=9, lease=99)).jobs
    return job


def complete(send: Send, store: Store, job: FetchedJob, now: float) -> None:
    assert send(store.at(now).complete("w", [(job, Done(b"null", 0, False))])) == []


def first_run(send: Send, store: Store) -> FetchedJob:
    """Run the first occurrence, an interval after the declaration."""
    assert step(send, store, NOW) == []
    assert send(store.next_planned(NAME)) == NOW + EVERY
    assert step(send, store, NOW + EVERY - 15) == [f"{NAME}@{NOW + EVERY:.0f}"]
    return fetch(send, store, NOW + EVERY)


@pytest.mark.parametrize("seconds", [1.5, 300])
def test_the_next_run_is_an_interval_after_the_end_of_the_one_before(
    send: Send, store: Store, state: State, seconds: float
) -> None:
    job = first_run(send, store)
    end = NOW + EVERY + seconds
    complete(send, store, job, end)
    assert state()["recurrences"] == {NAME: end + EVERY}
    assert step(send, store, end + EVERY - 15.1) == []
    (job_id,) = step(send, store, end + EVERY - 14.9)
    assert state()["schedule"] == {job_id: end + EVERY}
    assert job_id == f"{NAME}@{end + EVERY:.3f}".rstrip("0").rstrip(".")


def test_no_occurrence_is_made_while_one_runs(send: Send, store: Store, state: State) -> None:
    job = first_run(send, store)
    looks = 0
    for second in range(0, 600, 5):
        before = send(store.next_planned(NAME))
        assert step(send, store, NOW + EVERY + second) == []
        looks += send(store.next_planned(NAME)) != before
    assert looks <= 600 / 60 + 1  # it does not poll
    assert "missed" not in state()[f"recurrence:{NAME}"]
    complete(send, store, job, NOW + 700)
    assert state()["recurrences"] == {NAME: NOW + 700 + EVERY}


def test_record_names_the_occurrence_that_the_next_one_follows(send: Send, store: Store) -> None:
    def counted() -> list[str]:
        return counted_from(send(store.recurrence(NAME)))

    assert counted() == []
    step(send, store, NOW)
    (first,) = step(send, store, NOW + EVERY - 15)
    assert counted() == [first]  # on the schedule
    job = fetch(send, store, NOW + EVERY)
    assert counted() == [first]
    step(send, store, NOW + EVERY + 50)
    assert counted() == [first]
    complete(send, store, job, NOW + 100)
    assert counted() == []
    (second,) = step(send, store, NOW + 100 + EVERY)
    assert counted() == [second]


@pytest.mark.parametrize("how", ["bury", "cancel"])
def test_every_kind_of_end_starts_the_interval(send: Send, store: Store, state: State, how: str) -> None:
    if how == "bury":
        send(store.at(NOW + 50).bury("w", [(first_run(send, store), Buried("no", False))]))
    else:
        step(send, store, NOW)
        step(send, store, NOW + EVERY)
        send(store.at(NOW + 50).cancel(f"{NAME}@{NOW + EVERY:.0f}"))
    assert state()["recurrences"] == {NAME: NOW + 50 + EVERY}


def test_retry_does_not_count_as_the_end_of_a_run(send: Send, store: Store, state: State) -> None:
    job = first_run(send, store)
    before = state()["recurrences"]
    send(store.at(NOW + 40).retry("w", [(job, Retried(5, "no"))]))
    assert state()["recurrences"] == before
    complete(send, store, fetch(send, store, NOW + 45), NOW + 50)
    assert state()["recurrences"] == {NAME: NOW + 50 + EVERY}


def test_recurrence_continues_after_a_client_deletes_its_job(send: Send, store: Store, raw: Any) -> None:
    """As docs/protocol.md says how to cancel, or because an older worker ended the run."""
    step(send, store, NOW)
    (job_id,) = step(send, store, NOW + EVERY)
    raw.zrem(f"evsched:{{{store.queue}}}:schedule", job_id)
    raw.delete(f"evsched:{{{store.queue}}}:job:{job_id}")
    assert step(send, store, NOW + EVERY + 44) == []
    assert step(send, store, NOW + EVERY + 46) == [f"{NAME}@{NOW + EVERY + 60:.0f}"]


def test_a_run_by_hand_moves_the_next_one_unless_that_is_on_the_schedule(
    send: Send, store: Store, state: State
) -> None:
    step(send, store, NOW)
    send(store.at(NOW + 1).trigger(NAME, f"{NOW + 1:.6f}"))
    complete(send, store, fetch(send, store, NOW + 1), NOW + 2)
    assert state()["recurrences"] == {NAME: NOW + 2 + EVERY}
    (job_id,) = step(send, store, NOW + 2 + EVERY - 15)
    send(store.at(NOW + 18).trigger(NAME, f"{NOW + 18:.6f}"))
    complete(send, store, fetch(send, store, NOW + 18), NOW + 19)
    assert state()["schedule"] == {job_id: NOW + 2 + EVERY}
    assert send(store.next_planned(NAME)) == NOW + 2 + EVERY + 60


@pytest.mark.parametrize("how", ["paused", "retired", "removed", "its count is reached"])
def test_end_of_a_run_does_not_restart_a_stopped_recurrence(send: Send, store: Store, state: State, how: str) -> None:
    if how == "its count is reached":
        send(store.declare(Declared(name=NAME, rule="every 30", payload=b'{"task":"t"}', after="end", count=1)))
    elif how == "retired":
        revision = send(store.at(NOW).register("app", "content")).revision
        one = Declared(name=NAME, rule="every 30", payload=b'{"task":"t"}', after="end")
        send(store.declare(one, "app", revision))
    job = first_run(send, store)
    if how == "paused":
        send(store.at(NOW + 40).hold(NAME, True))
    elif how == "retired":
        found = send(store.at(NOW + 40).register("app", "other"))
        send(store.at(NOW + 40).retire(NAME, "app", found.revision))
    elif how == "removed":
        send(store.remove(NAME))
    complete(send, store, job, NOW + 50)
    assert state().get("recurrences", {}) == ({} if how == "removed" else {NAME: INF})


@pytest.mark.parametrize("rule", ["@daily", "every", "every 1e3", "every 0x10", "", "every 30 30"])
def test_a_rule_that_has_no_interval_stops_no_end(send: Send, store: Store, state: State, raw: Any, rule: str) -> None:
    job = first_run(send, store)
    raw.hset(f"evsched:{{{store.queue}}}:recurrence:{NAME}", "rule", rule)
    before = state()["recurrences"]
    complete(send, store, job, NOW + 50)
    assert state()["recurrences"] == before


def test_an_older_dispatcher_runs_it_by_the_interval_alone(send: Send, store: Store) -> None:
    """Its plan knows nothing of ends: it makes an occurrence each 30 s, which `recur` refuses while one runs."""
    first_run(send, store)
    seen = f"{send(store.next_planned(NAME)):.0f}".encode()
    at = NOW + 90
    assert send(store.at(at).recur(NAME, seen, [Occurrence(f"{NAME}@{at:.0f}", at, at, 5)], next_=at + 30)) == []


def test_the_repair_releases_an_occurrence_that_waits_in_vain(send: Send, store: Store, state: State, raw: Any) -> None:
    """Its recurrence had overlap "queue" before, and the job it waited for was deleted."""
    root, waiting = f"evsched:{{{store.queue}}}:", f"{NAME}@6"
    raw.hset(f"{root}recurrence:{NAME}", mapping={"waiting": waiting})
    raw.hset(f"{root}job:{waiting}", mapping={"payload": '{"task":"t"}', "planned": 6, "recurrence": NAME})
    raw.zadd(f"{root}schedule", {waiting: INF})
    raw.zadd(f"{root}recurrences", {NAME: NOW})
    found = Violation(waiting.encode(), "stuck", NAME)
    assert send(store.at(NOW).mend([found])) == [(waiting.encode(), "stuck")]
    assert state()["schedule"] == {waiting: 6.0}
