"""Jobs of the ledger: their ends are reported, and their records stay until the ledger has them."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.jobs.job import Buried, Deferred, Done, FetchedJob, Retried
from evsched.store.client_calls import New
from evsched.store.operator_calls import condition
from evsched.store.relay_calls import Report, RowJob, read_ends
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State

PAYLOAD = b'{"task":"t","args":[1]}'
OTHER = b'{"task":"other"}'
DONE = Done(b"1", 60.0, False)
AT_ONCE = Done(b"1", 0.0, False)


@pytest.fixture(autouse=True)
def stream(send: Send, store: Store) -> None:
    send(store.follow_ends())


def enqueue(send: Send, store: Store, row: int | None, payload: bytes = PAYLOAD) -> str:
    """Schedule the job of a row, or that of a client; return why it was refused."""
    if row is None:
        send(store.at(NOW).enqueue([New("a", payload, due=NOW)]))
        return ""
    return send(store.at(NOW).relay([RowJob("a", payload, None, None, NOW, row)])).get("a", "")


def start(send: Send, store: Store) -> FetchedJob:
    send(store.at(NOW).dispatch(limit=100, cap=1000))
    (run,) = send(store.at(NOW).start("w", (), hold=9, lease=15)).jobs
    return run


def read(send: Send, store: Store) -> list[Report]:
    return send(read_ends([store.queue], "r1", 10, 0.01)).get(store.queue, [])


def outcomes(reports: list[Report]) -> list[tuple[str, str, str, str]]:
    return [(one.id, one.row, one.outcome, one.retention) for one in reports]


def is_kept(raw: Any, store: Store) -> bool:
    return raw.ttl(f"evsched:{{{store.queue}}}:job:a") == -1


@pytest.mark.parametrize("done", [DONE, AT_ONCE])
def test_the_record_of_a_job_stays_until_its_end_is_settled(send: Send, store: Store, raw: Any, done: Done) -> None:
    enqueue(send, store, 7)
    send(store.at(NOW).complete("w", [(start(send, store), done)]))
    assert is_kept(raw, store)
    reports = read(send, store)
    assert outcomes(reports) == [("a", "7", "done", f"{done.retention:g}")]
    assert send(store.settle(reports)) == 1
    assert raw.ttl(f"evsched:{{{store.queue}}}:job:a") == (60 if done.retention else -2)
    assert send(store.settle(reports)) == 0
    assert raw.xlen(f"evsched:{{{store.queue}}}:ends") == 0


@pytest.mark.parametrize("done", [DONE, AT_ONCE])
def test_a_row_that_comes_again_changes_nothing_wherever_its_job_is(
    send: Send, store: Store, state: State, done: Done
) -> None:
    enqueue(send, store, 7)
    steps = [
        lambda: None,
        lambda: runs.append(start(send, store)),
        lambda: send(store.at(NOW).complete("w", [(runs[0], done)])),
    ]
    runs = list[FetchedJob]()
    for step in steps:
        step()
        before = state()
        enqueue(send, store, 7)
        assert state() == before


def test_a_row_that_comes_again_does_not_revive_a_dead_job(send: Send, store: Store, state: State) -> None:
    enqueue(send, store, 7)
    send(store.at(NOW).bury("w", [(start(send, store), Buried("why", False))]))
    before = state()
    enqueue(send, store, 7)
    assert state() == before
    assert outcomes(read(send, store)) == [("a", "7", "dead", "")]


@pytest.mark.parametrize("dies", [True, False])
def test_another_row_of_the_same_id_is_another_job(send: Send, store: Store, raw: Any, dies: bool) -> None:
    enqueue(send, store, 7)
    run = start(send, store)
    send(store.at(NOW).bury("w", [(run, Buried("x", False))]) if dies else store.at(NOW).complete("w", [(run, DONE)]))
    first = read(send, store)
    enqueue(send, store, 8, b'{"task":"t","args":[2]}')
    send(store.settle(first))
    assert is_kept(raw, store), "the end of row 7 is no end of row 8"
    again = start(send, store)
    assert (again.attempt, again.payload) == (1, b'{"task":"t","args":[2]}')
    send(store.at(NOW).complete("w", [(again, DONE)]))
    assert outcomes(read(send, store)) == [("a", "8", "done", "60")]


@pytest.mark.parametrize("runs", [False, True])
def test_a_job_that_a_client_has_scheduled_under_the_id_is_left_alone(
    send: Send, store: Store, state: State, runs: bool
) -> None:
    enqueue(send, store, None)
    if runs:
        start(send, store)
    before = state()
    assert "not of this ledger" in enqueue(send, store, 7, OTHER)
    assert state() == before


def test_client_job_with_the_id_of_an_ended_row_is_left_alone(send: Send, store: Store, raw: Any, state: State) -> None:
    enqueue(send, store, 7)
    send(store.at(NOW).complete("w", [(start(send, store), DONE)]))
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW})
    before = state()
    assert enqueue(send, store, 7) == ""
    assert "not of this ledger" in enqueue(send, store, 8, OTHER)
    assert state() == before


@pytest.mark.parametrize("place", ["schedule", "backlog", "ready", "fetched"])
def test_job_of_a_later_row_replaces_a_waiting_one(
    send: Send, store: Store, state: State, raw: Any, place: str
) -> None:
    root = f"evsched:{{{store.queue}}}:"
    if place == "backlog":
        send(store.at(NOW).pause())
    enqueue(send, store, 7)
    if place != "schedule":
        send(store.at(NOW).dispatch(limit=100, cap=1000))
    if place == "fetched":
        raw.lmove(f"{root}ready", f"{root}processing:w", "LEFT", "RIGHT")
    assert enqueue(send, store, 8, OTHER) == ""
    before = state()
    assert enqueue(send, store, 8, OTHER) == ""
    assert state() == before
    assert "later row number, 8" in enqueue(send, store, 7)
    assert state() == before
    send(store.at(NOW).resume())
    if place == "fetched":
        assert send(store.at(NOW).start("w", ["a"], hold=9, lease=15)).jobs == []
    run = start(send, store)
    assert (run.payload, run.attempt) == (OTHER, 1)
    send(store.at(NOW).complete("w", [(run, DONE)]))
    assert outcomes(read(send, store)) == [("a", "8", "done", "60")]
    assert raw.zcard(f"{root}schedule") == 0


@pytest.mark.parametrize("how", ["done", "dead", "retried"])
def test_the_job_of_a_later_row_runs_after_the_run_of_an_earlier_one(
    send: Send, store: Store, state: State, raw: Any, how: str
) -> None:
    enqueue(send, store, 7)
    run = start(send, store)
    for _ in range(2):
        assert enqueue(send, store, 8, OTHER) == ""
    send(store.at(NOW).dispatch(limit=100, cap=1000))
    before = state()
    assert enqueue(send, store, 8, OTHER) == ""
    assert state() == before
    assert send(store.mark("a")).next_row == "8"
    if how == "retried":
        send(store.at(NOW).retry("w", [(run, Retried(0.0, "x"))]))
        assert enqueue(send, store, 8, OTHER) == ""
        run = start(send, store)
        assert (run.payload, run.attempt) == (PAYLOAD, 2)
    if how == "dead":
        send(store.at(NOW).bury("w", [(run, Buried("x", False))]))
    else:
        send(store.at(NOW).complete("w", [(run, DONE)]))
    send(store.settle(read(send, store)))
    again = start(send, store)
    assert (again.payload, again.attempt) == (OTHER, 1)
    send(store.at(NOW).complete("w", [(again, DONE)]))
    assert outcomes(read(send, store)) == [("a", "8", "done", "60")]
    assert is_kept(raw, store)


@pytest.mark.parametrize("again", [False, True])
def test_a_row_that_waits_for_a_run_is_cancelled_or_replaced_with_it(send: Send, store: Store, again: bool) -> None:
    enqueue(send, store, 7)
    run = start(send, store)
    enqueue(send, store, 8, OTHER)
    if again:
        send(store.at(NOW).replace([New("a", b"{}", due=NOW)]))
    else:
        send(store.at(NOW).cancel("a"))
    send(store.at(NOW).complete("w", [(run, DONE)]))
    if again:
        last = start(send, store)
        assert last.payload == b"{}"
        send(store.at(NOW).complete("w", [(last, DONE)]))
    ended = outcomes(read(send, store))[-1]
    assert ended[:3] == ("a", "8", "done" if again else "cancelled")


@pytest.mark.parametrize("waits", ["for the run", pytest.param("for its retry", marks=pytest.mark.extra)])
def test_row_that_waits_for_a_run_ends_when_it_is_cancelled_alone(send: Send, store: Store, waits: str) -> None:
    enqueue(send, store, 7)
    run = start(send, store)
    enqueue(send, store, 8, OTHER)
    if waits == "for its retry":
        send(store.at(NOW).retry("w", [(run, Retried(9.0, "x"))]))
        send(store.at(NOW).cancel("a"))
        assert outcomes(read(send, store))[-1] == ("a", "8", "cancelled", "0")
        return
    assert send(store.at(NOW).cancel_matching(["a"], condition(task="other"))) == 1
    reports = read(send, store)
    assert outcomes(reports)[-1] == ("a", "8", "cancelled", "")
    send(store.settle(reports))
    assert send(store.at(NOW).complete("w", [(run, DONE)])) == []


def test_a_job_that_is_cancelled_while_it_waits_leaves_a_record_until_then(send: Send, store: Store, raw: Any) -> None:
    enqueue(send, store, 7)
    send(store.at(NOW).cancel("a"))
    assert is_kept(raw, store)
    enqueue(send, store, 7)
    assert raw.zcard(f"evsched:{{{store.queue}}}:schedule") == 0
    reports = read(send, store)
    assert outcomes(reports) == [("a", "7", "cancelled", "0")]
    assert reports[0].reason == "cancelled while it waited"
    send(store.settle(reports))
    assert not raw.exists(f"evsched:{{{store.queue}}}:job:a")


def test_a_run_that_is_cancelled_is_reported_when_it_ends(send: Send, store: Store, raw: Any) -> None:
    enqueue(send, store, 7)
    run = start(send, store)
    send(store.at(NOW).cancel("a"))
    assert read(send, store) == []
    send(store.at(NOW).retry("w", [(run, Retried(1.0, "x"))]))
    assert is_kept(raw, store)
    assert outcomes(read(send, store)) == [("a", "7", "cancelled", "300.000000")]


def test_a_dead_job_is_reported_again_when_it_is_revived_or_dropped(send: Send, store: Store, raw: Any) -> None:
    enqueue(send, store, 7)
    send(store.at(NOW).bury("w", [(start(send, store), Buried("x", False))]))
    send(store.at(NOW).revive(["a"]))
    send(store.at(NOW).bury("w", [(start(send, store), Buried("x", False))]))
    send(store.drop(["a"]))
    reports = read(send, store)
    assert [one.outcome for one in reports] == ["dead", "open", "dead", "dropped"]
    assert reports[3].reason == "dropped from the dead-letter set"
    assert sorted(reports, key=lambda one: one.order) == reports
    send(store.settle(reports[:3]))
    assert is_kept(raw, store)
    send(store.settle(reports[3:]))
    assert not raw.exists(f"evsched:{{{store.queue}}}:job:a")


def test_retried_deferred_or_replaced_job_is_not_reported_as_ended(send: Send, store: Store) -> None:
    enqueue(send, store, 7)
    send(store.at(NOW).retry("w", [(start(send, store), Retried(0.0, "x"))]))
    send(store.at(NOW).defer("w", [(start(send, store), Deferred(NOW, "x"))]))
    send(store.at(NOW).replace([New("a", PAYLOAD, due=NOW)]))
    run = start(send, store)
    assert read(send, store) == []
    send(store.at(NOW).complete("w", [(run, DONE)]))
    assert outcomes(read(send, store)) == [("a", "7", "done", "60")]


@pytest.mark.parametrize("row", ["", "x", "-1", "1" * 19, "1}", "7 "])
def test_invalid_row_number_does_not_make_a_ledger_job(send: Send, store: Store, raw: Any, row: str) -> None:
    enqueue(send, store, None)
    raw.hset(f"evsched:{{{store.queue}}}:job:a", "ledger", row)
    send(store.at(NOW).complete("w", [(start(send, store), DONE)]))
    assert read(send, store) == []
    assert not is_kept(raw, store)


def test_a_stream_of_the_wrong_type_does_not_keep_a_job_from_ending(send: Send, store: Store, raw: Any) -> None:
    raw.delete(f"evsched:{{{store.queue}}}:ends")
    raw.set(f"evsched:{{{store.queue}}}:ends", "x")
    enqueue(send, store, 7)
    assert send(store.at(NOW).complete("w", [(start(send, store), DONE)])) == []
    status = send(store.at(NOW).look("a"))
    assert status is not None
    assert status.place == "finished"


def test_relay_takes_over_ends_read_by_a_vanished_relay(send: Send, store: Store) -> None:
    enqueue(send, store, 7)
    send(store.at(NOW).complete("w", [(start(send, store), DONE)]))
    reports = read(send, store)
    assert send(read_ends([store.queue], "r1", 10, None)) == {store.queue: reports}
    assert send(store.inherit_ends("r2", 10, 3600.0)) == []
    assert send(store.inherit_ends("r2", 10, 0.0)) == reports
    assert {one.name: one.pending for one in send(store.consumers())} == {"r1": 0, "r2": 1}
    send(store.forget_consumer("r1"))
    send(store.settle(reports))
    assert {one.name: one.pending for one in send(store.consumers())} == {"r2": 0}


def scene(send: Send, store: Store, raw: Any, place: str) -> None:
    """Have the job of row 7 in a place."""
    enqueue(send, store, 7)
    if place == "backlog":
        send(store.at(NOW).pause())
    if place != "schedule":
        send(store.at(NOW).dispatch(limit=100, cap=1000))
    if place == "fetched":
        raw.lmove(f"evsched:{{{store.queue}}}:ready", f"evsched:{{{store.queue}}}:processing:w", "LEFT", "RIGHT")
        raw.zadd(f"evsched:{{{store.queue}}}:leases", {"w": NOW + 9})
    if place == "processing":
        send(store.at(NOW).start("w", (), hold=9, lease=15))


@pytest.mark.parametrize("row", [7, 8])
@pytest.mark.parametrize("place", ["schedule", "backlog", "ready"])
def test_a_waiting_job_whose_row_has_ended_is_withdrawn(
    send: Send, store: Store, state: State, raw: Any, place: str, row: int
) -> None:
    empty = state()
    scene(send, store, raw, place)
    assert send(store.at(NOW).withdraw([("a", row)])) == 1
    assert send(store.at(NOW).withdraw([("a", row)])) == 0
    send(store.at(NOW).resume())
    assert state() == empty
    assert read(send, store) == []


@pytest.mark.parametrize("place", ["fetched", "processing"])
def test_run_of_an_ended_row_is_stopped_and_not_reported(send: Send, store: Store, raw: Any, place: str) -> None:
    scene(send, store, raw, place)
    hears = raw.pubsub()
    hears.subscribe(f"evsched:{{{store.queue}}}:control:w")
    assert hears.get_message(timeout=5)["type"] == "subscribe"
    assert send(store.at(NOW).withdraw([("a", 7)])) == 1
    assert hears.get_message(timeout=5)["data"] == b"a"
    hears.close()
    send(store.at(NOW).requeue("w", "x"))
    assert send(store.at(NOW).start("v", (), hold=9, lease=15)).jobs == []
    status = send(store.at(NOW).look("a"))
    assert status is not None
    assert status.place == "finished"
    assert read(send, store) == []


@pytest.mark.parametrize("row", [None, 8])
@pytest.mark.parametrize("place", ["schedule", "fetched"])
def test_a_job_of_no_row_or_of_a_later_one_is_not_withdrawn(
    send: Send, store: Store, state: State, raw: Any, place: str, row: int | None
) -> None:
    enqueue(send, store, row)
    if place == "fetched":
        start(send, store)
    before = state()
    assert send(store.at(NOW).withdraw([("a", 7)])) == 0
    assert state() == before


@pytest.mark.parametrize("how", ["ended", "used again", "dead", "revived", "replaced", "runs again", "runs after"])
def test_a_job_that_has_ended_or_is_wanted_again_is_not_withdrawn(
    send: Send, store: Store, state: State, raw: Any, how: str
) -> None:
    enqueue(send, store, 7)
    if how == "replaced":
        send(store.at(NOW).replace([New("a", OTHER, due=NOW)]))
    else:
        run = start(send, store)
        if how in ("ended", "used again"):
            send(store.at(NOW).complete("w", [(run, DONE)]))
        if how in ("dead", "revived"):
            send(store.at(NOW).bury("w", [(run, Buried("x", False))]))
        if how == "revived":
            send(store.at(NOW).revive(["a"]))
        if how in ("used again", "runs again"):
            raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW})
        if how == "runs after":
            send(store.at(NOW).replace([New("a", OTHER, due=NOW)]))
    before = state()
    assert send(store.at(NOW).withdraw([("a", 7)])) == 0
    assert state() == before
    send(store.at(NOW).dispatch(limit=100, cap=1000))
    before = state()
    assert send(store.at(NOW).withdraw([("a", 7)])) == 0
    assert state() == before


def place(raw: Any, store: Store) -> tuple[float | None, bool]:
    """Return the due of job a on the schedule, and whether it is ready."""
    root = f"evsched:{{{store.queue}}}:"
    return raw.zscore(f"{root}schedule", "a"), b"a" in raw.lrange(f"{root}ready", 0, -1)


def revise(send: Send, store: Store, revision: int, due: float, row: int = 7) -> str:
    return send(store.at(NOW).relay([RowJob("a", PAYLOAD, None, None, due, row, revision)])).get("a", "")


@pytest.mark.parametrize("is_due", [False, True])
def test_a_row_whose_due_was_changed_moves_its_job_once(
    send: Send, store: Store, raw: Any, state: State, is_due: bool
) -> None:
    enqueue(send, store, 7)
    if is_due:
        send(store.at(NOW).dispatch(limit=100, cap=1000))
        assert place(raw, store) == (None, True)
    revise(send, store, 1, NOW + 60)
    assert place(raw, store) == (NOW + 60, False)
    send(store.at(NOW).reschedule("a", NOW + 30))  # a later change in Redis
    before = state()
    for _ in range(2):
        revise(send, store, 1, NOW + 60)
        assert state() == before
    revise(send, store, 3, NOW + 90)
    revise(send, store, 2, NOW + 70)
    assert place(raw, store) == (NOW + 90, False)


def test_a_job_that_is_scheduled_with_a_revision_has_seen_it(send: Send, store: Store, raw: Any) -> None:
    revise(send, store, 2, NOW + 60)
    send(store.at(NOW).reschedule("a", NOW + 30))
    revise(send, store, 2, NOW + 60)
    assert place(raw, store) == (NOW + 30, False)
    revise(send, store, 1, NOW + 90, row=8)  # the row is used for another job
    assert place(raw, store) == (NOW + 90, False)


def test_a_job_that_runs_or_has_ended_is_not_moved(send: Send, store: Store, raw: Any, state: State) -> None:
    enqueue(send, store, 7)
    run = start(send, store)
    revise(send, store, 1, NOW + 60)
    assert place(raw, store) == (None, False)
    send(store.at(NOW).retry("w", [(run, Retried(5, "why"))]))
    revise(send, store, 1, NOW + 60)
    assert place(raw, store) == (NOW + 5, False)
    send(store.at(NOW + 5).dispatch(limit=100, cap=1000))
    (run,) = send(store.at(NOW + 5).start("w", (), hold=9, lease=15)).jobs
    send(store.at(NOW).complete("w", [(run, DONE)]))
    before = state()
    revise(send, store, 2, NOW + 60)
    assert state() == before


@pytest.mark.parametrize("is_due", [False, True])
def test_a_row_cancels_its_job_that_waits(send: Send, store: Store, raw: Any, state: State, is_due: bool) -> None:
    enqueue(send, store, 7)
    if is_due:
        send(store.at(NOW).dispatch(limit=100, cap=1000))
    send(store.at(NOW).cancel_rows([("a", 7)]))
    assert place(raw, store) == (None, False)
    before = state()
    send(store.at(NOW).cancel_rows([("a", 7)]))
    assert state() == before
    reports = read(send, store)
    assert outcomes(reports) == [("a", "7", "cancelled", "0")]
    send(store.settle(reports))
    assert not raw.exists(f"evsched:{{{store.queue}}}:job:a")


def test_a_row_stops_its_job_that_runs(send: Send, store: Store, raw: Any) -> None:
    enqueue(send, store, 7)
    start(send, store)
    send(store.at(NOW).cancel_rows([("a", 7)]))
    assert raw.hget(f"evsched:{{{store.queue}}}:job:a", "stop") == b"1"
    assert read(send, store) == []


def test_a_row_that_redis_does_not_have_ends_as_cancelled(send: Send, store: Store, raw: Any, state: State) -> None:
    send(store.at(NOW).cancel_rows([("a", 7), ("b", 8)]))
    before = state()
    send(store.at(NOW).cancel_rows([("a", 7), ("b", 8)]))
    assert state() == before
    reports = read(send, store)
    assert outcomes(reports) == [("a", "7", "cancelled", "10"), ("b", "8", "cancelled", "10")]
    assert enqueue(send, store, 7) == ""
    assert place(raw, store) == (None, False), "a relay that comes late schedules it no more"
    send(store.settle(reports))
    assert raw.ttl(f"evsched:{{{store.queue}}}:job:a") == 10


def test_a_row_cancels_no_job_but_its_own(send: Send, store: Store, raw: Any) -> None:
    enqueue(send, store, None)
    send(store.at(NOW).cancel_rows([("a", 7)]))
    assert place(raw, store) == (NOW, False)
    assert outcomes(read(send, store)) == [("a", "7", "cancelled", "")]


@pytest.mark.parametrize(("row", "due"), [(6, None), (8, NOW)])
def test_a_row_cancels_the_job_of_an_earlier_use_and_not_of_a_later_one(
    send: Send, store: Store, raw: Any, row: int, due: float | None
) -> None:
    enqueue(send, store, row)
    send(store.at(NOW).cancel_rows([("a", 7)]))
    assert place(raw, store) == (due, False)
    assert ("a", "7", "cancelled", "") in outcomes(read(send, store))


def test_a_row_whose_job_has_ended_is_not_cancelled(send: Send, store: Store, state: State) -> None:
    enqueue(send, store, 7)
    send(store.at(NOW).complete("w", [(start(send, store), DONE)]))
    before = state()
    send(store.at(NOW).cancel_rows([("a", 7)]))
    assert state() == before
    assert outcomes(read(send, store)) == [("a", "7", "done", "60")]


def test_a_row_ends_though_its_record_is_in_no_place(send: Send, store: Store, raw: Any, state: State) -> None:
    enqueue(send, store, 7)
    raw.zrem(f"evsched:{{{store.queue}}}:schedule", "a")
    send(store.at(NOW).cancel_rows([("a", 7)]))
    assert outcomes(read(send, store)) == [("a", "7", "cancelled", "0")]
    assert "payload" not in state().get("job:a", {})


def test_a_row_whose_record_is_in_no_place_is_not_withdrawn(send: Send, store: Store, raw: Any, state: State) -> None:
    enqueue(send, store, 7)
    raw.zrem(f"evsched:{{{store.queue}}}:schedule", "a")
    before = state()
    assert send(store.at(NOW).withdraw([("a", 7)])) == 0
    assert state() == before
