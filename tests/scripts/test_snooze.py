"""snooze: a handler puts its job off; no attempt is counted, but how often it did so is."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.jobs.job import Buried, Done, FetchedJob, Snoozed
from evsched.recurrence.recurrence import Declared, Occurrence
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State, status_of

WHY = "snoozed for at least 1m 00s: the report is not ready"


def begin(send: Send, store: Store, now: float = NOW) -> FetchedJob:
    """Dispatch the due job and start it."""
    send(store.at(now).dispatch(limit=10, cap=1000))
    (run,) = send(store.at(now).start("w", (), hold=1, lease=15)).jobs
    return run


@pytest.fixture
def run(send: Send, store: Store) -> FetchedJob:
    send(store.at(NOW).enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    return begin(send, store)


def test_a_snoozed_job_is_scheduled_again_without_an_attempt(
    run: FetchedJob, send: Send, store: Store, state: State
) -> None:
    assert send(store.at(NOW + 5).snooze("w", [(run, Snoozed(WHY, 60.0))])) == []
    after = state()
    assert (after["schedule"], "processing:w" in after) == ({"a": NOW + 65}, False)
    assert after["job:a"] == {
        "payload": '{"task":"t"}',
        "created": "1900000000",
        "planned": "1900000000",
        "attempt": "0",
        "started": "1900000000.000000",
        "snoozes": "1",
        "reason": WHY,
        "runs": f'[1,"w",{NOW:.6f},{NOW + 5:.6f},"snoozed","","","{WHY}"]',
    }
    again = begin(send, store, NOW + 65)
    assert (again.attempt, again.due, again.planned) == (1, NOW + 65, NOW)


def test_a_job_may_be_snoozed_until_a_moment(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).snooze("w", [(run, Snoozed("x", until=NOW + 3600.25))]))
    assert state()["schedule"] == {"a": NOW + 3600.25}


def test_a_moment_that_has_passed_means_now(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).snooze("w", [(run, Snoozed("x", until=5.0))]))
    assert state()["schedule"] == {"a": NOW}


def test_snoozes_are_counted_and_wait_a_second_from_the_fifth_on(
    run: FetchedJob, send: Send, store: Store, state: State
) -> None:
    now, waits = NOW, list[float]()
    for _ in range(6):
        send(store.at(now).snooze("w", [(run, Snoozed("x"))]))
        waits.append(state()["schedule"]["a"] - now)
        now += waits[-1]
        run = begin(send, store, now)
        assert run.attempt == 1
    assert waits == [0, 0, 0, 0, 1, 1]
    assert status_of(send, store, "a").snoozes == 6


def test_a_count_that_a_client_overwrote_starts_again(
    run: FetchedJob, send: Send, store: Store, state: State, raw: Any
) -> None:
    raw.hset(f"evsched:{{{store.queue}}}:job:a", "snoozes", "-1e9")
    assert send(store.at(NOW).snooze("w", [(run, Snoozed("x"))])) == []
    assert state()["job:a"]["snoozes"] == "1"


@pytest.mark.parametrize("end", ["done", "dead"])
def test_a_new_job_of_the_id_has_not_snoozed(
    run: FetchedJob, send: Send, store: Store, state: State, raw: Any, end: str
) -> None:
    send(store.at(NOW).snooze("w", [(run, Snoozed("x"))]))
    run = begin(send, store)
    assert state()["job:a"]["snoozes"] == "1"
    if end == "done":
        send(store.at(NOW).complete("w", [(run, Done(b"1", 100.0, False))]))
        raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW})
    else:
        send(store.at(NOW).bury("w", [(run, Buried("x", False))]))
        send(store.at(NOW).revive(["a"]))
    begin(send, store)
    assert "snoozes" not in state()["job:a"]


def test_a_cancelled_job_does_not_snooze(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).cancel("a"))
    assert send(store.at(NOW).snooze("w", [(run, Snoozed("x", 60.0))])) == []
    assert (state()["job:a"]["outcome"], "schedule" in state()) == ("cancelled", False)


def test_a_job_that_was_scheduled_again_snoozes_first(
    run: FetchedJob, send: Send, store: Store, state: State, raw: Any
) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW + 9})
    send(store.at(NOW).snooze("w", [(run, Snoozed("x", 60.0))]))
    after = state()
    assert (after["schedule"], float(after["job:a"]["again"])) == ({"a": NOW + 60}, NOW + 9)


def test_a_snoozed_occurrence_is_not_judged_as_missed(send: Send, store: Store, state: State) -> None:
    send(store.declare(Declared(name="r", rule="* * * * *", payload=b'{"task":"t"}', misfire="skip")))
    rows = [Occurrence("r@1", NOW, NOW, 5.0)]
    send(store.recur("r", b"0", rows, next_=NOW + 900))
    run = begin(send, store)
    send(store.at(NOW).snooze("w", [(run, Snoozed("x", 60.0))]))
    # No dispatcher was running, so it is late by more than its misfire grace.
    assert begin(send, store, NOW + 100).id == "r@1"
