"""The gate, script by script: which jobs pass or wait, and when to look again. The random walks cover the rest."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import pytest

from evsched import keys
from evsched.client.explain import explain
from evsched.errors import StoreRefused
from evsched.jobs.job import Buried, Done, FetchedJob
from evsched.store.client_calls import New
from evsched.store.gate_limits import Limits
from evsched.store.store import Store
from evsched.transport.call import Call
from tests.scripts.conftest import NOW, Send, State, status_of
from tests.support.patience import PATIENCE

DONE = Done(b"null", 60, False)


def due(send: Send, store: Store, ids: list[str], **more: Any) -> float:
    """Bring jobs to the gate; return how long a dispatcher may sleep then."""
    send(store.enqueue([New(name, b'{"task":"t"}', due=NOW, **more) for name in ids]))
    return send(store.at(NOW).dispatch(limit=999, cap=1000)).sleep


def fetch(send: Send, store: Store, hold: int = 999, now: float = NOW, worker: str = "w") -> list[FetchedJob]:
    return send(store.at(now).start(worker, (), hold=hold, lease=15)).jobs


def names(count: int, prefix: str = "a") -> list[str]:
    return [f"{prefix}{n:03}" for n in range(count)]


def test_no_more_than_the_concurrency_pass_and_each_end_lets_one_more(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({"concurrency": 5}))
    assert due(send, store, names(20)) == math.inf  # the end of a job opens the gate: no time is known
    assert len(state()["ready"]) == 5
    jobs = fetch(send, store)
    assert [job.id for job in jobs] == names(5)
    assert fetch(send, store, worker="v") == []
    assert send(store.at(NOW).complete("w", [(jobs[0], DONE), (jobs[1], DONE)])) == []
    assert state()["ready"] == names(20)[5:7]
    send(store.at(NOW).requeue("w", "it died"))
    assert len(state()["ready"]) == 5
    assert state()["in_flight"]["*"] == "5"


@pytest.mark.parametrize("end", ["buried", "cancelled", "finished"])
def test_a_job_that_ends_when_it_is_to_start_lets_one_more_pass(
    send: Send, store: Store, state: State, raw: Any, end: str
) -> None:
    send(store.at(NOW).limit({"concurrency": 1}))
    due(send, store, names(2))
    root = f"evsched:{{{store.queue}}}:"
    raw.lmove(f"{root}ready", f"{root}processing:w", "LEFT", "RIGHT")
    if end == "buried":
        raw.delete(f"{root}job:a000")
    else:
        raw.hset(f"{root}job:a000", "stop" if end == "cancelled" else "finished", str(NOW))
    assert send(store.at(NOW).start("w", ["a000"], hold=1, lease=15)).jobs == []
    assert (state()["ready"], "processing:w" in state()) == (["a001"], False)


def test_a_limit_counts_jobs_that_passed_before_it_was_set(send: Send, store: Store, state: State) -> None:
    due(send, store, names(30))
    jobs = fetch(send, store, hold=10)
    send(store.at(NOW).limit({"concurrency": 3}))
    assert state()["in_flight"]["*"] == "26"
    for job in jobs:
        send(store.at(NOW).complete("w", [(job, DONE)]))
    assert state()["in_flight"]["*"] == "16"
    fetched = fetch(send, store)
    assert len(fetched) == 16
    send(store.at(NOW).complete("w", [(job, DONE) for job in fetched]))
    assert len(fetch(send, store)) == 3


def test_a_job_in_two_lists_is_counted_once(send: Send, store: Store, state: State, raw: Any) -> None:
    """It was scheduled again between BLMOVE and start; the end of its one run takes it out of the count."""
    root = f"evsched:{{{store.queue}}}:"
    send(store.at(NOW).limit({"concurrency": 5}))
    for worker in "wv":
        send(store.at(NOW).heartbeat(worker, 15, fresh=True))
        raw.zadd(f"{root}schedule", {"a": 0})
        due(send, store, ["a"] if worker == "w" else [])
        assert raw.lmove(f"{root}ready", f"{root}processing:{worker}", "LEFT", "RIGHT") == b"a"
    (first,) = send(store.at(NOW).start("w", ["a"], hold=1, lease=15)).jobs
    assert send(store.at(NOW).complete("w", [(first, DONE)])) == []
    assert send(store.recount()) == []
    assert send(store.at(NOW).start("v", ["a"], hold=1, lease=15)).jobs == []
    assert state()["in_flight"] == {"*": "0"}


def test_without_a_limit_nothing_is_counted_any_more(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({"concurrency": 1}))
    due(send, store, names(3))
    assert "in_flight" in state()
    assert send(store.at(NOW).limit({"concurrency": None})) == Limits()
    assert not {"in_flight", "limits"} & state().keys()
    assert len(state()["ready"]) == 3


def test_a_group_at_its_limit_does_not_block_others(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({"concurrency:alice": 2}))
    due(send, store, names(50, "a"), group="alice")
    due(send, store, names(3, "b"), group="bob")
    jobs = fetch(send, store)
    assert sorted(job.id for job in jobs) == ["a000", "a001", "b000", "b001", "b002"]
    assert len(state()["backlog:alice"]) == 48
    assert status_of(send, store, "a005").place == "backlog"
    ended = next(job for job in jobs if job.id == "a001")
    send(store.at(NOW).complete("w", [(ended, DONE)]))
    assert state()["ready"] == ["a002"]
    assert send(store.at(NOW).cancel("a003")).place == "backlog"
    assert send(store.at(NOW).reschedule("a004", NOW + 9)) == NOW + 9
    send(store.at(NOW).limit({"concurrency:alice": None}))
    assert len(fetch(send, store)) == 46
    assert not {"backlog", "backlog:alice", "throttled", "fair", "in_flight"} & state().keys()


def test_groups_whose_limits_were_deleted_by_hand_are_reopened(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    send(store.at(NOW).limit({"concurrency:alice": 1}))
    due(send, store, names(9), group="alice")
    raw.delete(f"evsched:{{{store.queue}}}:limits")
    send(store.at(NOW).dispatch(limit=9, cap=9))
    assert len(state()["ready"]) == 9
    raw.hset(f"evsched:{{{store.queue}}}:limits", mapping={"concurrency": "many", "rate": "nan", "rate:alice": "-1"})
    assert len(fetch(send, store)) == 9


def test_a_rate_passes_in_packets_and_says_when_the_next_does(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({"rate": 200}))
    sleep = due(send, store, names(300))
    # A burst is what 0.1 s allow, 20. Ready holds 16 of them. The other 4 grow to a packet of 10 in 30 ms.
    assert len(state()["ready"]) == 16
    assert sleep == pytest.approx(0.03, abs=1e-5)
    assert len(fetch(send, store)) == 16
    assert send(store.at(NOW + 0.02).dispatch(limit=9, cap=9)).sleep == pytest.approx(0.01, abs=1e-5)
    assert "ready" not in state()
    assert send(store.at(NOW + 0.03).dispatch(limit=9, cap=9)).sleep == pytest.approx(0.05, abs=1e-5)
    assert len(state()["ready"]) == 10


def test_a_rate_with_a_burst_of_one_is_even(send: Send, store: Store) -> None:
    send(store.at(NOW).limit({"rate": 10, "burst": 1}))
    due(send, store, names(5))
    assert len(fetch(send, store)) == 1
    assert fetch(send, store, now=NOW + 0.099) == []
    assert len(fetch(send, store, now=NOW + 0.1)) == 1


def test_clock_set_back_closes_a_rate_no_longer_than_its_burst(send: Send, store: Store) -> None:
    send(store.at(NOW).limit({"rate": 1, "burst": 2}))
    due(send, store, names(9))
    assert len(fetch(send, store)) == 2
    assert fetch(send, store) == []
    assert len(fetch(send, store, now=NOW - 7200)) == 2
    assert fetch(send, store, now=NOW - 7200) == []


def test_group_with_a_far_opening_time_is_reopened_after_a_clock_set_back(
    send: Send, store: Store, state: State
) -> None:
    send(store.at(NOW).limit({"rate:alice": 5, "burst:alice": 1}))
    due(send, store, names(9), group="alice")
    assert len(fetch(send, store)) == 1
    assert fetch(send, store, now=NOW - 3600) == []  # the group is looked at an hour later, by this clock
    sentence = "the gate is closed to group alice no longer: the job passes when a dispatcher checks the group again"
    assert explain(store.queue, send(store.at(NOW - 3600).explain("a008"))).sentence == sentence
    send(store.at(NOW - 3600).rewind(15.0, 0, 10))
    assert state()["throttled"] == {"alice": 0.0}
    assert send(store.at(NOW - 3600).dispatch(limit=9, cap=1000)).sleep < 1
    assert len(fetch(send, store, now=NOW - 3600)) == 1


def test_each_group_without_a_limit_of_its_own_has_the_default(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({"concurrency:*": 2, "concurrency:bob": 3, "weight:carol": 2}))
    for group in ("alice", "bob", "carol", "@recurring"):
        due(send, store, names(5, group.strip("@")[0]), group=group)
    due(send, store, names(5, "x"))
    passed = Counter(job.id[0] for job in fetch(send, store))
    assert passed == {"a": 2, "b": 3, "c": 2, "r": 5, "x": 5}
    sentence = explain(store.queue, send(store.at(NOW).explain("a004"))).sentence
    assert sentence == "the gate is closed to group alice by the concurrency limit: 2 of 2"
    send(store.at(NOW).limit({"concurrency:*": 4}))
    assert sorted(state()["ready"]) == ["a002", "a003", "c002", "c003"]
    send(store.at(NOW).limit({"concurrency:*": None}))
    assert {job.id[0] for job in fetch(send, store)} == {"a", "c"}
    assert list(state()["throttled"]) == ["bob"]


def test_the_default_rate_is_each_groups_own_and_its_burst_belongs_to_it(
    send: Send, store: Store, state: State
) -> None:
    send(store.at(NOW).limit({"rate:*": 10, "burst:*": 3, "rate:bob": 40}))
    for group in ("alice", "bob"):
        due(send, store, names(9, group[0]), group=group)
    assert Counter(job.id[0] for job in fetch(send, store)) == {"a": 3, "b": 4}  # bob's burst is a tenth of his rate
    assert Counter(job.id[0] for job in fetch(send, store, now=NOW + 0.1001)) == {"a": 1, "b": 4}


def test_a_group_has_its_own_rate(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).limit({"rate:alice": 100, "burst:alice": 5}))
    due(send, store, names(20, "a"), group="alice")
    sleep = due(send, store, names(4, "b"))
    jobs = fetch(send, store)
    assert sorted(job.id for job in jobs) == [*names(5, "a"), *names(4, "b")]
    assert sleep == pytest.approx(0.05, abs=1e-5)
    assert send(store.at(NOW + 0.06).dispatch(limit=9, cap=9)).sleep == pytest.approx(0.04, abs=0.02)
    assert len(state()["ready"]) == 5


def test_a_new_opening_time_is_published_to_dispatchers(send: Send, store: Store, raw: Any) -> None:
    send(store.at(NOW).limit({"rate": 10, "burst": 2, "concurrency": 1}))
    due(send, store, names(5))
    (job,) = fetch(send, store)
    with raw.pubsub() as subscription:
        subscription.subscribe(f"evsched:{{{store.queue}}}:gate")
        subscription.get_message(timeout=PATIENCE)
        send(store.at(NOW).complete("w", [(job, DONE)]))  # lets the second pass, and that closes the rate
        assert float(subscription.get_message(timeout=PATIENCE)["data"]) == pytest.approx(NOW + 0.1)
        send(store.at(NOW).complete("w", [(job, DONE)]))  # changes nothing
        assert subscription.get_message() is None


def test_weights_are_shares(send: Send, store: Store) -> None:
    send(store.at(NOW).limit({"weight:c": 2}))
    send(store.at(NOW).pause())  # so that all of them are in the backlog before the first passes
    for group in "abc":
        for at in range(0, 300, 100):
            send(store.enqueue([New(f"{group}{n}", b"{}", due=NOW, group=group) for n in range(at, at + 100)]))
    for _ in range(4):
        send(store.at(NOW).dispatch(limit=250, cap=1000))
    send(store.at(NOW).resume())
    order = list[str]()
    while jobs := fetch(send, store, hold=8):
        order += [job.id[0] for job in jobs]
        send(store.at(NOW).complete("w", [(job, DONE) for job in jobs]))
    assert len(order) == 900
    # Only while the heavy group has jobs left: its 300 are half of the first 600.
    for at in range(0, 200, 40):
        window = order[at : at + 400]
        assert [window.count(group) / 400 for group in "abc"] == pytest.approx([0.25, 0.25, 0.5], abs=0.05 * 0.25)


def test_a_flood_of_a_high_priority_does_not_set_back_lower_priorities(send: Send, store: Store) -> None:
    due(send, store, names(60, "a"), group="alice")
    due(send, store, names(60, "x"), group="bob", priority=9)
    assert {job.id[0] for job in fetch(send, store, hold=76)} == {"a", "x"}
    due(send, store, names(1, "c"), group="carol")
    order = [job.id for job in fetch(send, store, worker="v")]
    assert order.index("c000") <= 18  # behind what was in ready, and alice's next


def test_priorities_pass_strictly_in_order(send: Send, store: Store) -> None:
    send(store.enqueue([New(f"j{n}", b"{}", due=NOW, priority=n % 10) for n in range(500)]))
    for _ in range(3):
        send(store.at(NOW).dispatch(limit=200, cap=1000))
    passed = [int(job.id[1:]) % 10 for job in fetch(send, store)]
    assert len(passed) == 500
    assert passed[16:] == sorted(passed[16:], reverse=True)


def test_pause_holds_all_jobs_and_resume_releases_them_in_order(send: Send, store: Store, state: State) -> None:
    due(send, store, names(30))
    held = fetch(send, store, hold=2)
    before = state()
    since, back, left = send(store.at(NOW + 1).pause())
    assert (since, back, left) == (NOW + 1, 16, 0)
    assert send(store.at(NOW + 2).pause())[0] == NOW + 1
    assert "ready" not in state()
    assert fetch(send, store, worker="v") == []
    due(send, store, names(3, "z"))
    send(store.at(NOW).requeue("w", "it died"))
    assert "ready" not in state()
    assert send(store.at(NOW).resume()) == NOW + 1
    assert send(store.at(NOW).resume()) is None
    order = [job.id for job in fetch(send, store)]
    assert {*order[:18]} == {*before["ready"], *(job.id for job in held)}
    assert [name for name in order if name in before["ready"]] == before["ready"]
    assert order[18:] == [*names(30)[18:], *names(3, "z")]


def test_pause_with_an_end_is_over_then_and_the_dispatcher_knows_when(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).pause(until=NOW + 60, why="the provider is down"))
    send(store.at(NOW).enqueue([New("a", b"{}", due=NOW)]))
    step = send(store.at(NOW).dispatch(limit=9, cap=99))
    assert (step.sleep, step.opens) == (60, 60)
    stats = send(store.at(NOW + 59).queue_stats())
    assert (stats.paused, stats.paused_until, stats.paused_why) == (NOW, NOW + 60, "the provider is down")
    over = send(store.at(NOW + 60).queue_stats())
    assert (over.paused, over.paused_until, over.paused_why) == (None, None, None)
    assert send(store.at(NOW + 59.99).dispatch(limit=9, cap=99)).opens == pytest.approx(0.01, abs=1e-5)
    assert "ready" not in state()
    send(store.at(NOW + 60).dispatch(limit=9, cap=99))
    assert state()["ready"] == ["a"]
    assert "limits" not in state()
    assert send(store.at(NOW + 60).resume()) is None


def test_a_sleeping_dispatcher_receives_the_end_of_a_pause(send: Send, store: Store, raw: Any) -> None:
    gate = raw.pubsub(ignore_subscribe_messages=True)
    gate.subscribe(keys.gate(store.queue))
    assert gate.get_message(timeout=PATIENCE) is None  # the confirmation
    send(store.at(NOW).pause(until=NOW + 60))
    assert float(gate.get_message(timeout=PATIENCE)["data"]) == NOW + 60
    gate.close()


def test_another_pause_replaces_the_end_and_the_reason_of_the_first(send: Send, store: Store) -> None:
    send(store.at(NOW).pause(until=NOW + 60, why="first"))
    assert send(store.at(NOW + 1).pause())[0] == NOW
    limits = send(store.limits())
    assert (limits.paused, limits.paused_until, limits.paused_why) == (NOW, None, None)
    send(store.at(NOW + 1).pause(until=NOW + 60))
    assert send(store.at(NOW + 60).pause())[0] == NOW + 60, "the first is over, though no script has run since"


def test_malformed_pause_end_means_no_end(send: Send, store: Store, raw: Any, state: State) -> None:
    send(store.at(NOW).pause())
    raw.hset(f"evsched:{{{store.queue}}}:limits", "paused_until", "soon")
    due(send, store, ["a"])
    assert "ready" not in state()
    assert not send(store.limits()).groups


def test_a_paused_queue_has_no_limit_of_a_group(send: Send, store: Store, raw: Any) -> None:
    """Else every script would look for the groups of each job."""
    send(store.at(NOW).pause(until=NOW + 60, why="x"))
    due(send, store, ["a"])
    assert not raw.exists(f"evsched:{{{store.queue}}}:in_flight")


def test_pause_moves_jobs_in_slices(send: Send, store: Store) -> None:
    due(send, store, names(30))
    assert send(store.at(NOW).pause(limit=10))[1:] == (10, 6)
    assert send(store.at(NOW).pause(limit=10))[1:] == (6, 0)


@pytest.mark.parametrize("place", ["schedule", "backlog", "ready", "processing", "dead"])
def test_replace_gives_a_job_another_payload_and_time(send: Send, store: Store, state: State, place: str) -> None:
    if place == "schedule":
        send(store.enqueue([New("a", b"{}", due=NOW + 5, priority=9)]))
    else:
        if place == "backlog":
            send(store.at(NOW).limit({"concurrency": 1}))
            due(send, store, ["first"])
        due(send, store, ["a"], priority=9)
        if place in ("processing", "dead"):
            (run,) = fetch(send, store)
            if place == "dead":
                send(store.at(NOW).bury("w", [(run, Buried("x", False))]))
    assert status_of(send, store, "a").place == place
    again = New("a", b'{"task":"other"}', due=NOW + 60)
    assert send(store.at(NOW).replace([again])) == [NOW + 60]
    after = state()
    assert after["schedule"]["a"] == NOW + 60
    runs = place == "processing"  # the other job then follows
    assert after["job:a"]["next_payload" if runs else "payload"] == '{"task":"other"}'
    assert ("priority" in after["job:a"]) is runs
    assert not [name for name in ("backlog", "ready", "dead") if "a" in after.get(name, ())]
    if place == "processing":
        (run,) = fetch(send, store) or [FetchedJob("a", 1, NOW, b"", run=f"1 {NOW:.6f}")]
        assert send(store.at(NOW).complete("w", [(run, DONE)])) == []
        assert status_of(send, store, "a").place == "schedule"
    send(store.at(NOW + 60).dispatch(limit=9, cap=999))
    send(store.at(NOW).limit({"concurrency": None}))
    assert b'{"task":"other"}' in [job.payload for job in fetch(send, store, now=NOW + 60)]


@pytest.mark.parametrize("place", ["schedule", "ready", "processing"])
def test_keep_leaves_a_job_unchanged_and_returns_its_due(send: Send, store: Store, state: State, place: str) -> None:
    send(store.enqueue([New("a", b"{}", due=NOW)]))
    if place != "schedule":
        send(store.at(NOW).dispatch(limit=9, cap=99))
    if place == "processing":
        fetch(send, store)
    before = state()
    again = [New("a", b'{"task":"other"}', due=NOW + 60), New("b", b"{}", due=NOW + 7)]
    assert send(store.at(NOW).enqueue(again, keep=True)) == [NOW, NOW + 7]
    after = state()
    assert after.pop("job:b") == {"payload": "{}", "created": f"{NOW:.0f}"}
    assert after["schedule"].pop("b") == NOW + 7
    assert {name: value for name, value in after.items() if value} == before


def test_client_waiting_for_a_replaced_job_gets_the_new_outcome(send: Send, store: Store, state: State) -> None:
    send(store.enqueue([New("a", b"{}", due=NOW)]))
    send(store.ask("a"))
    send(store.at(NOW).replace([New("a", b"{}", due=NOW)]))
    send(store.at(NOW).dispatch(limit=9, cap=99))
    (run,) = fetch(send, store)
    send(store.at(NOW).complete("w", [(run, DONE)]))
    assert json.loads(state()["reply:a"][0])["outcome"] == "done"


def test_expired_is_an_outcome_of_its_own(send: Send, store: Store, state: State) -> None:
    due(send, store, ["a"])
    (run,) = fetch(send, store)
    send(store.at(NOW).bury("w", [(run, Buried("expired 3 s before", True, "expired"))]))
    assert state()["job:a"]["outcome"] == "expired"
    assert "a" in state()["dead"]
    assert json.loads(state()["reply:a"][0])["outcome"] == "expired"


def test_limits_of_a_wrong_type_stop_every_verb_before_it_writes(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    due(send, store, names(2))
    (run, _) = fetch(send, store)
    raw.set(f"evsched:{{{store.queue}}}:limits", "wrong")
    before = state()
    calls: list[Call[Any]] = [
        store.complete("w", [(run, DONE)]),
        store.dispatch(limit=9, cap=99),
        store.cancel("a001"),
    ]
    for call in calls:
        with pytest.raises(StoreRefused, match="WRONGTYPE"):
            send(call)
    assert state() == before


def test_the_state_of_very_many_groups_is_swept(send: Send, store: Store, raw: Any) -> None:
    for at in range(0, 12000, 1000):
        send(store.enqueue([New(f"g{n}", b"{}", due=NOW, group=f"g{n}") for n in range(at, at + 1000)]))
        for _ in range(5):
            send(store.at(NOW).dispatch(limit=250, cap=999))
        jobs = fetch(send, store, hold=900)
        send(store.at(NOW).complete("w", [(job, Done(b"null", 0, False)) for job in jobs]))
    order = f"evsched:{{{store.queue}}}:fair"
    assert raw.zcard(f"evsched:{{{store.queue}}}:backlog") > 0
    assert raw.hlen(order) < 12000


def test_a_job_due_during_another_groups_flood_does_not_wait_behind_it(send: Send, store: Store) -> None:
    send(store.enqueue([New(f"f{n:03}", b"{}", due=NOW, group="flood") for n in range(900)]))
    send(store.enqueue([New("late", b"{}", due=NOW + 1), New("own", b"{}", due=NOW + 1, group="flood")]))
    moved = send(store.at(NOW + 2).dispatch(limit=250, cap=99)).moved
    assert moved == [NOW] * 250 + [NOW + 1]
    assert status_of(send, store, "late").place in ("backlog", "ready")
    assert status_of(send, store, "own").place == "schedule"


def test_key_of_another_type_for_a_group_that_waits_leaves_its_jobs_on_the_schedule(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    send(store.at(NOW).limit({"concurrency:g": 1}))
    raw.set(f"evsched:{{{store.queue}}}:backlog:g", "x")
    due(send, store, ["a", "b"], group="g")
    due(send, store, ["c"])
    after = state()
    assert after["ready"] == ["a", "c"]
    assert after["schedule"].keys() == {"b"}
    assert "parked" not in after["job:b"]


@pytest.mark.parametrize("payload", [None, b'{"task":"t","args":["' + b"x" * 8_400_000 + b'"]}'], ids=["none", "long"])
def test_job_without_a_readable_payload_counts_in_no_task(
    send: Send, store: Store, state: State, raw: Any, payload: bytes | None
) -> None:
    key, most = f"evsched:{{{store.queue}}}:job:b", raw.config_get("proto-max-bulk-len")
    send(store.at(NOW).limit({"concurrency": 1, "concurrency:task:t": 9}))
    due(send, store, ["a", "b"])
    raw.hdel(key, "payload")
    raw.hdel(f"evsched:{{{store.queue}}}:light", "b")
    if payload is not None:
        raw.config_set("proto-max-bulk-len", 9_000_000)
        raw.hset(key, "payload", payload)
        raw.config_set("proto-max-bulk-len", most["proto-max-bulk-len"])
    assert state()["in_flight"] == {"a": "task:t", "#task:t": "1", "*": "1"}
    (job,) = fetch(send, store, hold=1)
    send(store.at(NOW).complete("w", [(job, DONE)]))
    assert state()["in_flight"] == {"b": "", "#": "1", "*": "1"}
