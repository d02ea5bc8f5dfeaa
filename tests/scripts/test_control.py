"""The verbs of clients: enqueue, cancel, reschedule, revive, drop, look, ask. A refusal changes nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evsched.client.explain import no_explanation
from evsched.errors import JobExists, JobMissing, JobRunning
from evsched.jobs.job import Buried, Done
from evsched.store.client_calls import New
from evsched.store.operator_calls import condition
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State, status_of
from tests.support.patience import PATIENCE


def put(send: Send, store: Store, place: str, job_id: str = "a") -> None:
    """Bring a job to a place."""
    send(store.at(NOW).enqueue([New(job_id, b'{"task":"t","reply":true}', due=NOW)]))
    if place == "schedule":
        return
    if place == "backlog":
        send(store.enqueue([New(f"{job_id}-{n}", b'{"task":"t"}', due=NOW - 1) for n in range(16)]))
    send(store.at(NOW).dispatch(limit=100, cap=1000))
    if place in ("ready", "backlog"):
        return
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    if place == "finished":
        send(store.at(NOW).complete("w", [(run, Done(b"1", 60.0, False))]))
    elif place == "dead":
        send(store.at(NOW).bury("w", [(run, Buried("no luck", False))]))


def test_enqueue_writes_the_record_and_the_place(send: Send, store: Store, state: State) -> None:
    jobs = [New("a", b"{}", due=NOW + 1), New("b", b"{}", priority=0, group="g", delay=2.5)]
    assert send(store.at(NOW).enqueue(jobs)) == [NOW + 1, NOW + 2.5]
    assert state() == {
        "schedule": {"a": NOW + 1, "b": NOW + 2.5},
        "job:a": {"payload": "{}", "created": "1900000000"},
        "job:b": {"payload": "{}", "created": "1900000000", "priority": "0", "group": "g"},
    }


@pytest.mark.parametrize("place", ["schedule", "backlog", "ready", "processing", "dead"])
def test_enqueue_of_an_id_that_has_not_ended_is_refused_whole(
    send: Send, store: Store, state: State, place: str
) -> None:
    put(send, store, place)
    before = state()
    with pytest.raises(JobExists, match="a "):
        send(store.enqueue([New("new", b"{}"), New("a", b"{}")]))
    with pytest.raises(JobExists, match="twice"):
        send(store.enqueue([New("new", b"{}"), New("new", b"{}")]))
    assert state() == before


def test_enqueue_of_an_id_that_has_ended_creates_a_new_job(send: Send, store: Store, state: State, raw: Any) -> None:
    put(send, store, "finished")
    raw.rpush(f"evsched:{{{store.queue}}}:reply:a", "that of the earlier job")
    send(store.at(NOW).enqueue([New("a", b"{}", due=NOW)]))
    assert state()["job:a"] == {"payload": "{}", "created": "1900000000"}
    assert "reply:a" not in state()
    assert raw.pttl(f"evsched:{{{store.queue}}}:job:a") == -1


@pytest.mark.parametrize("place", ["schedule", "backlog", "ready"])
def test_cancel_removes_a_waiting_job(send: Send, store: Store, state: State, place: str) -> None:
    put(send, store, place)
    assert send(store.cancel("a")).place == place
    after = state()
    assert json.loads(after.pop("reply:a")[0]) == {"id": "a", "outcome": "cancelled", "result": None}
    assert not [name for name, value in after.items() if name == "job:a" or "a" in value]
    with pytest.raises(JobMissing):
        send(store.cancel("a"))


def test_message_about_a_missing_job_mentions_cancellation(send: Send, store: Store) -> None:
    put(send, store, "schedule")
    send(store.cancel("a"))
    with pytest.raises(JobMissing, match="was cancelled while it waited"):
        send(store.cancel("a"))
    with pytest.raises(JobMissing, match="was cancelled while it waited"):
        send(store.ask("a"))
    sentence = no_explanation("a", store.queue)
    assert "it was cancelled while it waited" in sentence


@pytest.mark.parametrize(("place", "error"), [("finished", JobMissing), ("dead", JobMissing)])
def test_a_job_that_has_ended_can_be_neither_cancelled_nor_rescheduled(
    send: Send, store: Store, state: State, place: str, error: type[Exception]
) -> None:
    put(send, store, place)
    before = state()
    with pytest.raises(error):
        send(store.cancel("a"))
    with pytest.raises(error):
        send(store.reschedule("a", NOW))
    assert state() == before


def test_cancel_stops_a_running_job_and_reschedule_refuses_it(send: Send, store: Store, state: State, raw: Any) -> None:
    put(send, store, "processing")
    before = state()
    with pytest.raises(JobRunning):
        send(store.reschedule("a", NOW))
    assert state() == before
    with raw.pubsub() as subscription:
        subscription.subscribe(f"evsched:{{{store.queue}}}:control:w")
        subscription.get_message(timeout=PATIENCE)
        assert send(store.cancel("a")).place == "processing"
        assert subscription.get_message(timeout=PATIENCE)["data"] == b"a"
    before["job:a"]["stop"] = "1"
    assert state() == before
    assert send(store.at(NOW).heartbeat("w", 15)).stops == ["a"]


@pytest.mark.parametrize("place", ["schedule", "backlog", "ready"])
def test_reschedule_moves_a_waiting_job(send: Send, store: Store, state: State, place: str) -> None:
    put(send, store, place)
    assert send(store.reschedule("a", NOW + 60.25)) == NOW + 60.25
    assert state()["schedule"]["a"] == NOW + 60.25
    assert "a" not in state().get("ready", [])
    assert "a" not in state().get("backlog", {})
    assert send(store.at(NOW).reschedule("a", None)) == NOW
    assert send(store.at(NOW).reschedule("a", None, delay=90.5)) == NOW + 90.5
    assert state()["schedule"]["a"] == NOW + 90.5


def test_revive_and_drop_do_all_or_nothing(send: Send, store: Store, state: State) -> None:
    for n in range(4):
        put(send, store, "dead", f"d{n}")
    before = state()
    for verb in (store.revive, store.drop):
        with pytest.raises(JobMissing, match="nobody"):
            send(verb(["d0", "nobody"]))
        with pytest.raises(JobMissing, match=r"^x is not dead; y is not dead; the other jobs were left as they are$"):
            send(verb(["d0", "x", "y", "x"]))
        with pytest.raises(JobMissing, match=r"^n0 is not dead; .*; n4 is not dead; and 2 more$"):
            send(verb([f"n{n}" for n in range(7)]))
    assert state() == before
    assert send(store.drop(["d0", "d1"])) == ["d0", "d1"]
    assert send(store.at(NOW).revive(["d2", "d3"])) == ["d2", "d3"]
    after = state()
    assert (sorted(after["schedule"]), "dead" in after, "job:d0" in after) == (["d2", "d3"], False, False)


@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_a_dead_job_that_is_named_twice_counts_once(send: Send, store: Store, verb: str) -> None:
    put(send, store, "dead", "a")
    assert send(getattr(store, verb)(["a", "a"])) == ["a"]


def test_a_dead_job_without_a_record_can_only_be_dropped(send: Send, store: Store, state: State, raw: Any) -> None:
    put(send, store, "dead", "a")
    raw.delete(f"evsched:{{{store.queue}}}:job:a")
    before = state()
    with pytest.raises(JobMissing, match=r"^a has no record, so it cannot be revived: drop it$"):
        send(store.at(NOW).revive(["a"]))
    assert send(store.at(NOW).revive_matching(["a"], condition(before=NOW))) == 0
    assert state() == before
    assert send(store.drop(["a"])) == ["a"]


@pytest.mark.parametrize("place", ["schedule", "backlog", "ready", "processing", "finished", "dead"])
def test_look_returns_the_place_and_moves_nothing(send: Send, store: Store, state: State, place: str) -> None:
    put(send, store, place)
    before = state()
    status = status_of(send, store, "a")
    assert (status.place, status.task, status.queue) == (place, "t", store.queue)
    assert send(store.look("nobody")) is None
    assert state() == before


def test_ask_answers_at_once_or_asks_for_a_reply(send: Send, store: Store, state: State) -> None:
    put(send, store, "finished")
    assert send(store.ask("a")) == ("done", b"1", "")
    put(send, store, "dead", "d")
    assert send(store.ask("d")) == ("dead", b"", "no luck")
    put(send, store, "schedule", "s")
    assert send(store.ask("s")) == ("", b"", "")
    assert state()["job:s"]["reply"] == "1"
    with pytest.raises(JobMissing):
        send(store.ask("nobody"))


def test_the_dead_set_is_bounded_by_age(send: Send, store: Store, state: State, raw: Any) -> None:
    put(send, store, "dead", "old")
    raw.zadd(f"evsched:{{{store.queue}}}:dead", {"old": NOW - 181 * 86400})
    put(send, store, "dead", "new")
    assert list(state()["dead"]) == ["new"]
    assert "job:old" not in state()
