"""Pauses of recurrences, script by script: with an end and a reason, through deploys, by several operators."""

from __future__ import annotations

from typing import Any, cast

import pytest

from evsched.errors import JobMissing
from evsched.jobs.job import Aborted, Buried, Done, Retried
from evsched.recurrence.recurrence import Declared, Occurrence
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

NAME = "r"
INF = float("inf")


def declared(rule: str = "@daily") -> Declared:
    return Declared(name=NAME, rule=rule, payload=b'{"task":"t"}')


def pause(send: Send, store: Store, until: float | None = NOW + 60, why: str = "the disk is full") -> None:
    assert send(store.at(NOW).hold(NAME, True, until=until, why=why))


def over(send: Send, store: Store, now: float) -> list[tuple[str, bytes]]:
    return [(name, end) for name, end, _ in send(store.at(now).agenda(15, 9)).over]


@pytest.fixture
def record(state: State) -> Any:
    return lambda: state()[f"recurrence:{NAME}"]


def test_a_pause_has_an_end_and_a_reason_until_it_is_resumed(
    send: Send, store: Store, state: State, record: Any
) -> None:
    send(store.declare(declared()))
    before = state()
    pause(send, store)
    fields = {"paused": f"{NOW:.6f}", "paused_until": f"{NOW + 60:.6f}", "paused_why": "the disk is full"}
    assert {name: value for name, value in record().items() if name.startswith("paused")} == fields
    assert (state()["recurrences"], state()["pauses"]) == ({NAME: INF}, {NAME: NOW + 60})
    send(store.at(NOW + 1).hold(NAME, False))
    assert state() == before


def test_a_recurrence_that_nobody_has_declared_is_neither_paused_nor_removed(
    send: Send, store: Store, state: State
) -> None:
    for call in (store.at(NOW).hold(NAME, True), store.at(NOW).hold(NAME, False), store.remove(NAME)):
        with pytest.raises(JobMissing, match=NAME):
            send(call)
    assert state() == {}


@pytest.mark.parametrize("gone", ["recurrences", "record"])
def test_pause_of_a_recurrence_that_is_gone_ends_and_plans_nothing(
    send: Send, store: Store, state: State, raw: Any, gone: str
) -> None:
    root = f"evsched:{{{store.queue}}}:"
    send(store.declare(declared()))
    pause(send, store)
    ((_, end),) = over(send, store, NOW + 61)
    if gone == "record":
        raw.set(f"{root}recurrence:{NAME}", "x")
    else:
        raw.zrem(f"{root}recurrences", NAME)
    assert not send(store.unpause(NAME, end, NOW + 100))
    after = state()
    assert "pauses" not in after
    assert after.get("recurrences", {}) == ({NAME: INF} if gone == "record" else {})


def test_a_second_pause_takes_the_place_of_the_first(send: Send, store: Store, state: State, record: Any) -> None:
    send(store.declare(declared()))
    pause(send, store)
    pause(send, store, NOW + 90, "it is still full")
    assert (state()["pauses"], record()["paused_why"]) == ({NAME: NOW + 90}, "it is still full")
    pause(send, store, None, "")
    assert "pauses" not in state()
    assert record().keys().isdisjoint({"paused_until", "paused_why"})
    assert "paused" in record()


def test_the_agenda_has_the_pauses_that_are_over_and_the_next_end(send: Send, store: Store) -> None:
    send(store.declare(declared()))
    pause(send, store)
    agenda = send(store.at(NOW + 59).agenda(15, 9))
    assert (agenda.rows, agenda.over, agenda.pause_ends) == ([], [], NOW + 60)
    agenda = send(store.at(NOW + 60).agenda(15, 9))
    assert agenda.pause_ends is None
    ((name, end, fields),) = agenda.over
    assert (name, float(end), fields["rule"]) == (NAME, NOW + 60, b"@daily")


def test_a_pause_whose_time_is_over_ends_once(send: Send, store: Store, state: State, record: Any) -> None:
    send(store.declare(declared()))
    pause(send, store)
    ((_, end),) = over(send, store, NOW + 61)
    assert send(store.unpause(NAME, end, NOW + 100))
    after = state()
    assert after["recurrences"] == {NAME: NOW + 100}
    assert "pauses" not in after
    assert not [name for name in record() if name.startswith("paused")]
    assert not send(store.unpause(NAME, end, NOW + 100))
    assert state() == after


@pytest.mark.parametrize("meanwhile", ["paused again", "resumed", "removed"])
def test_a_dispatcher_that_comes_late_ends_no_pause_of_another(
    send: Send, store: Store, state: State, meanwhile: str
) -> None:
    send(store.declare(declared()))
    pause(send, store)
    ((_, end),) = over(send, store, NOW + 61)
    if meanwhile == "paused again":
        pause(send, store, NOW + 90)
    elif meanwhile == "resumed":
        send(store.at(NOW + 61).hold(NAME, False))
    else:
        send(store.remove(NAME))
    before = state()
    assert not send(store.unpause(NAME, end, NOW + 100))
    assert state() == before


def test_a_pause_with_an_end_outlives_deploys(send: Send, store: Store, state: State, record: Any) -> None:
    def deploy(content: str, *rules: str) -> None:
        found = send(store.at(NOW).register("app", content))
        for rule in rules:
            send(store.declare(declared(rule), "app", found.revision))
        if not rules:
            send(store.at(NOW).retire(NAME, "app", found.revision))

    deploy("old", "@daily")
    pause(send, store)
    deploy("changed", "@hourly")
    assert (state()["recurrences"], record()["paused_why"]) == ({NAME: INF}, "the disk is full")
    deploy("without it")
    deploy("with it again", "@weekly")
    assert (state()["recurrences"], state()["pauses"]) == ({NAME: INF}, {NAME: NOW + 60})
    deploy("without it again")
    assert send(store.unpause(NAME, over(send, store, NOW + 61)[0][1], NOW + 100))
    assert state()["recurrences"] == {NAME: INF}  # it is stopped, and no longer paused
    assert "paused" not in record()


def test_old_client_can_pause_and_resume_a_recurrence_paused_with_an_end(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    """The script of an older evsched knows neither ends nor reasons."""
    root = f"evsched:{{{store.queue}}}:"
    send(store.declare(declared()))
    pause(send, store)
    raw.hdel(f"{root}recurrence:{NAME}", "paused")
    raw.zadd(f"{root}recurrences", {NAME: 0})
    send(store.at(NOW).recur(NAME, b"0", [Occurrence(f"{NAME}@9", NOW + 9, NOW + 9, 5)], next_=NOW + 99))
    assert send(store.unpause(NAME, over(send, store, NOW + 61)[0][1], NOW + 7777))
    after = state()
    assert (after["recurrences"], "pauses" in after) == ({NAME: NOW + 99}, False)


# After failures.


def end_run(send: Send, store: Store, how: str, n: int) -> None:
    """Run the n-th occurrence, and end it: by the verb of that name, or as expired."""
    now, job_id = NOW + 60 * n, f"{NAME}@{NOW + 60 * n:.0f}"
    seen = f"{send(store.next_planned(NAME)):.0f}".encode()
    put = [Occurrence(job_id, now, now, 5), Occurrence(f"{NAME}@{now + 5:.0f}", now + 5, now + 5, 5)]
    assert send(store.at(now).recur(NAME, seen, put, next_=now + 60)) == [one.id for one in put]
    send(store.at(now).dispatch(limit=9, cap=1000))
    jobs = send(store.at(now).start("w", (), hold=9, lease=15)).jobs
    assert [job.id for job in jobs] == [job_id]
    if how == "complete":
        send(store.at(now).complete("w", [(jobs[0], Done(b"null", 9, False))]))
    elif how == "abort":
        send(store.at(now).abort("w", [(jobs[0], Aborted(9, False))]))
    else:
        send(store.at(now).bury("w", [(jobs[0], Buried("no", False, outcome=cast(Any, how)))]))


def failing(send: Send, store: Store, *ends: str) -> None:
    send(store.declare(Declared(name=NAME, rule="* * * * *", payload=b'{"task":"t"}', pause_after=3)))
    for n, how in enumerate(ends):
        if send(store.next_planned(NAME)) != INF:
            end_run(send, store, how, n)


def test_successes_and_failures_are_counted_apart(send: Send, store: Store, record: Any) -> None:
    failing(send, store, "complete", "dead", "expired", "abort", "complete", "dead")
    counts = {field: record().get(field) for field in ("runs", "done", "failed", "failing")}
    assert counts == {"runs": "6", "done": "2", "failed": "3", "failing": "1"}


def test_three_failures_in_a_row_pause_and_unschedule_a_recurrence(
    send: Send, store: Store, state: State, record: Any
) -> None:
    failing(send, store, "dead", "dead", "complete", "dead", "expired")
    assert "paused" not in record()
    end_run(send, store, "dead", 5)
    after = state()
    assert (record()["paused"], record()["paused_why"]) == (f"{NOW + 300:.6f}", "3 failures in a row")
    assert after["recurrences"] == {NAME: INF}
    assert "schedule" not in after
    assert f"job:{NAME}@{NOW + 305:.0f}" not in after


def test_a_cancelled_run_neither_fails_nor_ends_a_row_of_failures(send: Send, store: Store, record: Any) -> None:
    failing(send, store, "dead", "abort", "dead", "abort")
    assert (record()["failing"], "paused" in record()) == ("2", False)


def test_retry_does_not_count_as_a_failure(send: Send, store: Store, record: Any) -> None:
    failing(send, store)
    send(store.at(NOW).recur(NAME, b"0", [Occurrence(f"{NAME}@9", NOW, NOW, 5)], next_=NOW + 60))
    for n in range(4):
        send(store.at(NOW + n).dispatch(limit=9, cap=1000))
        (job,) = send(store.at(NOW + n).start("w", (), hold=9, lease=15)).jobs
        send(store.at(NOW + n).retry("w", [(job, Retried(1, "no"))]))
    assert record().keys().isdisjoint({"failing", "failed", "paused"})


def test_after_a_resume_three_more_failures_are_allowed(send: Send, store: Store, record: Any) -> None:
    failing(send, store, "dead", "dead", "dead")
    send(store.at(NOW).hold(NAME, False))
    assert "failing" not in record()
    end_run(send, store, "dead", 10)
    end_run(send, store, "dead", 11)
    assert "paused" not in record()
    end_run(send, store, "dead", 12)
    assert "paused" in record()


def test_a_pause_by_hand_keeps_its_reason_when_runs_fail(send: Send, store: Store, record: Any) -> None:
    failing(send, store, "dead", "dead")
    pause(send, store)
    send(store.at(NOW + 500).trigger(NAME, f"{NOW + 500:.6f}"))
    send(store.at(NOW + 500).dispatch(limit=9, cap=1000))
    (job,) = send(store.at(NOW + 500).start("w", (), hold=9, lease=15)).jobs
    send(store.at(NOW + 500).bury("w", [(job, Buried("no", False))]))
    assert (record()["failing"], record()["paused_why"]) == ("3", "the disk is full")


def test_a_backfill_that_fails_stops(send: Send, store: Store, state: State) -> None:
    failing(send, store)
    send(store.at(NOW).backfill(NAME, [f"{NOW - 60 * n:.0f}" for n in range(9, 0, -1)]))
    for _ in range(9):
        send(store.at(NOW).dispatch(limit=9, cap=1000))
        for job in send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs:
            send(store.at(NOW).bury("w", [(job, Buried("no", False))]))
    assert len(state()["dead"]) == 3
    assert len(state()[f"requests:{NAME}"]) == 6


@pytest.mark.parametrize("value", [b"", b"abc", b"-1", b"0", b"0x3", b"9" * 30])
def test_invalid_pause_after_does_not_stop_the_end_of_a_run(
    send: Send, store: Store, record: Any, raw: Any, value: bytes
) -> None:
    failing(send, store)
    raw.hset(f"evsched:{{{store.queue}}}:recurrence:{NAME}", "pause_after", value)
    for n in range(4):
        end_run(send, store, "dead", n)
    assert (record()["failed"], "paused" in record()) == ("4", False)


@pytest.mark.parametrize("lost", ["stopped by a client", "a key of a wrong type"])
def test_a_recurrence_that_a_client_has_stopped_is_not_paused(
    send: Send, store: Store, state: State, raw: Any, lost: str
) -> None:
    failing(send, store, "dead", "dead")
    now, job_id = NOW + 600, f"{NAME}@{NOW + 600:.0f}"
    send(store.at(now).recur(NAME, f"{NOW + 120:.0f}".encode(), [Occurrence(job_id, now, now, 5)], next_=now + 60))
    send(store.at(now).dispatch(limit=9, cap=1000))
    (job,) = send(store.at(now).start("w", (), hold=9, lease=15)).jobs
    raw.delete(f"evsched:{{{store.queue}}}:recurrences")
    if lost != "stopped by a client":
        raw.set(f"evsched:{{{store.queue}}}:recurrences", "x")
    assert send(store.at(now).bury("w", [(job, Buried("no", False))])) == []
    assert job_id in state()["dead"]
    assert "recurrences" not in state()


def test_a_pauses_key_of_a_wrong_type_stops_no_recurrence(send: Send, store: Store, state: State, raw: Any) -> None:
    raw.set(f"evsched:{{{store.queue}}}:pauses", "x")
    send(store.declare(declared()))
    agenda = send(store.at(NOW).agenda(15, 9))
    assert ([name for name, *_ in agenda.rows], agenda.pause_ends, agenda.over) == ([NAME], None, [])
    assert send(store.at(NOW).hold(NAME, True))
    assert send(store.at(NOW).hold(NAME, False))
    send(store.remove(NAME))
    assert state() == {}


def test_a_pause_after_failures_is_reported_by_one_dispatcher(send: Send, store: Store, raw: Any) -> None:
    raw.sadd(f"evsched:{{{store.queue}}}:newly_paused", "r", "s")
    assert send(store.at(NOW).agenda(15, 9)).newly_paused == 2
    assert sorted(send(store.take_newly_paused(9))) == ["r", "s"]
    assert send(store.take_newly_paused(9)) == []
    assert send(store.at(NOW).agenda(15, 9)).newly_paused == 0
