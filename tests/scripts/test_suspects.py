"""requeue, begin, start, retry, bury: which runs count, and which jobs are suspects, when a worker stops or dies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from evsched.execution.precautions import precautions_for
from evsched.execution.run import prepare
from evsched.jobs.job import Aborted, Buried, Deferred, Done, FetchedJob, Payload, Retried
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import Tasks, define
from evsched.store.client_calls import New
from evsched.store.store import Store
from tests.scripts.conftest import NOW, Send, State


@pytest.fixture
def fetch(send: Send, store: Store) -> Callable[[int], list[FetchedJob]]:
    """Return a function that hands out a number of jobs to worker "w"."""

    def fetch(count: int) -> list[FetchedJob]:
        send(store.enqueue([New(f"j{n}", b'{"task":"t"}', due=NOW) for n in range(count)]))
        send(store.at(NOW).dispatch(limit=100, cap=1000))
        return start_all(send, store)

    return fetch


def start_all(send: Send, store: Store, worker: str = "w") -> list[FetchedJob]:
    return send(store.at(NOW).start(worker, (), hold=100, lease=15)).jobs


def die(send: Send, store: Store, worker: str = "w") -> None:
    lease = {lease.worker: lease.end for lease in send(store.at(NOW).survey()).leases}[worker]
    assert send(store.at(NOW).requeue(worker, "it died", lease=lease)).rest == "all"


def suspicion(jobs: list[FetchedJob]) -> dict[str, tuple[int, int, int]]:
    return {job.id: (job.attempt, job.deaths, job.doubts) for job in jobs}


def test_a_job_that_a_worker_hands_back_costs_no_attempt_begun_or_not(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store
) -> None:
    jobs = fetch(2)
    send(store.begin("w", [(jobs[0], "1")]))
    send(store.at(NOW).requeue("w", "it stops"))
    assert suspicion(start_all(send, store)) == {"j0": (1, 0, 0), "j1": (1, 0, 0)}


def test_a_death_counts_the_runs_known_to_have_begun_and_suspects_all(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store
) -> None:
    jobs = fetch(3)
    assert send(store.begin("w", [(jobs[1], "1")])) == []
    die(send, store)
    assert suspicion(start_all(send, store)) == {"j0": (1, 1, 1), "j1": (2, 1, 0), "j2": (1, 1, 1)}


def test_a_suspect_without_a_mark_has_not_begun_since_it_is_marked_first(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store
) -> None:
    fetch(4)
    die(send, store)
    suspects = start_all(send, store)
    assert send(store.begin("w", [(suspects[2], "1")])) == []
    die(send, store)
    assert suspicion(start_all(send, store)) == {"j0": (1, 2, 1), "j1": (1, 2, 1), "j2": (2, 2, 1), "j3": (1, 2, 1)}


def test_the_only_job_of_a_dead_worker_is_treated_like_any_other(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store
) -> None:
    """It may not have begun, and the worker may have held jobs of other queues."""
    fetch(1)
    die(send, store)
    assert suspicion(start_all(send, store)) == {"j0": (1, 1, 1)}
    die(send, store)  # a suspect is marked before it begins, so it has not begun
    assert suspicion(start_all(send, store)) == {"j0": (1, 2, 1)}


def test_only_job_of_each_dead_worker_stays_a_suspect(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store
) -> None:
    fetch(2)
    die(send, store)
    first, second = start_all(send, store)
    send(store.at(NOW).complete("w", [(second, Done(b"1", 100.0, False))]))
    send(store.begin("w", [(first, "1")]))
    die(send, store)
    (only,) = start_all(send, store)
    assert suspicion([only]) == {"j0": (2, 2, 1)}
    send(store.begin("w", [(only, "1")]))
    die(send, store)
    assert suspicion(start_all(send, store)) == {"j0": (3, 3, 1)}
    die(send, store)  # before it began
    assert suspicion(start_all(send, store)) == {"j0": (3, 4, 1)}


def test_a_job_that_is_buried_before_it_began_is_charged_no_attempt(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store, state: State
) -> None:
    (run,) = fetch(1)
    assert send(store.at(NOW).bury("w", [(run, Buried("unknown task", False, began=False))])) == []
    assert state()["job:j0"]["attempt"] == "0"


@pytest.mark.parametrize(("began", "attempts"), [(True, "1"), (False, "0")])
def test_cancelled_run_is_charged_an_attempt_if_it_began(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store, state: State, began: bool, attempts: str
) -> None:
    (run,) = fetch(1)
    send(store.cancel(run.id))
    assert send(store.at(NOW).abort("w", [(run, Aborted(60.0, False, began))])) == []
    assert state()["job:j0"]["attempt"] == attempts


def test_job_that_ran_alone_is_charged_and_others_become_suspects(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store
) -> None:
    fetch(2)
    die(send, store)
    first, _ = start_all(send, store)
    send(store.begin("w", [(first, "alone")]))
    die(send, store)
    assert suspicion(start_all(send, store)) == {"j0": (3, 0, 0), "j1": (1, 2, 1)}


def test_job_that_killed_its_process_is_charged_for_its_doubtful_runs(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store, state: State
) -> None:
    fetch(2)
    die(send, store)
    first, second = start_all(send, store)
    assert send(store.at(NOW).retry("w", [(first, Retried(0.0, "killed", killed=True))])) == []
    assert (state()["job:j0"]["attempt"], state()["suspects"]["j0"]) == ("2", "2 0 1")
    assert send(store.at(NOW).bury("w", [(second, Buried("killed", False, killed=True))])) == []
    assert state()["job:j1"]["attempt"] == "2"
    send(store.at(NOW).dispatch(limit=100, cap=1000))
    (run,) = start_all(send, store)
    assert (run.attempt, run.deaths, run.doubts, run.counted) == (3, 2, 0, 1)


def test_run_that_may_not_have_begun_when_its_process_died_is_charged_and_counted(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store
) -> None:
    (run,) = fetch(1)
    assert send(store.at(NOW).retry("w", [(run, Retried(0.0, "killed", killed=True, unsure=True))])) == []
    send(store.at(NOW).dispatch(limit=100, cap=1000))
    (run,) = start_all(send, store)
    assert (run.attempt, run.deaths, run.doubts, run.counted) == (2, 1, 0, 1)


@pytest.mark.parametrize("end", ["retry", "complete", "bury"])
def test_a_run_that_ends_clears_the_suspicion(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store, end: str
) -> None:
    fetch(2)
    die(send, store)
    first, _ = start_all(send, store)
    call = {
        "retry": store.at(NOW).retry("w", [(first, Retried(0.0, "no luck"))]),
        "complete": store.at(NOW).complete("w", [(first, Done(b"1", 100.0, False))]),
        "bury": store.at(NOW).bury("w", [(first, Buried("no luck", False))]),
    }[end]
    assert send(call) == []
    if end == "bury":
        send(store.at(NOW).revive(["j0"]))
    elif end == "complete":
        send(store.enqueue([New("j0", b'{"task":"t"}', due=NOW)]))
    send(store.at(NOW).dispatch(limit=100, cap=1000))
    (newer,) = start_all(send, store)
    assert (newer.id, newer.deaths, newer.doubts) == ("j0", 0, 0)


def test_a_job_that_may_not_start_yet_stays_a_suspect(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store
) -> None:
    fetch(2)
    die(send, store)
    first, _ = start_all(send, store)
    send(store.at(NOW).defer("w", [(first, Deferred(NOW, "not yet"))]))
    send(store.at(NOW).dispatch(limit=100, cap=1000))
    assert suspicion(start_all(send, store)) == {"j0": (1, 1, 1)}


def test_a_run_of_another_worker_is_not_marked(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store, state: State
) -> None:
    jobs = fetch(2)
    before = state()
    assert send(store.begin("v", [(jobs[0], "1")])) == ["j0"]
    assert send(store.begin("w", [(FetchedJob("j0", 2, NOW, b""), "1")])) == ["j0"]
    assert state() == before


def test_runs_beside_a_lost_one_are_marked(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store, raw: Any
) -> None:
    first, _, last = fetch(3)
    lost = FetchedJob("j1", 2, NOW, b"")
    assert send(store.begin("w", [(first, "1"), (lost, "1"), (last, "1")])) == ["j1"]
    assert [raw.hget(f"evsched:{{{store.queue}}}:job:j{n}", "begun") for n in range(3)] == [b"1", None, b"1"]


@pytest.mark.parametrize("text", ["", "1", "a b", "-1 2", "1 2 3 4", "1e3 1", "9999 1", "0x1 1"])
def test_a_malformed_suspect_field_is_ignored(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store, raw: Any, text: str
) -> None:
    fetch(2)
    send(store.at(NOW).requeue("w", "it stops"))
    raw.hset(f"evsched:{{{store.queue}}}:suspects", "j0", text)
    assert suspicion(start_all(send, store))["j0"] == (1, 0, 0)


def test_record_field_written_by_a_producer_does_not_make_a_suspect(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store, raw: Any
) -> None:
    fetch(2)
    die(send, store)
    raw.hset(f"evsched:{{{store.queue}}}:job:j0", mapping={"suspect": "99 99"})
    assert suspicion(start_all(send, store)) == {"j0": (1, 1, 1), "j1": (1, 1, 1)}


def test_suspicions_are_forgotten_a_week_after_the_last_death(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store, raw: Any
) -> None:
    fetch(2)
    die(send, store)
    assert 0 < raw.ttl(f"evsched:{{{store.queue}}}:suspects") <= 7 * 86400


def test_suspects_key_of_the_wrong_type_does_not_stop_the_end_of_a_run(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store, raw: Any
) -> None:
    fetch(2)
    raw.set(f"evsched:{{{store.queue}}}:suspects", "a string")
    die(send, store)
    first, second = start_all(send, store)
    assert (first.deaths, second.deaths) == (0, 0)
    assert send(store.at(NOW).complete("w", [(first, Done(b"1", 100.0, False))])) == []


@pytest.mark.parametrize("beside", [0, 1], ids=["by itself", "beside another"])
@pytest.mark.parametrize("lasts", [False, True], ids=["at once", "after 25 ms"])
@pytest.mark.parametrize("attempts", [2, 3, 4, 5, 10])
def test_job_that_always_kills_its_worker_is_buried_after_its_attempts(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store, attempts: int, lasts: bool, beside: int
) -> None:
    """The worker dies even when the job runs in a process of its own. Another job of the worker never begins."""
    tasks = Tasks()
    tasks.add(define(print, name="t", retry=Retry(attempts=attempts)))
    jobs, begun = fetch(1 + beside), 0
    while True:
        poison, *others = jobs
        assert all(job.attempt == 1 for job in others)
        prepared = prepare(tasks, poison, Payload("t"), NOW)
        if isinstance(prepared, Buried):
            break
        begun += 1
        precautions = precautions_for(poison, attempts, can_isolate=True)
        if poison.deaths:
            send(store.begin("w", [(poison, "soon alone" if precautions.alone else "soon")]))
        if lasts:
            send(store.begin("w", [(poison, "alone" if precautions.alone else "1")]))
        die(send, store)
        jobs = start_all(send, store)
    assert begun == attempts
    assert f"the last of its {attempts} attempts began and never ended" in prepared.reason
    assert ("counted that may not have begun)" in prepared.reason) is (not lasts)


def test_count_of_doubtful_runs_is_kept_until_the_job_ends(
    fetch: Callable[[int], list[FetchedJob]], send: Send, store: Store, raw: Any
) -> None:
    """It was lost when a run ended, and when the worker died in which the job ran alone."""
    fetch(1)
    die(send, store)
    (job,) = start_all(send, store)
    send(store.begin("w", [(job, "soon alone")]))
    die(send, store)
    (job,) = start_all(send, store)
    assert (job.attempt, job.deaths, job.counted) == (3, 0, 2)
    send(store.at(NOW).retry("w", [(job, Retried(0.0, "no luck"))]))
    send(store.at(NOW).dispatch(limit=100, cap=1000))
    (job,) = start_all(send, store)
    assert (job.attempt, job.deaths, job.counted) == (4, 0, 2)
    send(store.at(NOW).bury("w", [(job, Buried("no luck", False))]))
    assert not raw.exists(f"evsched:{{{store.queue}}}:suspects")
