"""A worker's knowledge of the jobs in its list, without Redis and without a loop."""

from __future__ import annotations

from evsched.execution.failure import Stack
from evsched.execution.handlers import Hang
from evsched.execution.run import Delivery, Prepared, Run
from evsched.jobs.job import Buried, Done, FetchedJob, Payload, Retried
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import define
from evsched.worker.exchange import HeldRuns

DONE = Done(b"1", 60.0, False)


def add(held: HeldRuns, *ids: str) -> list[Run]:
    return held.add([FetchedJob(job_id, 1, 1.0, b"") for job_id in ids], Delivery("q", 1.0, 1.0))


def end(held: HeldRuns, run: Run) -> None:
    run.end(DONE)
    held.end(run)


def begin(run: Run, attempts: int) -> None:
    run.prepared = Prepared(
        Payload(task="t"), define(print, name="t"), Retry(attempts=attempts, interval=0, jitter=0), [], {}
    )
    run.began = 1.0


def test_a_run_is_held_until_its_end_is_written() -> None:
    held = HeldRuns()
    first, second = add(held, "a", "b")
    assert (held.busy, held.running, list(held.runs)) == (True, 2, ["a", "b"])
    end(held, first)
    end(held, second)
    assert (held.busy, held.running) == (True, 0)
    ended, fetched = held.begin_exchange(1)
    assert (ended, fetched, held.ended) == ([first], [], [second])
    held.forget(ended)
    assert list(held.runs) == ["b"]
    held.forget([second])
    assert not held.busy


def test_unfinished_work_of_an_exchange_is_kept_in_order() -> None:
    held = HeldRuns()
    (run,) = add(held, "a")
    end(held, run)
    held.fetched = ["b", "c"]
    ended, fetched = held.begin_exchange(9)
    held.fetched.append("d")
    held.keep(ended, fetched)
    assert (held.ended, held.fetched) == ([run], ["b", "c", "d"])


def test_a_job_that_is_handed_out_twice_is_one_run() -> None:
    held = HeldRuns()
    (first, second) = add(held, "a", "b", "b")
    assert add(held, "a", "b") == []
    assert (held.runs, held.running) == ({"a": first, "b": second}, 2)


def test_a_newer_run_of_an_id_is_not_forgotten_for_the_older_one() -> None:
    held = HeldRuns()
    (older,) = add(held, "a")
    held.lose()
    (newer,) = add(held, "a")
    held.forget([older])
    assert held.runs == {"a": newer}


def test_cancellation_stops_a_run_once_even_before_it_is_added() -> None:
    held = HeldRuns()
    (run,) = add(held, "a")
    assert [held.cancel("a"), held.cancel("a"), held.cancel("b")] == [True, False, False]
    assert run.stop_reason == "cancelled"
    (late,) = add(held, "b")
    assert late.stop_reason == "cancelled"
    held.cancel("c")
    held.ask()
    (again,) = add(held, "c")
    assert again.stop_reason is None


def test_a_count_that_is_too_high_twice_in_a_row_is_a_surplus() -> None:
    held = HeldRuns()
    add(held, "a")
    held.fetched = ["b"]
    assert [held.is_surplus(count) for count in (3, 2, 3, 3, 3)] == [False, False, False, True, False]
    assert held.unknown(["a", "x", "b", "x", "y"]) == ["x", "y"]


def test_nothing_is_left_when_the_lease_is_lost() -> None:
    held = HeldRuns()
    first, second = add(held, "a", "b")
    end(held, first)
    held.fetched = ["c", "d"]
    assert held.lose() == 2
    end(held, second)
    assert (held.busy, held.running, held.ended, second.stop_reason) == (False, 0, [], "lost")


def test_a_run_on_its_only_attempt_and_a_stuck_run_are_not_repeated() -> None:
    held = HeldRuns()
    only, stuck, other, waiting = add(held, "only", "stuck", "other", "waiting")
    for run, attempts in ((only, 1), (stuck, 2), (other, 2)):
        begin(run, attempts)
    assert held.give_up("it was stopped", Hang(stuck, Stack(" (tasks.py:7 in pay)", "Stack"), "it did not yield")) == [
        only,
        stuck,
    ]
    assert only.outcome == Buried("attempt 1 of 1: it was stopped", False)
    why = "attempt 1 of 2: it did not yield (tasks.py:7 in pay)"
    assert stuck.outcome == Retried(0, why, traceback="Stack")
    assert (other.outcome, waiting.outcome, waiting.stop_reason) == (None, None, None)
    only.took = 0.5
    assert held.give_up("it was stopped") == []


def test_blocking_run_without_more_attempts_is_buried_with_its_location() -> None:
    held = HeldRuns()
    only, more = add(held, "only", "more")
    begin(only, 1)
    begin(more, 2)
    stack = Stack(" (tasks.py:7 in pay)", "Stack")
    assert held.give_up("it was stopped", Hang(more, stack)) == [only]
    assert only.outcome == Buried("attempt 1 of 1: it was stopped", False)
    only.outcome = None
    assert held.give_up("it was stopped", Hang(only, stack)) == [only]
    assert only.outcome == Buried("attempt 1 of 1: it was stopped (tasks.py:7 in pay)", False, traceback="Stack")
