"""keep, recall, wait_for and signal: what runs keep in the record, and jobs that wait for signals."""

from __future__ import annotations

from typing import Any

import pytest

from evsched.errors import ConfigError, JobMissing, StoreDown, StoreRefused
from evsched.jobs.job import Buried, Done, FetchedJob, Retried, Snoozed
from evsched.jobs.kept import SIGNALS_MOST, STEPS_MOST, KeptAnswer
from evsched.jobs.record import SignalWait
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State, status_of

WAIT = Snoozed("waiting for the signal ok", until=NOW + 60, signal="ok")


def begin(send: Send, store: Store, now: float = NOW, worker: str = "w") -> FetchedJob:
    """Dispatch the due job and start it."""
    send(store.at(now).dispatch(limit=10, cap=1000))
    (run,) = send(store.at(now).start(worker, (), hold=1, lease=15)).jobs
    return run


@pytest.fixture
def run(send: Send, store: Store) -> FetchedJob:
    send(store.at(NOW).enqueue([New("a", b'{"task":"t"}', due=NOW)]))
    return begin(send, store)


def lines(send: Send, store: Store, run: FetchedJob) -> str:
    answer = send(store.recall("w", run))
    assert answer.how == "kept"
    return answer.value.decode()


def test_results_are_kept_for_the_next_run(run: FetchedJob, send: Send, store: Store) -> None:
    assert lines(send, store, run) == ""
    assert send(store.at(NOW + 1).keep("w", run, '"one"', b"[1.0]")) == KeptAnswer("kept")
    assert send(store.at(NOW + 2).keep("w", run, '"two"', b'{"a":"\\n"}')) == KeptAnswer("kept")
    send(store.at(NOW + 3).retry("w", [(run, Retried(0, "x"))]))
    run = begin(send, store, NOW + 3)
    kept = f'"one"\t{NOW + 1:.6f}\t[1.0]\n"two"\t{NOW + 2:.6f}\t{{"a":"\\n"}}\n'
    assert lines(send, store, run) == kept
    assert status_of(send, store, "a").steps == ("one", "two")


def test_later_value_of_a_name_replaces_the_earlier_one(run: FetchedJob, send: Send, store: Store) -> None:
    for name, value in (('@"r"', b"1"), ('"r"', b"2"), ('@"r"', b"33")):
        send(store.at(NOW).keep("w", run, name, value))
    assert lines(send, store, run) == f'"r"\t{NOW:.6f}\t2\n@"r"\t{NOW:.6f}\t33\n'
    assert status_of(send, store, "a").steps == ("r",)
    send(store.at(NOW).keep("w", run, '"r"', b"4"))
    assert lines(send, store, run) == f'@"r"\t{NOW:.6f}\t33\n"r"\t{NOW:.6f}\t4\n'


def test_stale_run_keeps_nothing(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).retry("w", [(run, Retried(0, "x"))]))
    newer = begin(send, store, NOW)
    before = state()
    stale = FetchedJob("a", 1, NOW, b"", run=run.run)
    assert send(store.keep("w", stale, '"one"', b"1")).how == "lost"
    assert send(store.keep("v", newer, '"one"', b"1")).how == "lost"
    assert send(store.recall("v", newer)).how == "lost"
    assert send(store.wait_for("v", newer, "ok", 5.0)).how == "lost"
    assert state() == before


def test_steps_of_a_job_have_a_limit_of_bytes(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    head = len(f'"one"\t{NOW:.6f}\t\n')
    most = STEPS_MOST - 3 * head
    assert send(store.at(NOW).keep("w", run, '"one"', b"1" * most)).how == "kept"
    before = state()
    assert send(store.at(NOW).keep("w", run, '"two"', b"1" * (head + 1))).how == "full"
    assert state() == before
    assert send(store.at(NOW).keep("w", run, '"two"', b"1" * head)).how == "kept"
    assert send(store.at(NOW).keep("w", run, '"one"', b"1")).how == "kept"


@pytest.mark.parametrize(("name", "value"), [("", b"1"), ('"a\t"', b"1"), ('"a\n"', b"1"), ('"a"', b"1\n2")])
def test_name_or_value_that_would_break_the_lines_is_refused(
    run: FetchedJob, send: Send, store: Store, state: State, name: str, value: bytes
) -> None:
    before = state()
    with pytest.raises(StoreRefused, match="nothing was written"):
        send(store.keep("w", run, name, value))
    assert state() == before


def test_huge_field_of_another_program_is_not_read(run: FetchedJob, send: Send, store: Store, raw: Any) -> None:
    raw.hset(f"evsched:{{{store.queue}}}:job:a", "steps", "x" * 600_000)
    assert lines(send, store, run) == ""
    assert send(store.keep("w", run, '"one"', b"1")).how == "kept"
    assert lines(send, store, run).startswith('"one"\t')


@pytest.mark.parametrize("ends", ["dead", "done"])
def test_revived_job_goes_on_and_a_new_job_of_the_id_starts_over(
    run: FetchedJob, send: Send, store: Store, raw: Any, ends: str
) -> None:
    send(store.at(NOW).keep("w", run, '"one"', b"1"))
    send(store.at(NOW).signal("a", "ok", b"1"))
    send(store.at(NOW).wait_for("w", run, "no", 0.0))
    if ends == "dead":
        send(store.at(NOW).bury("w", [(run, Buried("x", False))]))
        assert status_of(send, store, "a").steps == ("one",)
        send(store.at(NOW).revive(["a"]))
    else:
        send(store.at(NOW).complete("w", [(run, Done(b"1", 60.0, reply=False))]))
        raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW})
    run = begin(send, store)
    status = status_of(send, store, "a")
    assert (status.steps, status.signals) == ((("one",), ("ok",)) if ends == "dead" else ((), ()))
    assert send(store.at(NOW).wait_for("w", run, "no", 5.0)).how == "waits"  # a revived job waits again


def test_job_scheduled_again_during_its_run_starts_over(run: FetchedJob, send: Send, store: Store, raw: Any) -> None:
    send(store.at(NOW).keep("w", run, '"one"', b"1"))
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"a": NOW})
    send(store.at(NOW).complete("w", [(run, Done(b"1", 60.0, reply=False))]))
    assert lines(send, store, begin(send, store)) == ""


def test_signal_makes_a_waiting_job_due(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    assert send(store.at(NOW).wait_for("w", run, "ok", 60.0)) == KeptAnswer("waits", f"{NOW + 60:.6f}".encode())
    assert status_of(send, store, "a").waiting is None  # a run has it
    assert send(store.at(NOW).snooze("w", [(run, WAIT)])) == []
    status = status_of(send, store, "a")
    assert (status.due, status.snoozes, status.attempt) == (NOW + 60, 0, 0)
    assert status.waiting == SignalWait("ok", NOW, NOW + 60)
    assert send(store.at(NOW + 5).signal("a", "other", b"1")) == "kept"
    assert status_of(send, store, "a").due == NOW + 60
    assert send(store.at(NOW + 7).signal("a", "ok", b'{"by":"eve"}')) == "due"
    status = status_of(send, store, "a")
    assert (status.due, status.waiting, status.signals) == (NOW + 7, None, ("other", "ok"))
    run = begin(send, store, NOW + 7)
    assert (run.attempt, send(store.at(NOW + 99).wait_for("w", run, "ok", 60.0))) == (
        1,
        KeptAnswer("come", b'{"by":"eve"}'),
    )


def test_signal_before_the_wait_is_kept(run: FetchedJob, send: Send, store: Store) -> None:
    assert send(store.at(NOW).signal("a", "ok", b"7")) == "kept"
    assert send(store.at(NOW).wait_for("w", run, "ok", 60.0)) == KeptAnswer("come", b"7")


def test_signal_between_the_question_and_the_end_of_the_run_is_found(run: FetchedJob, send: Send, store: Store) -> None:
    assert send(store.at(NOW).wait_for("w", run, "ok", 60.0)).how == "waits"
    assert send(store.at(NOW).signal("a", "ok", b"7")) == "kept"
    send(store.at(NOW + 1).snooze("w", [(run, WAIT)]))
    status = status_of(send, store, "a")
    assert (status.due, status.waiting) == (NOW + 1, None)


def test_second_signal_of_a_name_changes_nothing(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).signal("a", "ok", b"1"))
    before = state()
    assert send(store.at(NOW).signal("a", "ok", b"2")) == "known"
    assert state() == before


def test_wait_keeps_its_first_end(run: FetchedJob, send: Send, store: Store) -> None:
    send(store.at(NOW).wait_for("w", run, "ok", 60.0))
    send(store.at(NOW).retry("w", [(run, Retried(0, "x"))]))
    run = begin(send, store, NOW + 50)
    assert send(store.at(NOW + 50).wait_for("w", run, "ok", 60.0)) == KeptAnswer("waits", f"{NOW + 60:.6f}".encode())
    assert send(store.at(NOW + 60).wait_for("w", run, "ok", 60.0)) == KeptAnswer("over")


def test_signal_after_the_end_of_its_wait_is_refused(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).wait_for("w", run, "ok", 60.0))
    before = state()
    with pytest.raises(JobMissing, match="was over before it came"):
        send(store.at(NOW + 60).signal("a", "ok", b"1"))
    assert state() == before


def test_wait_without_an_end_is_never_due(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    assert send(store.at(NOW).wait_for("w", run, "ok", None)) == KeptAnswer("waits", b"inf")
    send(store.at(NOW).snooze("w", [(run, Snoozed("x", until=float("inf"), signal="ok"))]))
    assert state()["schedule"] == {"a": float("inf")}
    assert status_of(send, store, "a").waiting == SignalWait("ok", NOW, None)
    assert send(store.at(NOW + 1e9).signal("a", "ok", b"1")) == "due"
    assert state()["schedule"] == {"a": NOW + 1e9}


def test_signal_does_not_shorten_the_backoff_of_a_retry(run: FetchedJob, send: Send, store: Store) -> None:
    send(store.at(NOW).wait_for("w", run, "ok", 60.0))
    send(store.at(NOW).snooze("w", [(run, WAIT)]))
    send(store.at(NOW + 5).reschedule("a", NOW + 5))
    run = begin(send, store, NOW + 5)
    send(store.at(NOW + 5).retry("w", [(run, Retried(30, "x"))]))
    assert status_of(send, store, "a").waiting is None
    assert send(store.at(NOW + 6).signal("a", "ok", b"1")) == "kept"
    assert status_of(send, store, "a").due == NOW + 35


@pytest.mark.parametrize("place", ["none", "dead", "finished"])
def test_signal_to_a_job_that_cannot_take_it_is_refused(
    run: FetchedJob, send: Send, store: Store, state: State, place: str
) -> None:
    if place == "dead":
        send(store.at(NOW).bury("w", [(run, Buried("x", False))]))
    elif place == "finished":
        send(store.at(NOW).complete("w", [(run, Done(b"1", 60.0, reply=False))]))
    before = state()
    why = {"none": "has no record", "dead": "is dead: revive it", "finished": "has ended"}[place]
    with pytest.raises(JobMissing, match=why):
        send(store.at(NOW).signal("b" if place == "none" else "a", "ok", b"1"))
    assert state() == before


@pytest.mark.extra
def test_signal_to_a_job_that_was_taken_off_the_schedule_is_refused(
    send: Send, store: Store, state: State, raw: Any
) -> None:
    send(store.at(NOW).enqueue([New("a", b'{"task":"t"}', due=NOW + 900)]))
    raw.zrem(f"evsched:{{{store.queue}}}:schedule", "a")
    before = state()
    with pytest.raises(JobMissing, match="a has a record, but neither waits nor runs: it was taken off the schedule"):
        send(store.at(NOW).signal("a", "ok", b"1"))
    assert state() == before


def test_signal_to_a_job_that_moves_is_sent_again(send: Send, store: Store) -> None:
    send(store.at(NOW).enqueue([New("a", b'{"task":"t"}', due=NOW + 900)]))
    send(store.at(NOW).depart("other", "token", [b"a"], above=0, calm=0.0))
    with pytest.raises(StoreDown, match="being moved"):
        send(store.at(NOW).signal("a", "ok", b"1"))


def test_signals_and_waits_of_a_job_have_a_limit_of_bytes(
    run: FetchedJob, send: Send, store: Store, state: State
) -> None:
    before = state()
    with pytest.raises(
        ConfigError, match="a has no room for the signal ok: the signals of a job have at most 65536 bytes"
    ):
        send(store.at(NOW).signal("a", "ok", b'"' + b"1" * (SIGNALS_MOST - 9) + b'"'))
    assert state() == before
    answer = [send(store.at(NOW).wait_for("w", run, f"{n:0100}", 60.0)).how for n in range(120)]
    assert answer == ["waits"] * answer.count("waits") + ["full"] * answer.count("full")
    assert answer.count("waits") == 16384 // (100 + 2 * len(f"\t{NOW:.6f}") + 1)


@pytest.mark.parametrize("signal", ["", "a b", "ä", "x" * 101])
def test_malformed_name_of_a_signal_is_refused(
    run: FetchedJob, send: Send, store: Store, state: State, signal: str
) -> None:
    before = state()
    with pytest.raises(StoreRefused, match="the name of a signal"):
        send(store.signal("a", signal, b"1"))
    with pytest.raises(StoreRefused, match="the name of a signal"):
        send(store.wait_for("w", run, signal, 1.0))
    assert state() == before


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"x",
        b"1\n2",
        *(
            b"NaN",
            b"-Infinity",
            b"inf",
            b"0x10",
            b"01",
            b"1.",
            b"1e999",
            b"+1",
            b"1 2",
            b"[1,]",
            b"{1:2}",
            b"'a'",
            b"TRUE",
        ),
        *(b'"a', b'"\x01"', b'"\t"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\\x"', b'"\xe2\x82"'),
        b"[" * 201 + b"]" * 201,
    ],
)
def test_value_of_a_signal_that_is_not_json_is_refused(
    run: FetchedJob, send: Send, store: Store, state: State, value: bytes
) -> None:
    before = state()
    with pytest.raises(ConfigError, match="the value of the signal ok is not JSON in one line"):
        send(store.signal("a", "ok", value))
    assert state() == before


@pytest.mark.extra
@pytest.mark.parametrize(
    "value",
    [
        *(b"0", b"-0.5e-7", b"1E+5", b"12345678901234567890", b"null", b"true", b'{"a":[1,{"b":false}],"c":[]}', b'""'),
        '"ä€😀 NaN [ { \\" \\\\ \\n \\u00e4"'.encode(),
        b"[" * 200 + b"]" * 200,
    ],
)
def test_json_of_any_kind_is_the_value_of_a_signal(run: FetchedJob, send: Send, store: Store, value: bytes) -> None:
    send(store.at(NOW).signal("a", "ok", value))
    assert send(store.at(NOW).wait_for("w", run, "ok", 60.0)) == KeptAnswer("come", value)


def test_cancelled_job_does_not_wait(run: FetchedJob, send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).cancel("a"))
    assert send(store.at(NOW).snooze("w", [(run, WAIT)])) == []
    assert (state()["job:a"]["outcome"], "waiting" in state()["job:a"]) == ("cancelled", False)


def test_waiting_job_moves_to_another_shard_with_its_steps(run: FetchedJob, send: Send, store: Store) -> None:
    other = Store(f"{store.queue}-1")
    send(store.at(NOW).keep("w", run, '"one"', b"1"))
    send(store.at(NOW).wait_for("w", run, "ok", 60.0))
    send(store.at(NOW).snooze("w", [(run, WAIT)]))
    batch = send(store.at(NOW).depart(other.queue, "token", [b"a"], calm=0.0)).batch
    assert batch is not None
    send(store.vacate(batch, send(other.at(NOW).arrive(store.queue, batch))))
    with pytest.raises(JobMissing, match="has no record"):
        send(store.at(NOW).signal("a", "ok", b"1"))
    status = status_of(send, other, "a")
    assert (status.steps, status.waiting) == (("one",), SignalWait("ok", NOW, NOW + 60))
    assert send(other.at(NOW).signal("a", "ok", b"1")) == "due"
