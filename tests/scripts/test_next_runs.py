"""An id that is replaced while it runs: filters see the job that each place has, and the next one ends by itself."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.jobs.job import Buried, Done, FetchedJob, Retried
from evsched.store.client_calls import New
from evsched.store.operator_calls import Match, WantedArgument, condition
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

FIRST = b'{"task":"first","tags":["AAA"],"args":[6]}'
NEXT = b'{"task":"next","tags":["BBB"],"args":[1]}'
DONE = Done(b"1", 300.0, False, label=b'["first","AAA"]')
BY_NEXT = {
    "task": condition(task="next"),
    "group": condition(group="b"),
    "tags": condition(tags=("BBB",)),
    "arguments": condition(arguments=(WantedArgument("1", 1, 1),)),
    "before": condition(task="next", before=NOW + 5),
    "after": condition(after=NOW + 4),
}
BY_FIRST = {
    "task": condition(task="first"),
    "group": condition(group="a"),
    "tags": condition(tags=("AAA",)),
    "arguments": condition(arguments=(WantedArgument("1", 6, 1),)),
    "before": condition(before=NOW + 4),
    "reason": condition(reason="failed"),
    "error": condition(error="E"),
}


@pytest.fixture
def run(send: Send, store: Store) -> FetchedJob:
    """Run a job for the second time, and replace it meanwhile by one that is due later."""
    send(store.at(NOW).enqueue([New("a", FIRST, group="a", due=NOW)]))
    send(store.at(NOW).dispatch(limit=9, cap=9999))
    (job,) = send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs
    send(store.at(NOW).retry("w", [(job, Retried(0.0, "failed", error="E"))]))
    send(store.at(NOW).dispatch(limit=9, cap=9999))
    (job,) = send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs
    send(store.at(NOW + 5).replace([New("a", NEXT, group="b", due=NOW + 99)]))
    return job


def found(send: Send, store: Store, matching: bytes, place: str) -> list[Match]:
    return send(store.find(place, matching)).found


def ended(send: Send, store: Store) -> list[tuple[str, str, str, int]]:
    """Return the ends in the history, the oldest first."""
    rows = [job for entry in send(store.ended()).entries for job in entry.jobs]
    return [(job.task, job.outcome, job.group, job.attempt) for job in reversed(rows)]


@pytest.mark.usefixtures("run")
def test_each_place_is_searched_by_the_job_that_it_has(send: Send, store: Store) -> None:
    for place, wanted, others in (("schedule", BY_NEXT, BY_FIRST), ("processing:w", BY_FIRST, BY_NEXT)):
        assert [name for name in wanted if not found(send, store, wanted[name], place)] == []
        assert [name for name in others if found(send, store, others[name], place)] == []
    (waits,), (runs,) = (found(send, store, condition(), place) for place in ("schedule", "processing:w"))
    assert (waits.task, waits.group, waits.tags, waits.created) == ("next", "b", ("BBB",), NOW + 5)
    assert (runs.task, runs.group, runs.tags, runs.created) == ("first", "a", ("AAA",), NOW)
    assert (waits.reason, runs.reason, runs.error, waits.error) == (None, "failed", "E", None)


def test_filter_changes_the_next_run_only_by_its_own_properties(
    send: Send, store: Store, run: FetchedJob, state: State
) -> None:
    before = state()
    assert send(store.at(NOW + 6).cancel_matching(["a"], BY_FIRST["tags"])) == 0
    assert send(store.at(NOW + 6).reschedule_matching(["a"], BY_FIRST["tags"], NOW + 9)) == 0
    assert state() == before
    assert send(store.at(NOW + 6).reschedule_matching(["a"], BY_NEXT["tags"], NOW + 9)) == 1
    assert state()["schedule"] == {"a": NOW + 9}
    assert send(store.at(NOW + 6).cancel_matching(["a"], BY_NEXT["tags"])) == 1
    assert send(store.at(NOW + 6).cancel_matching(["a"], BY_NEXT["tags"])) == 0
    assert ended(send, store) == [("next", "cancelled", "b", 0)]
    send(store.at(NOW + 7).complete("w", [(run, DONE)]))
    assert ended(send, store) == [("next", "cancelled", "b", 0), ("first", "done", "a", 2)]
    after = state()
    assert (after.get("schedule"), after["job:a"]["payload"]) == (None, FIRST.decode())
    assert not [field for field in after["job:a"] if field.startswith("next_")]


@pytest.mark.parametrize("dispatched", [False, pytest.param(True, marks=pytest.mark.extra)])
def test_cancelled_id_ends_twice_if_a_next_run_waited(
    send: Send, store: Store, run: FetchedJob, dispatched: bool
) -> None:
    if dispatched:
        send(store.at(NOW + 99).dispatch(limit=9, cap=9999))
    for _ in range(2):  # as if the reply was lost
        send(store.at(NOW + 99).cancel("a"))
        assert ended(send, store) == [("next", "cancelled", "b", 0)]
    send(store.at(NOW + 99).complete("w", [(run, DONE)]))
    assert ended(send, store) == [("next", "cancelled", "b", 0), ("first", "cancelled", "a", 2)]


def test_next_run_that_is_replaced_has_not_ended(send: Send, store: Store, run: FetchedJob) -> None:
    send(store.at(NOW + 6).replace([New("a", NEXT, group="c", due=NOW + 99)]))
    assert ended(send, store) == []
    send(store.at(NOW + 7).complete("w", [(run, DONE)]))
    send(store.at(NOW + 8).cancel("a"))
    assert ended(send, store) == [("first", "done", "a", 2), ("next", "cancelled", "c", 0)]


@pytest.fixture
def retried(send: Send, store: Store, run: FetchedJob) -> None:
    """The first job waits for its retry, and the next one for the end of the first."""
    send(store.at(NOW + 6).retry("w", [(run, Retried(9.0, "failed", error="E"))]))


@pytest.mark.usefixtures("retried")
@pytest.mark.parametrize("due", [False, pytest.param(True, marks=pytest.mark.extra)])
def test_filter_that_cancels_a_retry_leaves_the_next_run(send: Send, store: Store, state: State, due: bool) -> None:
    if due:
        send(store.at(NOW + 15).dispatch(limit=9, cap=9999))
    assert send(store.at(NOW + 16).cancel_matching(["a"], BY_NEXT["tags"])) == 0
    assert send(store.at(NOW + 16).cancel_matching(["a"], BY_FIRST["tags"])) == 1
    assert ended(send, store) == [("first", "cancelled", "a", 2)]
    after = state()
    assert (after["schedule"], after["job:a"]["payload"]) == ({"a": NOW + 99}, NEXT.decode())
    assert [name for name in ("backlog", "ready", "processing:w") if name in after] == []


@pytest.mark.usefixtures("retried")
def test_cancel_of_a_retry_and_its_next_run_is_two_ends(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW + 7).cancel("a"))
    assert sorted(ended(send, store)) == [("first", "cancelled", "a", 2), ("next", "cancelled", "b", 0)]
    assert not [name for name in state() if name in ("schedule", "job:a")]


@pytest.mark.extra
@pytest.mark.parametrize("outcome", ["done", "dead"])
def test_cancelled_job_of_an_ended_id_has_no_run(
    send: Send, store: Store, raw: Any, run: FetchedJob, outcome: str
) -> None:
    send(store.at(NOW + 6).cancel_matching(["a"], BY_NEXT["tags"]))
    end = (
        store.at(NOW + 7).complete("w", [(run, DONE)])
        if outcome == "done"
        else store.at(NOW + 7).bury("w", [(run, Buried("x", False))])
    )
    send(end)
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW + 99})  # as another client may
    send(store.at(NOW + 8).cancel("a"))
    assert ended(send, store)[1:] == [("first", outcome, "a", 2), ("first", "cancelled", "a", 0)]


@pytest.mark.extra
def test_job_that_another_client_scheduled_during_a_run_ends_by_itself(
    send: Send, store: Store, raw: Any, run: FetchedJob
) -> None:
    send(store.at(NOW + 6).cancel_matching(["a"], BY_NEXT["tags"]))
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW + 99})
    assert send(store.at(NOW + 7).cancel_matching(["a"], BY_FIRST["tags"])) == 1
    send(store.at(NOW + 8).complete("w", [(run, DONE)]))
    assert ended(send, store)[1:] == [("first", "cancelled", "a", 0), ("first", "done", "a", 2)]
