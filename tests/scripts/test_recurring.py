"""Recurrences, script by script: what happens when an occurrence is due, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Outcome, Retried, Snoozed
from evsched.recurrence.recurrence import Declared, Misfire, Occurrence, Overlap
from evsched.store.recurrence_calls import RecurrenceStats
from evsched.store.store import Store
from evsched.transport.call import Call
from tests.scripts.conftest import NOW, Send, State

NAME = "r"
DONE = Done(b"null", 60, False)


def put(
    send: Send,
    store: Store,
    *planned: float,
    overlap: Overlap = "skip",
    misfire: Misfire = "once",
    misfire_grace: float | None = 5,
    next_: float = NOW + 900,
) -> list[str]:
    """Declare the recurrence, and put occurrences on the schedule."""
    send(
        store.declare(Declared(name=NAME, rule="* * * * *", payload=b'{"task":"t"}', overlap=overlap, misfire=misfire))
    )
    rows = [Occurrence(f"{NAME}@{at:.0f}", at, at, misfire_grace) for at in planned]
    assert send(store.recur(NAME, b"0", rows, next_=next_)) == [row.id for row in rows]
    return [row.id for row in rows]


def dispatch(send: Send, store: Store, now: float) -> list[str]:
    """Return the recurrences of which an occurrence was missed, once for each."""
    return send(store.at(now).dispatch(limit=99, cap=1000)).missed


def fetch(send: Send, store: Store, now: float, worker: str = "w") -> list[FetchedJob]:
    return send(store.at(now).start(worker, (), hold=99, lease=15)).jobs


def record(state: State) -> dict[str, str]:
    return state()[f"recurrence:{NAME}"]


@pytest.mark.parametrize("misfire", ["skip", "once", "all"])
@pytest.mark.parametrize("overlap", ["skip", "wait", "allow"])
def test_a_retry_is_not_a_new_occurrence(
    send: Send, store: Store, state: State, misfire: Misfire, overlap: Overlap
) -> None:
    first, second = put(send, store, NOW, NOW + 60, overlap=overlap, misfire=misfire)
    dispatch(send, store, NOW)
    (job,) = fetch(send, store, NOW)
    send(store.at(NOW).retry("w", [(job, Retried(1, "no"))]))
    # No dispatcher was running: the retry is 100 s late, and the next occurrence is due beside it.
    dispatch(send, store, NOW + 101)
    assert first in state()["ready"]
    assert [job.attempt for job in fetch(send, store, NOW + 101) if job.id == first] == [2]
    assert (second in state().get("schedule", {})) == (overlap == "wait" and misfire != "skip")


@pytest.mark.parametrize(("misfire", "ran"), [("skip", []), ("once", [1]), ("all", [0, 1])])
def test_the_misfire_policy_decides_which_late_occurrences_run(
    send: Send, store: Store, state: State, misfire: Misfire, ran: list[int]
) -> None:
    misfire_grace = None if misfire == "all" else 5
    ids = put(send, store, NOW, NOW + 1, overlap="allow", misfire=misfire, misfire_grace=misfire_grace)
    missed = dispatch(send, store, NOW + 50)
    assert state().get("ready", []) == [ids[n] for n in ran]
    assert missed == [NAME] * (2 - len(ran))
    assert record(state).get("missed", "0") == str(2 - len(ran))
    assert [f"job:{name}" in state() for name in ids] == [n in ran for n in range(2)]


def test_an_occurrence_is_skipped_while_the_one_before_runs(send: Send, store: Store, state: State) -> None:
    _, second = put(send, store, NOW, NOW + 60)
    dispatch(send, store, NOW)
    fetch(send, store, NOW)
    assert dispatch(send, store, NOW + 60) == [NAME]
    after = state()
    assert f"job:{second}" not in after
    assert "schedule" not in after


def ended_by(send: Send, store: Store, job: FetchedJob, how: str) -> None:
    """End a run for good, by the verb of that name."""
    now = NOW + 70
    if how == "complete":
        send(store.at(now).complete("w", [(job, DONE)]))
    elif how == "bury":
        send(store.at(now).bury("w", [(job, Buried("no", False))]))
    elif how == "abort":
        send(store.at(now).abort("w", [(job, Aborted(60, False))]))
    else:
        send(store.at(now).cancel(job.id))
        if how == "retry":
            send(store.at(now).retry("w", [(job, Retried(1, "no"))]))
        elif how == "requeue":
            send(store.at(now).requeue("w", "it died"))
        else:
            send(store.at(now).start("w", (job.id,), hold=1, lease=15))


@pytest.mark.parametrize(("overlap", "ran"), [("skip", [0]), ("wait", [0]), ("allow", [0, 1, 2])])
def test_occurrences_due_at_one_opening_follow_the_overlap_policy(
    send: Send, store: Store, state: State, overlap: Overlap, ran: list[int]
) -> None:
    put(send, store, overlap=overlap)
    rows = [Occurrence(f"{NAME}@{NOW + n:.0f}", NOW + n, NOW + 60, 5) for n in range(3)]
    send(store.recur(NAME, f"{NOW + 900:.0f}".encode(), rows, next_=NOW + 960))
    ended = list[str]()
    for _ in range(3):  # so many are due that dispatch moves them in several steps
        send(store.at(NOW + 60).dispatch(limit=1, cap=1000))
        for job in fetch(send, store, NOW + 60):
            send(store.at(NOW + 60).complete("w", [(job, DONE)]))
            ended.append(job.id)
    assert ended == [rows[n].id for n in ran]
    assert record(state).get("missed", "0") == str(3 - len(ran))


@pytest.mark.parametrize("how", ["complete", "bury", "abort", "retry", "requeue", "start"])
def test_waiting_occurrence_runs_after_any_end_of_the_previous_one(
    send: Send, store: Store, state: State, how: str
) -> None:
    first, second, third = put(send, store, NOW, NOW + 60, NOW + 65, overlap="wait")
    dispatch(send, store, NOW)
    (job,) = fetch(send, store, NOW)
    assert dispatch(send, store, NOW + 65) == [NAME]  # one waits; the third is one too many
    assert state()["schedule"] == {second: float("inf")}
    assert f"job:{third}" not in state()
    ended_by(send, store, job, how)
    after = state()
    assert after["schedule"] == {second: NOW + 60}
    assert (after[f"recurrence:{NAME}"]["runs"], after[f"recurrence:{NAME}"]["last_id"]) == ("1", first)
    dispatch(send, store, NOW + 70)
    assert state()["ready"] == [second]
    assert "waiting" not in record(state)


def test_an_occurrence_runs_when_the_one_it_waits_for_is_cancelled(send: Send, store: Store, state: State) -> None:
    first, second = put(send, store, NOW, NOW + 60, overlap="wait")
    dispatch(send, store, NOW)
    dispatch(send, store, NOW + 60)
    assert state()["schedule"] == {second: float("inf")}
    assert send(store.at(NOW + 60).cancel(first)).place == "ready"
    assert state()["schedule"] == {second: NOW + 60}
    assert "runs" not in record(state)


def test_cancelled_waiting_occurrence_is_replaced_by_the_next(send: Send, store: Store, state: State) -> None:
    _, second, third = put(send, store, NOW, NOW + 60, NOW + 120, overlap="wait")
    dispatch(send, store, NOW)
    fetch(send, store, NOW)
    dispatch(send, store, NOW + 60)
    send(store.at(NOW + 61).cancel(second))
    assert dispatch(send, store, NOW + 120) == []
    assert state()["schedule"] == {third: float("inf")}
    assert record(state)["waiting"] == third


def test_a_dead_occurrence_that_is_revived_runs_beside_the_next(send: Send, store: Store, state: State) -> None:
    first, second = put(send, store, NOW, NOW + 60, misfire="skip")
    dispatch(send, store, NOW)
    (job,) = fetch(send, store, NOW)
    send(store.at(NOW).bury("w", [(job, Buried("no", False))]))
    dispatch(send, store, NOW + 60)
    assert [job.id for job in fetch(send, store, NOW + 60)] == [second]
    send(store.at(NOW + 61).revive([first]))
    assert dispatch(send, store, NOW + 61) == []
    assert state()["ready"] == [first]


def test_recurrence_is_advanced_once(send: Send, store: Store, state: State) -> None:
    (first,) = put(send, store, NOW, next_=NOW + 60)
    before = state()
    again = Occurrence(f"{NAME}@{NOW:.0f}", NOW, NOW, 5)
    assert send(store.recur(NAME, b"0", [again], next_=NOW + 60)) is None
    assert state() == before
    assert before["recurrences"] == {NAME: NOW + 60}
    # The score is as it was read, and the occurrence is scheduled already: moved on, and nothing scheduled twice.
    assert send(store.recur(NAME, b"1900000060", [again], next_=NOW + 120)) == []
    assert state()["schedule"] == {first: NOW}


def test_changed_recurrence_is_not_advanced_by_its_previous_rule(send: Send, store: Store, state: State) -> None:
    """A dispatcher has read the record, and another version of the app declares it before the dispatcher writes."""
    for rule in ("@yearly", "@hourly", "@daily"):
        (before,) = state().get("recurrences", {"none": 1}).values()
        send(store.declare(Declared(name=NAME, rule=rule, payload=b'{"task":"t"}')))
        assert send(store.at(NOW).recur(NAME, b"%d" % before, [], next_=NOW + 9e6)) is None
        (score,) = state()["recurrences"].values()
        assert score <= 0  # from now on
    assert send(store.declare(Declared(name=NAME, rule="@daily", payload=b'{"task":"t"}'))) == "same"
    assert send(store.at(NOW).recur(NAME, b"%d" % score, [], next_=NOW + 60)) == []
    assert state()["recurrences"] == {NAME: NOW + 60}


def test_recurrence_stops_after_its_count_of_occurrences(send: Send, store: Store, state: State) -> None:
    send(store.declare(Declared(name=NAME, rule="* * * * *", payload=b'{"task":"t"}', count=2)))
    rows = [Occurrence(f"{NAME}@{n}", NOW + n, NOW + n, 5) for n in range(3)]
    assert send(store.recur(NAME, b"0", rows, next_=NOW + 60)) == [rows[0].id, rows[1].id]
    assert state()["recurrences"] == {NAME: float("inf")}


def test_a_changed_recurrence_removes_its_scheduled_occurrences(send: Send, store: Store, state: State) -> None:
    first, second = put(send, store, NOW, NOW + 60)
    dispatch(send, store, NOW)
    assert send(store.declare(Declared(name=NAME, rule="0 9 * * *", payload=b'{"task":"t"}'))) == "changed"
    after = state()
    assert after["recurrences"] == {NAME: 0}
    assert after["ready"] == [first]
    assert "schedule" not in after
    assert f"job:{second}" not in after
    assert send(store.declare(Declared(name=NAME, rule="0 9 * * *", payload=b'{"task":"t"}'))) == "same"


WAITS: dict[str, tuple[Callable[[Store], Callable[..., Any]], Outcome]] = {
    "retried": (lambda store: store.retry, Retried(60, "no")),
    "snoozed": (lambda store: store.snooze, Snoozed("no file", 60)),
    "of an unknown task": (lambda store: store.defer, Deferred(NOW + 60, "x", unknown_since=NOW)),
}
CHANGES: dict[str, Callable[[Store], Call[Any]]] = {
    "changed": lambda store: store.declare(Declared(name=NAME, rule="@daily", payload=b'{"task":"t"}')),
    "paused": lambda store: store.hold(NAME, True),
    "removed": lambda store: store.remove(NAME),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("waits", WAITS)
def test_due_occurrence_is_not_removed_while_it_waits_for_a_retry(
    send: Send, store: Store, state: State, waits: str, change: str
) -> None:
    first, second = put(send, store, NOW, NOW + 600)
    dispatch(send, store, NOW)
    (job,) = fetch(send, store, NOW)
    verb, outcome = WAITS[waits]
    assert send(verb(store.at(NOW))("w", [(job, outcome)])) == []
    assert state()["schedule"].keys() == {first, second}
    send(CHANGES[change](store))
    assert state()["schedule"].keys() == {first}
    assert f"job:{second}" not in state()
    dispatch(send, store, NOW + 60)
    (job,) = fetch(send, store, NOW + 60)
    send(store.at(NOW + 60).complete("w", [(job, DONE)]))
    assert state()[f"job:{first}"]["outcome"] == "done"


def test_a_removed_recurrence_leaves_only_its_due_occurrences(send: Send, store: Store, state: State) -> None:
    first, _ = put(send, store, NOW, NOW + 60)
    dispatch(send, store, NOW)
    send(store.remove(NAME))
    after = state()
    assert after["ready"] == [first]
    assert {name for name in after if name.startswith(("recurrence", "schedule"))} == set()
    (job,) = fetch(send, store, NOW)
    send(store.at(NOW).complete("w", [(job, DONE)]))
    assert "recurrences" not in state()


# A clock that was ahead.

AHEAD = 15.0


def test_recurrence_advanced_by_a_clock_ahead_recurs_from_now_on(send: Send, store: Store, state: State) -> None:
    declared = Declared(name=NAME, rule="* * * * *", payload=b'{"task":"t"}', count=5)
    send(store.declare(declared))
    rows = [Occurrence(f"{NAME}@{at:.0f}", at, at, 5.0) for at in (NOW + 3600, NOW + 3660)]
    send(store.at(NOW + 3600).recur(NAME, b"0", rows, next_=NOW + 3720))
    before = state()
    # Now it is no further ahead than a right clock moves it.
    assert send(store.at(NOW + 3590).rewind(AHEAD, 0, 10)) == (1, [])
    assert state() == before
    assert send(store.at(NOW).rewind(AHEAD, 0, 10)) == (1, [NAME])
    after = state()
    assert after["recurrences"] == {NAME: 0.0}
    assert "schedule" not in after
    assert not [key for key in after if key.startswith("job:")]
    assert record(state)["made"] == "0"
    assert send(store.at(NOW).rewind(AHEAD, 0, 10)) == (0, [])
    assert state() == after


def test_recurrence_advanced_before_the_clock_was_ahead_is_unchanged(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    for n, moved in enumerate((NOW - 60, NOW + 3600, NOW - 60, NOW + 3600)):
        send(store.declare(Declared(name=f"r{n}", rule="@daily", payload=b'{"task":"t"}')))
        send(store.at(moved).recur(f"r{n}", b"0", [], next_=NOW + 7200 + n))
    send(store.at(NOW + 3600).hold("r3", True))
    assert send(store.at(NOW).rewind(AHEAD, 0, 2)) == (2, ["r1"])
    assert send(store.at(NOW).rewind(AHEAD, 1, 2)) == (2, [])
    scores = {"r0": NOW + 7200, "r1": 0.0, "r2": NOW + 7202, "r3": float("inf")}
    assert state()["recurrences"] == scores
    raw.set(f"evsched:{{{store.queue}}}:recurrence:r0", "of another type")
    assert send(store.at(NOW).rewind(AHEAD, 0, 10)) == (3, [])


def test_a_recurrence_that_ended_by_a_clock_ahead_recurs_again(send: Send, store: Store, state: State) -> None:
    send(store.declare(Declared(name=NAME, rule="* * * * *", payload=b'{"task":"t"}', end=NOW + 1800)))
    send(store.at(NOW + 3600).recur(NAME, b"0", [], next_=None))
    assert send(store.at(NOW).rewind(AHEAD, 0, 10)) == (1, [NAME])
    assert state()["recurrences"] == {NAME: 0.0}


# A calendar that was changed.


def test_changed_calendar_replans_its_recurrence(send: Send, store: Store, state: State) -> None:
    first, second = put(send, store, NOW, NOW + 10)
    dispatch(send, store, NOW)
    assert send(store.at(NOW).replan(NAME))
    after = state()
    assert (after["recurrences"], after["ready"], record(state)["made"]) == ({NAME: 0}, [first], "1")
    assert f"job:{second}" not in after
    assert send(store.at(NOW).replan(NAME))
    assert state() == {**after, "recurrences": {NAME: -1}}


@pytest.mark.parametrize("seen", [b"0", b"-1"])
def test_outdated_calendar_does_not_advance_a_recurrence(send: Send, store: Store, state: State, seen: bytes) -> None:
    send(store.declare(Declared(name=NAME, rule="* * * * *", payload=b'{"task":"t"}', skip="holidays")))
    if seen == b"-1":
        send(store.at(NOW).replan(NAME))
    assert state()["recurrences"] == {NAME: float(seen)}
    assert send(store.at(NOW).replan(NAME))
    assert send(store.at(NOW).recur(NAME, seen, [], next_=NOW + 60)) is None
    assert state()["recurrences"] == {NAME: -1 - float(seen)}


@pytest.mark.parametrize("why", ["paused", "retired", "overdue", "gone"])
def test_stopped_or_overdue_recurrence_is_not_replanned(send: Send, store: Store, state: State, why: str) -> None:
    revision = send(store.at(NOW).register("app", "content")).revision
    send(store.declare(Declared(name=NAME, rule="* * * * *", payload=b'{"task":"t"}'), "app", revision))
    send(store.at(NOW).recur(NAME, b"0", [], next_=NOW + 60))
    if why == "paused":
        send(store.at(NOW).hold(NAME, True, until=NOW + 99))
    elif why == "retired":
        send(store.at(NOW).retire(NAME, "app", revision))
    elif why == "gone":
        send(store.remove(NAME))
    before = state()
    assert send(store.at(NOW + 61).replan(NAME)) is (why == "overdue")
    assert state() == before


def test_recurrence_stopped_for_a_missing_calendar_resumes(send: Send, store: Store, state: State) -> None:
    send(store.declare(Declared(name=NAME, rule="* * * * *", payload=b'{"task":"t"}', skip="holidays")))
    send(store.at(NOW).recur(NAME, b"0", [], next_=None, reason="there is no calendar holidays"))
    assert send(store.at(NOW).replan(NAME))
    assert state()["recurrences"] == {NAME: 0}


def test_last_success_of_each_recurrence_is_kept_and_read(send: Send, store: Store, raw: Any) -> None:
    def end(planned: float, outcome: Done | Buried) -> None:
        put(send, store, planned)
        dispatch(send, store, planned)
        (job,) = fetch(send, store, planned)
        verb = store.at(planned + 5).complete if isinstance(outcome, Done) else store.at(planned + 5).bury
        send(verb("w", [(job, outcome)]))  # pyright: ignore[reportArgumentType] - the one that fits
        raw.zadd(f"evsched:{{{store.queue}}}:recurrences", {NAME: 0})

    def stats() -> list[RecurrenceStats]:
        return send(store.recurrence_stats())

    assert stats() == []
    end(NOW, Buried("no", False))
    assert stats() == [RecurrenceStats(NAME, NOW, None)]
    end(NOW + 60, DONE)
    end(NOW + 120, Buried("no", False))
    assert stats() == [RecurrenceStats(NAME, NOW + 120, NOW + 65)]
    send(store.at(NOW + 130).hold(NAME, True))
    assert stats() == [RecurrenceStats(NAME, None, NOW + 65)]
    # A record of an older evsched, a malformed one, and a key of another type.
    root = f"evsched:{{{store.queue}}}:"
    raw.hset(f"{root}recurrence:old", mapping={"last_outcome": "done", "last_finished": "7", "last_success": "x"})
    raw.set(f"{root}recurrence:odd", "x")
    raw.zadd(f"{root}recurrences", {"old": 1, "odd": 2})
    assert {(one.name, one.due, one.success) for one in stats()} >= {("old", None, 7.0)}
    assert send(store.recurrence_stats(most=2)) == []
