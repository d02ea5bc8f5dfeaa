"""`reseal`: other values in place of those that were read, and only of those."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from evsched.batches.node import StoredNode
from evsched.jobs.job import Done, encode
from evsched.recurrence.recurrence import Declared
from evsched.store.batch_calls import PlanRow
from evsched.store.client_calls import New
from evsched.store.reseal_calls import Kept
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

WAS, IS = b'{"task":"t","sealed":{"data":"AAAA","key":"old"}}', b'{"task":"t","sealed":{"data":"BBBB","key":"new"}}'


def put(send: Send, store: Store, place: str) -> None:
    """Put job `a` into a place."""
    send(store.at(NOW).enqueue([New("a", WAS, due=NOW)]))
    if place == "schedule":
        return
    if place == "backlog":
        send(store.at(NOW).pause())
    send(store.at(NOW).dispatch(limit=9, cap=1000))
    if place in ("processing", "finished"):
        (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
        if place == "finished":
            send(store.at(NOW).complete("w", [(run, Done(b"1", 60.0, False))]))


@pytest.mark.parametrize("place", ["schedule", "backlog", "ready", "processing", "finished"])
def test_payload_is_written_wherever_the_job_is_and_nothing_else_changes(
    send: Send, store: Store, state: State, raw: Any, place: str
) -> None:
    put(send, store, place)
    before, ttl = state(), raw.pttl(f"evsched:{{{store.queue}}}:job:a")
    assert send(store.reseal("job", [(Kept("job", "a", "payload", WAS), IS)])) == [True]
    after = state()
    assert after.pop("job:a") == before.pop("job:a") | {"payload": IS.decode()}
    assert after == before
    assert (raw.pttl(f"evsched:{{{store.queue}}}:job:a") > 0) == (ttl > 0)
    assert send(store.reseal("job", [(Kept("job", "a", "payload", WAS), IS)])) == [False], "the second call"


def test_light_job_runs_with_the_new_payload(send: Send, store: Store, raw: Any) -> None:
    put(send, store, "ready")
    send(store.reseal("job", [(Kept("job", "a", "payload", WAS), IS)]))
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    assert run.payload == IS


def test_payload_that_another_client_wrote_to_a_light_job_stays(send: Send, store: Store, raw: Any) -> None:
    put(send, store, "ready")
    raw.hset(f"evsched:{{{store.queue}}}:job:a", "payload", "other")
    assert send(store.reseal("job", [(Kept("job", "a", "payload", WAS), IS)])) == [False]
    assert raw.hget(f"evsched:{{{store.queue}}}:job:a", "payload") == b"other"


@pytest.mark.parametrize("job", ["a", "none"])
def test_value_that_was_changed_is_left_as_it_is(send: Send, store: Store, state: State, job: str) -> None:
    put(send, store, "schedule")
    before = state()
    for field, was in (("payload", b"other"), ("result", WAS)):
        assert send(store.reseal("job", [(Kept("job", job, field, was), IS)])) == [False]
    assert state() == before


def test_inline_job_keeps_its_time(send: Send, store: Store, state: State, raw: Any) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {WAS: NOW + 0.25, "b": NOW})
    kept = Kept("inline", WAS, "", WAS)
    assert send(store.reseal("inline", [(kept, IS)])) == [True]
    assert state()["schedule"] == {IS.decode(): NOW + 0.25, "b": NOW}
    assert send(store.reseal("inline", [(kept, IS)])) == [False]
    changes = [(Kept("inline", "b", "", b"b"), IS), (Kept("inline", IS, "", IS), b"not inline")]
    assert send(store.reseal("inline", changes)) == [False, False]
    assert state()["schedule"] == {IS.decode(): NOW + 0.25, "b": NOW}


def test_inline_job_that_is_due_meanwhile_is_changed_in_its_light_text(send: Send, store: Store, raw: Any) -> None:
    send(store.at(NOW).heartbeat("w", 60, busy=15, fresh=True))
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {WAS: NOW})
    send(store.at(NOW).dispatch(limit=9, cap=1000))
    part = send(store.light_payloads(0, 9))
    job_id = hashlib.sha1(WAS).hexdigest()
    assert part.kept == [Kept("job", job_id, "payload", WAS)]
    assert send(store.reseal("job", [(part.kept[0], IS)])) == [True]
    (run,) = send(store.at(NOW).start("w", (), hold=1, lease=15)).jobs
    assert (run.id, run.payload) == (job_id, IS)


def test_recurrences_and_nodes_are_written(send: Send, store: Store, raw: Any) -> None:
    send(store.declare(Declared(name="r", payload=WAS, rule="@hourly")))
    assert send(store.recurrence_payload("r")) == [Kept("recurrence", "r", "payload", WAS)]
    assert send(store.reseal("recurrence", [(Kept("recurrence", "r", "payload", WAS), IS)])) == [True]
    assert send(store.recurrence("r"))["payload"] == IS
    node = encode(StoredNode("n", store.queue, {"task": "t", "args": [], "kwargs": {}}, 9.0))
    send(store.at(NOW).batch_open("g", "t", retention=9))
    send(store.batch_plan("g", 0, [PlanRow(node, "g.n", store.queue)]))
    assert send(store.batch_ids_of_all(0, 9)) == (0, ["g"])
    part = send(store.graph_nodes("g", 0, 9))
    assert part.kept == [Kept("node", "g", "0", node)]
    assert send(store.reseal("node", [(part.kept[0], b"{}")])) == [True]
    assert send(store.batch_nodes("g", [0])) == [b"{}"]


def test_record_of_the_wrong_type_stops_no_other(send: Send, store: Store, raw: Any) -> None:
    put(send, store, "schedule")
    raw.set(f"evsched:{{{store.queue}}}:job:b", "x")
    changes = [(Kept("job", job, "payload", WAS), IS) for job in ("b", "a")]
    assert send(store.reseal("job", changes)) == [False, True]
