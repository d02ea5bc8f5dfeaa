"""Runs that an operator requests, script by script: each planned time once, in order, beside no other occurrence."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.errors import JobMissing
from evsched.jobs.job import Buried, Done, FetchedJob, Retried
from evsched.recurrence.recurrence import Declared, Occurrence, Overlap
from evsched.store.queue import IdempotentRequest
from evsched.store.recurrence_calls import Backfilled
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

NAME = "r"
DONE = Done(b"null", 0, False)
DAY = 86400
PAST = [f"{NOW - DAY * ago:.0f}" for ago in (4, 3, 2, 1)]


def declare(send: Send, store: Store, overlap: Overlap = "skip", **more: Any) -> None:
    send(store.declare(Declared(name=NAME, rule="@daily", payload=b'{"task":"t"}', overlap=overlap, **more)))


def backfill(send: Send, store: Store, *planned: str, now: float = NOW) -> Backfilled:
    return send(store.at(now).backfill(NAME, planned or PAST))


def put(send: Send, store: Store, at: float, seen: bytes = b"0", next_: float = NOW + DAY) -> str:
    """Put an occurrence of the rule on the schedule."""
    ids = send(store.at(NOW).recur(NAME, seen, [Occurrence(f"{NAME}@{at:.0f}", at, at, 5)], next_=next_))
    assert ids is not None
    return ids[0]


def dispatch(send: Send, store: Store, now: float = NOW) -> list[str]:
    return send(store.at(now).dispatch(limit=200, cap=1000)).missed


def fetch(send: Send, store: Store, now: float = NOW) -> list[FetchedJob]:
    return send(store.at(now).start("w", (), hold=200, lease=15)).jobs


def run_all(send: Send, store: Store, now: float = NOW) -> list[str]:
    """Run all jobs, and return the ids in order; at most one runs at a time unless overlap is allowed."""
    ran = list[str]()
    while True:
        dispatch(send, store, now)
        jobs = fetch(send, store, now)
        if not jobs:
            return ran
        ran += [job.id for job in jobs]
        send(store.at(now).complete("w", [(job, DONE) for job in jobs]))


def waiting(state: State) -> list[str]:
    return list(state().get(f"requests:{NAME}", {}))


# Backfill.


@pytest.mark.parametrize("overlap", ["skip", "wait", "allow"])
def test_each_planned_time_runs_once_in_order_and_a_repeat_adds_nothing(
    send: Send, store: Store, state: State, overlap: Overlap
) -> None:
    declare(send, store, overlap)
    assert backfill(send, store) == Backfilled(requested=4, waiting=0 if overlap == "allow" else 3)
    first = state()
    assert backfill(send, store) == Backfilled(known=4, waiting=0 if overlap == "allow" else 3)
    assert state() == first
    assert run_all(send, store) == [f"{NAME}@{planned}" for planned in PAST]
    ended = state()
    assert f"requests:{NAME}" not in ended
    assert [key for key in ended if key.startswith("job:")] == []
    assert backfill(send, store) == Backfilled(known=4)
    assert run_all(send, store) == []
    assert state() == ended


def test_without_overlap_one_runs_at_a_time(send: Send, store: Store, state: State) -> None:
    declare(send, store)
    backfill(send, store)
    assert list(state()["schedule"]) == [f"{NAME}@{PAST[0]}"]
    dispatch(send, store)
    (job,) = fetch(send, store)
    backfill(send, store)
    assert "schedule" not in state()
    send(store.at(NOW).retry("w", [(job, Retried(5, "no"))]))
    assert list(state()["schedule"]) == [job.id]
    dispatch(send, store, NOW + 5)
    (job,) = fetch(send, store, NOW + 5)
    send(store.at(NOW + 5).bury("w", [(job, Buried("no", False))]))
    assert list(state()["schedule"]) == [f"{NAME}@{PAST[1]}"]
    assert waiting(state) == PAST[2:]


def test_with_overlap_a_hundred_are_under_way_at_a_time(send: Send, store: Store, state: State) -> None:
    declare(send, store, "allow")
    planned = [f"{NOW - 1000 + n:.0f}" for n in range(250)]
    assert backfill(send, store, *planned) == Backfilled(requested=250, waiting=150)
    assert backfill(send, store, *planned) == Backfilled(known=250, waiting=149)  # and no other hundred
    dispatch(send, store)
    jobs = fetch(send, store)
    send(store.at(NOW).complete("w", [(job, DONE) for job in jobs[:9]]))
    assert len(waiting(state)) == 140
    assert len(run_all(send, store)) == 250 - len(jobs)
    assert waiting(state) == []


def test_backfill_leaves_out_future_and_still_pending_times(send: Send, store: Store, state: State) -> None:
    declare(send, store, "allow")
    assert backfill(send, store, f"{NOW - 1:.0f}", f"{NOW + 1:.0f}") == Backfilled(requested=1, later=1)
    # All dispatchers have been down for two days: they will judge by the misfire policy what they missed.
    put(send, store, NOW - 9 * DAY, next_=NOW - 2 * DAY)
    assert backfill(send, store) == Backfilled(requested=2, later=2)
    assert {f"{NAME}@{planned}" for planned in PAST[:2]} <= state()["schedule"].keys()


def test_a_planned_time_that_has_a_job_gets_no_other(send: Send, store: Store, state: State) -> None:
    declare(send, store, "allow")
    put(send, store, float(PAST[0]))
    assert backfill(send, store, *PAST[:2]) == Backfilled(requested=1, known=1)
    assert sorted(state()["schedule"]) == [f"{NAME}@{planned}" for planned in PAST[:2]]


def test_rule_continues_beside_a_backfill_without_losing_occurrences(send: Send, store: Store, state: State) -> None:
    declare(send, store, "skip")
    backfill(send, store)
    dispatch(send, store)
    (first,) = fetch(send, store)
    regular = put(send, store, NOW + 60)
    assert dispatch(send, store, NOW + 60) == []  # not missed: it waits, although overlap is "skip"
    assert state()["schedule"] == {regular: float("inf")}
    send(store.at(NOW + 70).complete("w", [(first, DONE)]))
    # The occurrence of the rule is due earlier, so it comes first, and the requested run goes back to its place.
    dispatch(send, store, NOW + 70)
    (second,) = fetch(send, store, NOW + 70)
    assert second.id == regular
    assert waiting(state) == PAST[1:]
    assert f"job:{NAME}@{PAST[1]}" not in state()
    send(store.at(NOW + 80).complete("w", [(second, DONE)]))
    assert run_all(send, store, NOW + 80) == [f"{NAME}@{planned}" for planned in PAST[1:]]
    assert state()[f"recurrence:{NAME}"].get("missed", "0") == "0"


def test_two_operators_at_once_get_one_run_of_each_planned_time(send: Send, store: Store) -> None:
    declare(send, store, "allow")
    counts = [backfill(send, store, *some) for some in (PAST[:3], PAST[1:], PAST[:3], PAST[1:])]
    assert [(found.requested, found.known) for found in counts] == [(3, 0), (1, 2), (0, 3), (0, 3)]
    assert sorted(run_all(send, store)) == sorted(f"{NAME}@{planned}" for planned in PAST)


def test_backfill_waits_while_its_recurrence_is_paused(send: Send, store: Store, state: State) -> None:
    declare(send, store)
    send(store.at(NOW).hold(NAME, True))
    assert backfill(send, store) == Backfilled(requested=4, waiting=4)
    assert run_all(send, store) == []
    send(store.at(NOW).hold(NAME, False))
    send(store.at(NOW).recur(NAME, b"0", [], next_=NOW + DAY))  # what a dispatcher does when it is resumed
    assert len(run_all(send, store)) == 4


def test_a_pause_stops_a_backfill_that_has_begun(send: Send, store: Store, state: State) -> None:
    declare(send, store)
    backfill(send, store)
    dispatch(send, store)
    jobs = fetch(send, store)
    send(store.at(NOW).hold(NAME, True))
    send(store.at(NOW).complete("w", [(job, DONE) for job in jobs]))
    assert run_all(send, store) == []
    assert waiting(state) == PAST[1:]


def test_a_recurrence_that_is_removed_takes_its_backfill_with_it(send: Send, store: Store, state: State) -> None:
    declare(send, store)
    backfill(send, store)
    dispatch(send, store)
    (job,) = fetch(send, store)
    send(store.remove(NAME))
    with pytest.raises(JobMissing):
        backfill(send, store)
    send(store.at(NOW).complete("w", [(job, DONE)]))
    assert run_all(send, store) == []
    assert [key for key in state() if NAME in key.partition(":")[2]] == []
    declare(send, store)
    assert backfill(send, store).requested == 4


@pytest.mark.parametrize("how", ["changed", "retired and declared again"])
def test_a_backfill_survives_a_deploy_and_the_rest_runs_with_the_new_code(
    send: Send, store: Store, state: State, how: str
) -> None:
    def deploy(content: str, *payloads: bytes) -> None:
        found = send(store.at(NOW).register("app", content))
        for payload in payloads:
            send(store.declare(Declared(name=NAME, rule="@daily", payload=payload), "app", found.revision))
        if not payloads:
            send(store.at(NOW).retire(NAME, "app", found.revision))

    deploy("old", b'{"task":"old"}')
    backfill(send, store)
    if how != "changed":
        deploy("none")
        assert run_all(send, store) == [f"{NAME}@{PAST[0]}"]  # it was due already
        with pytest.raises(JobMissing, match="the code no longer declares it"):
            backfill(send, store)
    deploy("new", b'{"task":"new"}')
    send(store.at(NOW).recur(NAME, b"0", [], next_=NOW + DAY))
    payloads = list[bytes]()
    dispatch(send, store)
    while jobs := fetch(send, store):
        payloads += [job.payload for job in jobs]
        send(store.at(NOW).complete("w", [(job, DONE) for job in jobs]))
        dispatch(send, store)
    assert payloads[-3:] == [b'{"task":"new"}'] * 3
    assert waiting(state) == []


@pytest.mark.parametrize("lost", ["cancelled", "deleted by a client"])
def test_backfill_continues_when_its_current_job_vanishes(
    send: Send, store: Store, state: State, raw: Any, lost: str
) -> None:
    declare(send, store)
    backfill(send, store)
    first = f"{NAME}@{PAST[0]}"
    if lost == "cancelled":
        dispatch(send, store)
        send(store.at(NOW).cancel(first))
    else:
        raw.zrem(f"evsched:{{{store.queue}}}:schedule", first)
        raw.delete(f"evsched:{{{store.queue}}}:job:{first}")
        assert run_all(send, store) == []
        send(store.at(NOW).recur(NAME, b"0", [], next_=NOW + DAY))
    assert run_all(send, store) == [f"{NAME}@{planned}" for planned in PAST[1:]]


def test_backfill_is_bounded_and_reports_the_omitted_times(send: Send, store: Store, raw: Any) -> None:
    declare(send, store)
    full = {f"{NOW - DAY - n:.0f}": NOW - DAY - n for n in range(19_998)}
    raw.zadd(f"evsched:{{{store.queue}}}:requests:{NAME}", full)
    found = backfill(send, store, *(f"{NOW - n:.0f}" for n in range(5, 0, -1)))
    assert (found.requested, found.left_out) == (2, 3)


# Trigger.


def trigger(send: Send, store: Store, planned: str = f"{NOW:.6f}", now: float = NOW) -> bool:
    return send(store.at(now).trigger(NAME, planned))


def test_a_trigger_makes_one_run_now_even_if_it_is_sent_twice(send: Send, store: Store, state: State) -> None:
    declare(send, store)
    assert trigger(send, store)
    before = state()
    job = before[f"job:{NAME}@{NOW:.6f}"]
    assert job == {
        "payload": '{"task":"t"}',
        "created": f"{NOW:.0f}",
        "group": "@requested",
        "recurrence": NAME,
        "planned": f"{NOW:.6f}",
    }
    assert before["schedule"] == {f"{NAME}@{NOW:.6f}": NOW}
    assert trigger(send, store)
    assert state() == before
    assert run_all(send, store) == [f"{NAME}@{NOW:.6f}"]
    assert not trigger(send, store)  # a reply that was lost until the run had ended
    assert run_all(send, store) == []
    assert state()[f"recurrence:{NAME}"]["runs"] == "1"


def test_a_trigger_keeps_priority_and_group_of_the_recurrence(send: Send, store: Store, state: State) -> None:
    declare(send, store, priority=7, group="g")
    trigger(send, store)
    job = state()[f"job:{NAME}@{NOW:.6f}"]
    assert (job["priority"], job["group"]) == ("7", "g")


def test_trigger_waits_for_the_current_run_and_precedes_a_backfill(send: Send, store: Store) -> None:
    declare(send, store)
    backfill(send, store)
    dispatch(send, store)
    (job,) = fetch(send, store)
    assert not trigger(send, store)
    assert not trigger(send, store, f"{NOW + 1:.6f}", now=NOW + 1)
    send(store.at(NOW + 2).complete("w", [(job, DONE)]))
    ran = run_all(send, store, NOW + 2)
    assert ran[:2] == [f"{NAME}@{NOW:.6f}", f"{NAME}@{NOW + 1:.6f}"]
    assert len(ran) == 5


def test_a_trigger_overlaps_where_that_is_allowed(send: Send, store: Store) -> None:
    declare(send, store, "allow")
    assert trigger(send, store)
    assert trigger(send, store, f"{NOW + 1:.6f}", now=NOW + 1)
    dispatch(send, store, NOW + 1)
    assert len(fetch(send, store, NOW + 1)) == 2


def test_a_paused_recurrence_can_be_triggered_and_stays_paused(send: Send, store: Store, state: State) -> None:
    declare(send, store)
    send(store.at(NOW).hold(NAME, True))
    assert trigger(send, store)
    assert len(run_all(send, store)) == 1
    assert state()["recurrences"] == {NAME: float("inf")}


def test_missing_recurrence_is_not_triggered(send: Send, store: Store, state: State) -> None:
    with pytest.raises(JobMissing, match="is not a recurrence of queue"):
        trigger(send, store)
    assert state() == {}


# What other clients write.


@pytest.mark.parametrize("key", ["requests", "requested"])
def test_a_key_of_a_wrong_type_stops_no_occurrence(send: Send, store: Store, state: State, raw: Any, key: str) -> None:
    declare(send, store)
    raw.set(f"evsched:{{{store.queue}}}:{key}:{NAME}", "x")
    put(send, store, NOW)
    assert len(run_all(send, store)) == 1
    send(store.remove(NAME))
    assert not raw.exists(f"evsched:{{{store.queue}}}:{key}:{NAME}")
    assert state().keys() == {"leases", "busy_leases"}


def test_run_ends_beside_a_recurrences_key_of_a_wrong_type(send: Send, store: Store, state: State, raw: Any) -> None:
    declare(send, store)
    backfill(send, store)
    dispatch(send, store)
    jobs = fetch(send, store)
    raw.set(f"evsched:{{{store.queue}}}:recurrences", "x")
    assert send(store.at(NOW).complete("w", [(job, DONE) for job in jobs])) == []
    assert waiting(state) == PAST[1:]


def test_malformed_requested_time_is_ignored(send: Send, store: Store, state: State, raw: Any) -> None:
    declare(send, store)
    raw.zadd(f"evsched:{{{store.queue}}}:requests:{NAME}", {"}:schedule": 1, "nan": 2, "": 3, PAST[0]: 4})
    trigger(send, store)
    assert run_all(send, store) == [f"{NAME}@{NOW:.6f}", f"{NAME}@{PAST[0]}"]
    assert waiting(state) == []


def test_a_request_with_a_key_triggers_once_and_has_the_first_reply(
    send: Send, store: Store, state: State, raw: Any, queue: str
) -> None:
    declare(send, store)
    request = IdempotentRequest("k", "asked")
    with pytest.raises(JobMissing):
        send(store.at(NOW).trigger_once(request, "other", f"{NOW:.6f}"))
    assert raw.exists(f"evsched:{{{queue}}}:unique:/k") == 0
    first = send(store.at(NOW).trigger_once(request, NAME, f"{NOW:.6f}"))
    assert first == ("asked", f"{NAME}@{NOW:.6f}", True)
    before = state()
    assert send(store.at(NOW + 5).trigger_once(request, NAME, f"{NOW + 5:.6f}")) == first
    assert send(store.at(NOW + 6).trigger_once(IdempotentRequest("k", "else"), NAME, f"{NOW + 6:.6f}")) == first
    assert state() == before


def test_a_recurrence_that_its_app_no_longer_declares_cannot_be_triggered(
    send: Send, store: Store, state: State
) -> None:
    send(store.at(NOW).register("app", "content", given=1))
    send(store.declare(Declared(name=NAME, rule="@daily", payload=b'{"task":"t"}'), "app", 1))
    send(store.at(NOW).retire(NAME, "app", 1))
    before = state()
    with pytest.raises(JobMissing, match="the code no longer declares it"):
        send(store.at(NOW).trigger(NAME, f"{NOW:.6f}"))
    assert state() == before
