"""A key of the wrong type: the verb is refused whole, and after the repair the same call does its work."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from evsched.answers import New
from evsched.call import Call
from evsched.errors import StoreRefused
from evsched.job import Buried, Done, Retried, Taken
from evsched.store import Store

NOW = 1_900_000_000.0
Send = Callable[[Any], Any]
State = Callable[[], dict[str, Any]]
DONE = Done(b"1", 300.0, True)


def seed(send: Send, store: Store, raw: Any) -> Taken:
    """Put a job into every place; return the run that worker "w" holds."""

    def run(job_id: str) -> Taken:
        send(store.enqueue([New(job_id, b'{"task":"t","reply":true}', due=NOW)], now=NOW))
        send(store.dispatch(limit=100, cap=1000, now=NOW))
        return send(store.start("w", (), hold=9, lease=15, now=NOW)).jobs[0]

    send(store.bury("w", [(run("dead"), Buried("x", False))], now=NOW))
    running = run("running")
    send(store.enqueue([New(f"r{n:02}", b'{"task":"t"}', due=NOW) for n in range(18)], now=NOW))
    send(store.dispatch(limit=100, cap=1000, now=NOW))
    send(store.enqueue([New("scheduled", b'{"task":"t"}', due=NOW)], now=NOW))
    return running


CALLS: dict[str, Callable[[Store, Taken], Call[Any]]] = {
    "enqueue": lambda store, run: store.enqueue([New("n1", b"{}"), New("n2", b"{}")], now=NOW),
    "dispatch": lambda store, run: store.dispatch(limit=100, cap=1000, now=NOW),
    "complete": lambda store, run: store.complete("w", [(run, DONE)], now=NOW),
    "retry": lambda store, run: store.retry("w", [(run, Retried(1.0, "x"))], now=NOW),
    "bury": lambda store, run: store.bury("w", [(run, Buried("x", True))], now=NOW),
    "cancel": lambda store, run: store.cancel("r00"),
    "revive": lambda store, run: store.revive(["dead"], now=NOW),
    "drop": lambda store, run: store.drop(["dead"]),
}

PLACES = {
    "enqueue": ["schedule"],
    "dispatch": ["schedule", "backlog", "ready", "dead"],
    "complete": ["schedule", "backlog", "ready", "processing:w"],
    "retry": ["schedule", "processing:w"],
    "bury": ["schedule", "backlog", "ready", "dead", "processing:w"],
    "cancel": ["schedule", "backlog", "ready", "dead"],
    "revive": ["schedule", "dead"],
    "drop": ["schedule", "dead"],
}


@pytest.mark.parametrize(("verb", "place"), [(verb, place) for verb, places in PLACES.items() for place in places])
def test_a_place_of_the_wrong_type_refuses_the_verb_whole(
    send: Send, store: Store, state: State, raw: Any, verb: str, place: str
) -> None:
    run = seed(send, store, raw)
    key = f"evsched:{{{store.queue}}}:{place}"
    raw.rename(key, f"kept:{store.queue}")
    raw.set(key, "wrong")
    before = state()
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        send(CALLS[verb](store, run))
    assert state() == before

    raw.delete(key)
    raw.rename(f"kept:{store.queue}", key)
    before = state()
    lost = send(CALLS[verb](store, run))
    assert state() != before
    assert lost != ["running"]


@pytest.mark.parametrize(
    ("verb", "place"),
    [
        ("start", "ready"),
        ("start", "backlog"),
        ("requeue", "ready"),
        ("reschedule", "ready"),
        ("reschedule", "backlog"),
    ],
)
def test_no_job_disappears_where_a_step_may_be_refused_halfway(
    send: Send, store: Store, state: State, raw: Any, verb: str, place: str
) -> None:
    """These may leave a job in two places, never in none: see the rule in lua/README.md."""
    run = seed(send, store, raw)
    calls = {
        "start": store.start("w", ["running"], hold=5, lease=15, now=NOW),
        "requeue": store.requeue("w", "x"),
        "reschedule": store.reschedule("r17", NOW + 9),
    }
    key = f"evsched:{{{store.queue}}}:{place}"
    raw.rename(key, f"kept:{store.queue}")
    raw.set(key, "wrong")
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        send(calls[verb])
    raw.delete(key)
    raw.rename(f"kept:{store.queue}", key)
    after = state()
    places = [*after["schedule"], *after["backlog"], *after["ready"], *after["dead"], *after.get("processing:w", [])]
    assert {"dead", "running", "scheduled", *(f"r{n:02}" for n in range(18))} == set(places)
    send(calls[verb])
    assert run.id in {*state().get("processing:w", []), *state()["ready"]}


def test_a_due_that_is_no_number_leaves_no_record(send: Send, store: Store, state: State) -> None:
    with pytest.raises(StoreRefused, match="not a valid float"):
        send(store.enqueue([New("a", b"{}", due=1.0), New("b", b"{}", due=float("nan"))]))
    assert state() == {}


def test_a_reply_list_of_the_wrong_type_does_not_keep_a_job_from_its_end(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    run = seed(send, store, raw)
    raw.set(f"evsched:{{{store.queue}}}:reply:running", "wrong")
    assert send(store.complete("w", [(run, DONE)], now=NOW)) == []
    assert state()["job:running"]["outcome"] == "done"
    assert "processing:w" not in state()


def test_a_retention_that_redis_cannot_count_is_its_longest(send: Send, store: Store, state: State, raw: Any) -> None:
    run = seed(send, store, raw)
    assert send(store.complete("w", [(run, Done(b"1", 1e300, True))], now=NOW)) == []
    after = state()
    assert after["job:running"]["outcome"] == "done"
    assert json.loads(after["reply:running"][0])["outcome"] == "done"
    assert raw.pttl(f"evsched:{{{store.queue}}}:job:running") > 300 * 365 * 86400 * 1000


def test_an_inline_job_whose_record_is_of_the_wrong_type_stops_no_other(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    raw.set(f"evsched:{{{store.queue}}}:job:x", "wrong")
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {'{"task":"t","id":"x"}': NOW - 1})
    send(store.enqueue([New("next", b'{"task":"t"}', due=NOW)]))
    step = send(store.dispatch(limit=10, cap=1000, now=NOW))
    ((job_id, reason),) = step.buried
    assert "DEL it and schedule the job again" in reason
    after = state()
    assert (after["ready"], list(after["dead"]), "schedule" in after) == (["next"], [job_id], False)
    assert after[f"job:{job_id}"]["payload"] == '{"task":"t","id":"x"}'


@pytest.fixture
def runs(send: Send, store: Store, raw: Any) -> list[Taken]:
    """Three runs of worker "w"; the record of the second was overwritten meanwhile."""
    send(store.enqueue([New(job_id, b'{"task":"t"}', due=NOW) for job_id in "abc"]))
    send(store.dispatch(limit=10, cap=1000, now=NOW))
    runs = send(store.start("w", (), hold=3, lease=15, now=NOW)).jobs
    raw.set(f"evsched:{{{store.queue}}}:job:b", "wrong")
    return runs


@pytest.mark.parametrize("end", ["complete", "retry", "bury"])
def test_a_record_that_was_overwritten_keeps_no_other_run_from_its_end(
    send: Send, store: Store, state: State, runs: list[Taken], end: str
) -> None:
    calls = {
        "complete": store.complete("w", [(run, DONE) for run in runs], now=NOW),
        "retry": store.retry("w", [(run, Retried(1.0, "x")) for run in runs], now=NOW),
        "bury": store.bury("w", [(run, Buried("x", False)) for run in runs], now=NOW),
    }
    assert send(calls[end]) == ["b"]
    assert state()["processing:w"] == ["b"]


@pytest.mark.usefixtures("runs")
def test_a_record_that_was_overwritten_is_dead_when_it_starts_again_and_the_others_run(
    send: Send, store: Store, state: State
) -> None:
    assert send(store.requeue("w", "it died")) == ("all", ["a", "b", "c"])
    take = send(store.start("v", (), hold=9, lease=15, now=NOW))
    assert [job.id for job in take.jobs] == ["a", "c"]
    ((job_id, reason),) = take.buried
    assert "is not a hash" in reason
    after = state()
    assert (after["dead"], after["processing:v"], after[f"job:{job_id}"]["member"]) == (
        {job_id: NOW},
        ["a", "c"],
        "b",
    )
