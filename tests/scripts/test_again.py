"""An id in use that is scheduled again, with valid fields or with invalid ones."""

from __future__ import annotations

import math
from typing import Any

import pytest

from evsched.errors import JobMissing
from evsched.jobs.job import Buried, Done, FetchedJob, Retried, Snoozed
from evsched.store.client_calls import Cancelled, New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

DONE = Done(b"1", 300.0, False)

BAD: dict[str, tuple[str, str]] = {
    "priority 12": ("priority", "12"),
    "group too long": ("group", "g" * 201),
    "payload too large": ("payload", '{"task":"' + "x" * 1000 + '"}'),
}
"""What a second producer may write into the record of an id in use."""


def dispatch(store: Store, now: float = NOW) -> Any:
    return store.at(now).dispatch(limit=100, cap=1000)


def fetch(send: Send, store: Store, hold: int = 1) -> list[FetchedJob]:
    return send(store.at(NOW).start("w", (), hold=hold, lease=15)).jobs


def again(raw: Any, store: Store, due: float = NOW, *fields: tuple[str, str]) -> None:
    """Schedule "a" a second time, as any client may."""
    root = f"evsched:{{{store.queue}}}:"
    if fields:
        raw.hset(f"{root}job:a", mapping=dict(fields))
    raw.zadd(f"{root}schedule", {"a": due})


@pytest.mark.parametrize("bad", BAD)
def test_record_invalidated_during_a_run_is_judged_after_the_run(
    send: Send, store: Store, state: State, raw: Any, bad: str
) -> None:
    send(store.enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    send(dispatch(store))
    (run,) = fetch(send, store)
    again(raw, store, NOW, BAD[bad])
    assert send(dispatch(store)).buried == []
    assert send(store.at(NOW).complete("w", [(run, DONE)])) == []
    assert state()["schedule"] == {"a": NOW}
    ((job_id, reason),) = send(dispatch(store)).buried
    assert (job_id, bool(reason)) == ("a", True)
    after = state()
    assert (after["dead"], "processing:w" in after, "ready" in after) == ({"a": NOW}, False, False)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", ["ready", "backlog"])
def test_waiting_job_with_an_invalidated_record_is_only_in_dead(
    send: Send, store: Store, state: State, raw: Any, bad: str, place: str
) -> None:
    others = [New(f"j{n:02}", b'{"task":"t"}', due=NOW - 1) for n in range(16)] if place == "backlog" else []
    send(store.enqueue([*others, New("a", b'{"task":"t"}', due=NOW)]))
    send(dispatch(store))
    assert "a" in state()[place]
    again(raw, store, NOW, BAD[bad])
    assert [job_id for job_id, _ in send(dispatch(store)).buried] == ["a"]
    after = state()
    assert [name for name in ("schedule", "backlog", "ready", "dead") if "a" in after.get(name, ())] == ["dead"]
    assert [job.id for job in fetch(send, store, 20)] == [job.id for job in others]


def test_finished_id_can_be_used_again_and_its_record_does_not_expire(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    send(store.enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    send(dispatch(store))
    (run,) = fetch(send, store)
    send(store.at(NOW).complete("w", [(run, DONE)]))
    again(raw, store, NOW + 1)
    send(dispatch(store, NOW + 1))
    after = state()
    assert (after["ready"], after["job:a"]) == (["a"], {"payload": '{"task":"t"}', "due": "1900000001"})
    assert raw.pttl(f"evsched:{{{store.queue}}}:job:a") == -1
    assert [(job.id, job.attempt, job.due) for job in fetch(send, store)] == [("a", 1, NOW + 1)]


@pytest.mark.parametrize("end", ["complete", "retry", "bury"])
@pytest.mark.parametrize("dispatched", [True, False])
def test_id_scheduled_during_its_run_runs_again_after_any_end(
    send: Send, store: Store, state: State, raw: Any, end: str, dispatched: bool
) -> None:
    send(store.enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    send(dispatch(store))
    (run,) = fetch(send, store)
    again(raw, store)
    if dispatched:
        send(dispatch(store))
    calls = {
        "complete": store.at(NOW).complete("w", [(run, DONE)]),
        "retry": store.at(NOW).retry("w", [(run, Retried(5.0, "x"))]),
        "bury": store.at(NOW).bury("w", [(run, Buried("x", False))]),
    }
    assert send(calls[end]) == []
    after = state()
    assert "dead" not in after
    assert "processing:w" not in after
    if end == "retry":
        assert (after["schedule"], after["job:a"]["again"]) == ({"a": NOW + 5}, "1900000000")
        send(dispatch(store, NOW + 5))
        (second,) = fetch(send, store)
        assert second.attempt == 2
        send(store.at(NOW).complete("w", [(second, DONE)]))
    assert state()["schedule"] == {"a": NOW}
    send(dispatch(store))
    assert [job.attempt for job in fetch(send, store)] == [1]


def test_an_id_scheduled_twice_while_it_runs_keeps_the_earlier_time(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    send(store.enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    send(dispatch(store))
    (run,) = fetch(send, store)
    again(raw, store, NOW)
    send(dispatch(store))
    again(raw, store, NOW + 60)
    send(store.at(NOW).complete("w", [(run, DONE)]))
    assert state()["schedule"] == {"a": NOW}


@pytest.mark.parametrize("by", ["age", "drop"])
def test_a_dead_job_that_was_scheduled_again_keeps_its_record(
    send: Send, store: Store, state: State, raw: Any, by: str
) -> None:
    old = NOW - 181 * 86400
    send(store.enqueue([New("a", b'{"task":"t"}', due=old), New("b", b'{"task":"t"}', due=old)]))
    send(dispatch(store, old))
    a, b = fetch(send, store, 2)
    send(store.at(old).bury("w", [(a, Buried("x", False))]))
    again(raw, store, NOW)
    if by == "age":
        send(store.at(NOW).bury("w", [(b, Buried("x", False))]))
    else:
        assert send(store.drop(["a"])) == ["a"]
    assert "a" not in state().get("dead", {})
    send(dispatch(store))
    assert [job.id for job in fetch(send, store, 2)] == ["a"]


@pytest.mark.parametrize("place", ["backlog", "ready", "fetched too"])
def test_id_dispatched_again_between_blmove_and_start_is_one_run(
    send: Send, store: Store, state: State, raw: Any, place: str
) -> None:
    """The run has the newer payload and begins once, as attempt 1, even if one start names the id twice."""
    root = f"evsched:{{{store.queue}}}:"
    if place == "backlog":
        send(store.at(NOW).limit({"concurrency": 1}))
    send(store.at(NOW).enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    assert send(store.fetch("w", 1)) == "a"
    raw.hset(f"{root}job:a", "payload", '{"task":"newer"}')
    again(raw, store)
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    asked = ["a"]
    if place == "fetched too":
        assert send(store.fetch("w", 1)) == "a"
        asked = ["a", "a"]
    (run,) = send(store.at(NOW).start("w", asked, hold=3, lease=15)).jobs
    assert (run.attempt, run.payload) == (1, b'{"task":"newer"}')
    after = state()
    assert (after["processing:w"], "ready" in after, "backlog" in after) == (["a"], False, False)
    assert send(store.at(NOW).start("w", ["a", "a"], hold=3, lease=15)).jobs == [run]
    assert send(store.at(NOW).complete("w", [(run, Done(b"1", 0.0, False))])) == []
    assert not {"schedule", "ready", "backlog", "processing:w", "job:a"} & state().keys()
    assert send(store.recount()) == []


@pytest.mark.parametrize("first", ["runs", "has ended", "is retried"])
@pytest.mark.parametrize("last", ["start", "hand back"])
def test_id_in_two_lists_runs_once_however_late_the_other_worker_starts_it(
    send: Send, store: Store, state: State, raw: Any, first: str, last: str
) -> None:
    store, root = store.at(NOW), f"evsched:{{{store.queue}}}:"
    for worker in "wv":
        send(store.heartbeat(worker, 15, fresh=True))
        raw.hset(f"{root}job:a", "payload", '{"task":"t"}')
        again(raw, store)
        send(store.dispatch(limit=10, cap=1000))
        assert send(store.fetch(worker, 1)) == "a"
    (run,) = send(store.start("v", ["a"], hold=1, lease=15)).jobs
    if first == "has ended":
        assert send(store.complete("v", [(run, Done(b"1", 60.0, False))])) == []
    elif first == "is retried":
        assert send(store.retry("v", [(run, Retried(50.0, "it failed"))])) == []
    before = state()
    if last == "hand back":
        send(store.requeue("w", "it stops", runs=[("a", "")]))
    worker = "u" if last == "hand back" else "w"
    reply = send(store.start(worker, ["a"], hold=1, lease=15))
    assert (reply.jobs, reply.buried) == ([], [])
    after = state()
    for name in ("job:a", "schedule", "processing:v", "dead"):
        assert after.get(name) == before.get(name)
    assert not {"ready", "backlog", "processing:w", "processing:u"} & after.keys()


def test_job_that_was_fetched_and_is_replaced_before_start_is_one_run(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    store = store.at(NOW)
    send(store.heartbeat("w", 15, fresh=True))
    send(store.limit({"concurrency": 5}))
    send(store.enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    send(store.dispatch(limit=10, cap=1000))
    assert send(store.fetch("w", 1)) == "a"
    send(store.replace([New("a", b'{"task":"newer"}', due=NOW + 5)]))
    after = state()
    assert (after["schedule"], "processing:w" in after, after["in_flight"]) == ({"a": NOW + 5}, False, {"*": "0"})
    assert send(store.start("w", ["a"], hold=1, lease=15)).jobs == []


def test_cancel_does_not_stop_a_run_that_has_ended(send: Send, store: Store, state: State, raw: Any) -> None:
    """Another worker has fetched the id too, and not started it yet."""
    store = store.at(NOW)
    for worker in "wv":
        send(store.heartbeat(worker, 15, fresh=True))
        raw.hset(f"evsched:{{{store.queue}}}:job:a", "payload", '{"task":"t"}')
        again(raw, store)
        send(store.dispatch(limit=10, cap=1000))
        assert send(store.fetch(worker, 1)) == "a"
    (run,) = send(store.start("v", ["a"], hold=1, lease=15)).jobs
    assert send(store.complete("v", [(run, Done(b"1", 60.0, False))])) == []
    with pytest.raises(JobMissing):
        send(store.cancel("a"))
    assert "stop" not in state()["job:a"]


FIRST, SECOND = b'{"task":"t","args":[1]}', b'{"task":"t","args":[2]}'


@pytest.mark.parametrize("cut", ["retry", "snooze", "hand back", "died", "died twice"])
def test_replaced_run_that_is_cut_short_ends_before_the_new_job_begins(
    send: Send, store: Store, state: State, cut: str
) -> None:
    send(store.enqueue([New("a", FIRST, priority=7, group="g", due=NOW)]))
    send(dispatch(store))
    (run,) = fetch(send, store)
    assert send(store.at(NOW).replace([New("a", SECOND, due=NOW + 20)])) == [NOW + 20]
    if cut == "retry":
        send(store.at(NOW).retry("w", [(run, Retried(1.0, "x"))]))
    elif cut == "snooze":
        send(store.at(NOW).snooze("w", [(run, Snoozed("x", 1.0))]))
    for _ in range(2 if cut == "died twice" else cut in ("died", "hand back")):
        lease = b"" if cut == "hand back" else f"{NOW + 15:.0f}".encode()
        assert send(store.at(NOW).requeue("w", "x", lease=lease)).ids == ["a"]
        send(dispatch(store, NOW + 21))  # the new job's time comes first
        (run,) = fetch(send, store)
    if cut in ("retry", "snooze"):
        send(dispatch(store, NOW + 1))
        (run,) = fetch(send, store)
    assert (run.payload, state()["job:a"]["group"]) == (FIRST, "g")
    assert send(store.at(NOW + 2).complete("w", [(run, DONE)])) == []
    after = state()
    assert (after["schedule"], after["job:a"]["payload"]) == ({"a": NOW + 20}, SECOND.decode())
    assert not [field for field in after["job:a"] if field in ("group", "priority") or field.startswith("next_")]
    send(dispatch(store, NOW + 21))
    (run,) = fetch(send, store)
    assert (run.payload, run.attempt) == (SECOND, 1)


def test_replacement_of_a_running_job_can_be_replaced_and_cancelled(send: Send, store: Store, state: State) -> None:
    send(store.enqueue([New("a", FIRST, due=NOW)]))
    send(dispatch(store))
    (run,) = fetch(send, store)
    send(store.at(NOW).replace([New("a", b"{}", group="g", due=NOW + 5)]))
    send(store.at(NOW).replace([New("a", SECOND, due=NOW + 20)]))
    record = state()["job:a"]
    assert {name: value for name, value in record.items() if name.startswith("next_")}.keys() == {
        "next_payload",
        "next_created",
    }
    assert send(store.at(NOW).cancel("a")) == Cancelled("processing", next_too=True)
    assert send(store.at(NOW).cancel("a")) == Cancelled("processing", next_too=False)
    assert send(store.at(NOW).complete("w", [(run, DONE)])) == []
    after = state()
    assert ("schedule" in after, after["job:a"]["outcome"]) == (False, "cancelled")
    assert not [field for field in after["job:a"] if field.startswith("next_")]


FAR = 99_999_999_999.0
"""The last moment that a field may have, in the year 5138."""


@pytest.mark.parametrize("delay", [FAR, 1e11, 1e12, 1e15, 1e16, 1e17, 1e22, 1e50, 1e308, math.inf])
def test_job_with_a_far_future_attempt_waits(send: Send, store: Store, state: State, delay: float) -> None:
    expected = delay if delay == math.inf else FAR
    send(store.enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    send(dispatch(store))
    (run,) = fetch(send, store)
    send(store.at(NOW).retry("w", [(run, Retried(delay, "no"))]))
    assert state()["schedule"] == {"a": expected}
    send(store.at(NOW).reschedule("a", due=NOW))
    for snoozed in (Snoozed("not yet", delay=delay), Snoozed("not yet", until=delay)):
        send(dispatch(store))
        (run,) = fetch(send, store)
        send(store.at(NOW).snooze("w", [(run, snoozed)]))
        assert state()["schedule"] == {"a": expected}
        send(store.at(NOW).reschedule("a", due=NOW))


@pytest.mark.parametrize("ends", ["done", "retried"])
@pytest.mark.parametrize("due", [1e11, 1e12, 1e16, 1e17, 1e22, 1e300, math.inf])
def test_job_rescheduled_during_its_run_for_the_far_future_waits(
    send: Send, store: Store, state: State, raw: Any, due: float, ends: str
) -> None:
    send(store.enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    send(dispatch(store))
    (run,) = fetch(send, store)
    again(raw, store, due)
    if ends == "retried":
        send(store.at(NOW).retry("w", [(run, Retried(0, "no"))]))
        assert state()["schedule"] == {"a": NOW}
        send(dispatch(store))
        (run,) = fetch(send, store)
    send(store.at(NOW).complete("w", [(run, DONE)]))
    assert state()["schedule"]["a"] >= FAR
    assert send(dispatch(store)).moved == []


@pytest.mark.parametrize("moved", [False, True])
def test_cancel_reports_that_a_foreign_next_run_is_cancelled_too(
    send: Send, store: Store, state: State, raw: Any, moved: bool
) -> None:
    send(store.enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    send(dispatch(store))
    fetch(send, store)
    again(raw, store, NOW)
    if moved:
        send(dispatch(store))
        assert "again" in state()["job:a"]
    assert send(store.at(NOW).cancel("a")) == Cancelled("processing", next_too=True)
    assert "schedule" not in state()
