"""A call whose reply was lost is sent again: it does what its header says under TWICE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched.errors import JobExists, JobMissing
from evsched.jobs.job import Buried, Done, FetchedJob, Forwarded, Message, Retried, Snoozed
from evsched.store.client_calls import New
from evsched.store.run_ends import NotEnded, PutBack
from evsched.store.store import Store
from evsched.transport.call import Call
from tests.scripts.conftest import NOW, Send, State


def new(*ids: str) -> list[New]:
    return [New(job_id, b'{"task":"t"}', due=NOW) for job_id in ids]


@pytest.fixture
def runs(send: Send, store: Store) -> list[FetchedJob]:
    """Three runs held by worker "w", and three jobs in ready."""
    send(store.enqueue(new("a", "b", "c", "x", "y", "z")))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    return send(store.at(NOW).start("w", (), hold=3, lease=15)).jobs


def test_a_second_enqueue_is_refused(send: Send, store: Store, state: State) -> None:
    send(store.enqueue(new("a")))
    before = state()
    with pytest.raises(JobExists):
        send(store.enqueue(new("a")))
    assert state() == before


PAYLOAD = b'{"task":"t"}'


def put(store: Store, verb: str) -> Call[list[float]]:
    jobs = [New("a", PAYLOAD, due=NOW)]
    match verb:
        case "replace":
            return store.replace(jobs)
        case "keep":
            return store.enqueue(jobs, keep=True)
        case "unique":
            return store.enqueue(jobs, within=0.0)
        case _:
            return store.enqueue(jobs)


def again(call: Call[list[float]], since: float = NOW - 0.25) -> Call[list[float]]:
    assert call.again is not None
    return call.again(since)


@pytest.fixture
def advance(send: Send, store: Store) -> dict[str, Callable[[], object]]:
    """What becomes of the jobs of the queue, by the place of the job `a` after that."""

    def ready() -> None:
        send(store.at(NOW).dispatch(limit=10, cap=1000))

    def start() -> FetchedJob:
        ready()
        (run,) = send(store.at(NOW).start("w", (), hold=3, lease=15)).jobs
        return run

    def retry() -> None:
        send(store.at(NOW).retry("w", [(start(), Retried(9.0, "x"))]))

    return {
        "schedule": lambda: None,
        "ready": ready,
        "processing": start,
        "schedule, for a retry": retry,
        "finished": lambda: send(store.at(NOW).complete("w", [(start(), Done(b"1", 300.0, True))])),
        "dead": lambda: send(store.at(NOW).bury("w", [(start(), Buried("x", False))])),
    }


@pytest.mark.parametrize("place", ["schedule", "ready", "processing", "schedule, for a retry", "finished", "dead"])
@pytest.mark.parametrize("verb", ["enqueue", "keep", "unique", "replace"])
def test_call_that_is_sent_again_leaves_the_job_that_it_has_written(
    send: Send, store: Store, state: State, advance: dict[str, Callable[[], object]], place: str, verb: str
) -> None:
    call = put(store.at(NOW), verb)
    assert send(call) == [NOW]
    advance[place]()
    before = state()
    assert send(again(call)) == [NOW + 9 if place.endswith("retry") else NOW]
    assert state() == before


@pytest.mark.parametrize("verb", ["enqueue", "keep", "unique", "replace"])
def test_call_that_was_not_done_is_done_when_it_is_sent_again(
    send: Send, store: Store, state: State, verb: str
) -> None:
    """A job of the same id and payload has run just before; its run did not see what this call is about."""
    send(put(store.at(NOW), verb))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    (run,) = send(store.at(NOW).start("w", (), hold=3, lease=15)).jobs
    send(store.at(NOW).complete("w", [(run, Done(b"1", 300.0, True))]))
    call = put(store.at(NOW + 0.5), verb)
    assert send(again(call, NOW + 0.25)) == [NOW]
    assert list(state()["schedule"]) == ["a"]
    assert "finished" not in state()["job:a"]


def test_call_that_is_sent_again_is_refused_for_another_job(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW).enqueue([New("a", b'{"task":"u"}', due=NOW)]))
    send(store.at(NOW - 2).enqueue([New("b", PAYLOAD, due=NOW)]))
    before = state()
    for job in ("a", "b"):
        with pytest.raises(JobExists):
            send(again(store.at(NOW).enqueue(new(job))))
    assert state() == before


def test_replacement_of_a_running_job_that_is_sent_again_runs_once(send: Send, store: Store, state: State) -> None:
    send(store.at(NOW - 5).enqueue([New("a", b"1", due=NOW - 5)]))
    send(store.at(NOW - 5).dispatch(limit=10, cap=1000))
    (run,) = send(store.at(NOW - 5).start("w", (), hold=3, lease=15)).jobs
    call = put(store.at(NOW), "replace")
    send(call)
    before = state()
    assert send(again(call)) == [NOW]
    assert state() == before
    send(store.at(NOW).complete("w", [(run, Done(b"1", 300.0, True))]))
    send(store.at(NOW).dispatch(limit=10, cap=1000))
    (run,) = send(store.at(NOW).start("w", (), hold=3, lease=15)).jobs
    assert run.payload == PAYLOAD
    before = state()
    assert send(again(call)) == [NOW]
    assert state() == before


def test_replacement_that_is_sent_again_undoes_nothing_that_was_done_since(
    send: Send, store: Store, state: State, advance: dict[str, Callable[[], object]]
) -> None:
    call = put(store.at(NOW), "replace")
    send(call)
    others: list[Callable[[], object]] = [
        lambda: send(store.at(NOW).reschedule("a", NOW + 5)),
        lambda: send(store.at(NOW).replace([New("a", b'{"task":"newer"}', due=NOW + 5)])),
        lambda: send(store.at(NOW).cancel("a")),
        lambda: send(put(store.at(NOW), "enqueue")),
        advance["finished"],
        lambda: send(store.at(NOW).enqueue([New("a", b'{"task":"newer"}', due=NOW)])),
    ]
    for other in others:
        other()
        before = state()
        send(again(call))
        assert state() == before


def test_last_row_of_an_id_stays_when_a_replacement_is_sent_again(
    send: Send, store: Store, state: State, advance: dict[str, Callable[[], object]]
) -> None:
    call = store.at(NOW).replace([New("a", b"1", due=NOW), New("a", PAYLOAD, due=NOW)])
    send(call)
    advance["processing"]()
    before = state()
    send(again(call))
    assert state() == before


def test_first_row_of_an_id_stays_when_jobs_are_kept_again(
    send: Send, store: Store, state: State, advance: dict[str, Callable[[], object]]
) -> None:
    call = store.at(NOW).enqueue([New("a", PAYLOAD, due=NOW), New("a", b"1", due=NOW)], keep=True)
    send(call)
    advance["finished"]()
    before = state()
    send(again(call))
    assert state() == before


def test_rows_that_were_not_written_are_written_when_the_call_is_sent_again(
    send: Send, store: Store, state: State
) -> None:
    send(store.at(NOW).enqueue(new("a")))
    before = state()["job:a"]
    assert send(again(store.at(NOW).enqueue(new("a", "b")))) == [NOW, NOW]
    assert state()["job:a"] == before
    assert list(state()["schedule"]) == ["a", "b"]


def test_the_second_end_of_a_run_is_lost(send: Send, store: Store, state: State, runs: list[FetchedJob]) -> None:
    a, b, c = runs
    calls = [
        store.at(NOW).complete("w", [(a, Done(b"1", 300.0, True))]),
        store.at(NOW).retry("w", [(b, Retried(1.0, "x"))]),
        store.at(NOW).bury("w", [(c, Buried("x", True))]),
    ]
    assert [send(call) for call in calls] == [[], [], []]
    before = state()
    assert [send(call) for call in calls] == [["a"], ["b"], ["c"]]
    assert state() == before


def test_a_message_whose_call_is_repeated_is_sent_once(
    send: Send, store: Store, state: State, runs: list[FetchedJob], raw: Any, queue: str
) -> None:
    message = Message("stream", f"{queue}:stream", b"1")
    forwarded = Forwarded(b"null", 300.0, True, message=message, otherwise=Retried(1.0, "x"))
    call = store.at(NOW).forward("w", [(run, forwarded) for run in runs])
    assert send(call) == NotEnded([])
    before = state()
    assert send(call) == NotEnded(["a", "b", "c"])
    assert state() == before
    assert [fields[b"id"] for _, fields in raw.xrange(message.name)] == [b"a", b"b", b"c"]


def test_the_second_snooze_of_a_run_is_lost_and_not_counted(
    send: Send, store: Store, state: State, runs: list[FetchedJob]
) -> None:
    call = store.at(NOW).snooze("w", [(run, Snoozed("x", 9.0)) for run in runs])
    assert send(call) == []
    before = state()
    assert send(call) == ["a", "b", "c"]
    assert state() == before
    assert before["job:a"]["snoozes"] == "1"


def test_a_run_that_is_named_twice_in_one_call_ends_once(
    send: Send, store: Store, state: State, runs: list[FetchedJob]
) -> None:
    a, b, _ = runs
    done = Done(b"1", 300.0, True)
    assert send(store.at(NOW).complete("w", [(a, done), (a, done), (b, done)])) == ["a"]
    assert len(state()["reply:a"]) == 1


def test_one_lost_run_does_not_stop_the_others(send: Send, store: Store, state: State, runs: list[FetchedJob]) -> None:
    a, b, c = runs
    stale = FetchedJob("b", b.attempt + 1, b.due, b.payload)
    done = Done(b"1", 0.0, False)
    assert send(store.at(NOW).complete("w", [(a, done), (stale, done), (c, done)])) == ["b"]
    assert state()["processing:w"] == ["b"]


def test_a_second_requeue_finds_nothing(send: Send, store: Store, state: State, runs: list[FetchedJob]) -> None:
    a, b, _ = runs
    rows = [("b", b.run), ("a", a.run), ("nobody", "")]
    assert send(store.requeue("w", "x", runs=rows)) == PutBack("more", ["b", "a"], [])
    before = state()
    assert send(store.requeue("w", "x", runs=rows)) == PutBack("more", [], [])
    assert state() == before
    assert (before["ready"], before["processing:w"]) == (["b", "a", "x", "y", "z"], ["c"])
    assert before["leases"] == {"w": NOW + 15}


@pytest.mark.usefixtures("runs")
def test_second_cancel_is_missing_and_second_reschedule_changes_nothing(send: Send, store: Store, state: State) -> None:
    send(store.cancel("x"))
    send(store.reschedule("y", NOW + 9))
    before = state()
    with pytest.raises(JobMissing):
        send(store.cancel("x"))
    assert send(store.reschedule("y", NOW + 9)) == NOW + 9
    assert state() == before


@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_a_second_revive_or_drop_is_missing(
    send: Send, store: Store, state: State, runs: list[FetchedJob], verb: str
) -> None:
    send(store.at(NOW).bury("w", [(run, Buried("x", False)) for run in runs]))
    call = store.at(NOW).revive(["a", "b"]) if verb == "revive" else store.drop(["a", "b"])
    assert send(call) == ["a", "b"]
    before = state()
    with pytest.raises(JobMissing):
        send(call)
    assert state() == before
    assert list(before["dead"]) == ["c"]


@pytest.mark.usefixtures("runs")
def test_a_second_start_hands_out_the_same_runs(send: Send, store: Store, state: State, runs: list[FetchedJob]) -> None:
    before = state()
    assert send(store.at(NOW).start("w", ["a", "b", "c"], hold=3, lease=15)).jobs == runs
    assert state() == before


@pytest.mark.usefixtures("runs")
def test_reading_verbs_change_nothing(send: Send, store: Store, state: State) -> None:
    before = state()
    calls: list[Call[Any]] = [
        store.at(NOW).survey(),
        store.at(NOW).look("a"),
        store.at(NOW).look("x"),
        store.held("w"),
    ]
    for call in calls:
        assert send(call) == send(call)
    assert state() == before


def test_a_second_ask_changes_nothing(send: Send, store: Store, state: State) -> None:
    send(store.enqueue(new("a")))
    send(store.ask("a"))
    before = state()
    assert send(store.ask("a")) == ("", b"", "")
    assert state() == before


@pytest.fixture
def dead(send: Send, store: Store, runs: list[FetchedJob]) -> list[FetchedJob]:
    """Two dead jobs."""
    send(store.at(NOW - 9).bury("w", [(job, Buried("x", False)) for job in runs[:2]]))
    return runs[:2]


@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_revival_or_drop_that_was_not_done_is_done_when_it_is_sent_again(
    send: Send, store: Store, state: State, dead: list[FetchedJob], verb: str
) -> None:
    call = getattr(store.at(NOW), verb)([job.id for job in dead])
    assert send(call.again(NOW - 0.25)) == ["a", "b"]
    assert "dead" not in state()


@pytest.mark.usefixtures("dead")
@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_job_that_died_since_the_first_call_stays_dead(
    send: Send, store: Store, state: State, raw: Any, verb: str
) -> None:
    raw.zadd(f"evsched:{{{store.queue}}}:dead", {"a": NOW})
    call = getattr(store.at(NOW), verb)(["a", "b"])
    assert send(call.again(NOW - 0.25)) == ["b", "a"]
    assert state()["dead"] == {"a": NOW}


@pytest.mark.usefixtures("dead")
@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_second_revival_or_drop_that_finds_a_job_gone_is_refused(
    send: Send, store: Store, state: State, verb: str
) -> None:
    call = getattr(store.at(NOW), verb)(["a", "b"])
    send(call)
    before = state()
    with pytest.raises(JobMissing):
        send(call.again(NOW - 0.25))
    assert call.again(NOW).again is None  # so its refusal is no proof that nothing was done
    assert state() == before
