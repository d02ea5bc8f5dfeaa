"""Each outcome has a verb that writes it and an event that reports it."""

from __future__ import annotations

import time
from typing import get_args

import pytest

from evsched import events
from evsched.events import Event
from evsched.execution.run import Delivery, Run
from evsched.jobs.current_job import Progress
from evsched.jobs.job import (
    Aborted,
    Buried,
    Deferred,
    Done,
    FetchedJob,
    Forwarded,
    Message,
    Outcome,
    Requeued,
    Retried,
    Snoozed,
)
from evsched.jobs.tasks import Hook, Hooks
from evsched.store.run_ends import NotEnded
from evsched.store.store import Store
from evsched.worker.exchange import events_of

DONE, RETRIED, BURIED = Done(b"1", 60.0, False), Retried(2.0, "no luck"), Buried("too late", False, "expired")
FORWARDED = Forwarded(b"null", 60.0, False, message=Message("stream", "news", b"1"), otherwise=RETRIED)
ABORTED, DEFERRED, REQUEUED = Aborted(60.0, False), Deferred(9.0, "closed"), Requeued()

CASES: list[tuple[Outcome, str, Event]] = [
    (DONE, "complete", events.Completed(queue="q", worker="w", ids=["a"], tasks=["t"], seconds=[0.5], attempts=[3])),
    (
        FORWARDED,
        "forward",
        events.Completed(queue="q", worker="w", ids=["a"], tasks=["t"], seconds=[0.5], attempts=[3]),
    ),
    (
        RETRIED,
        "retry",
        events.Retrying(queue="q", id="a", task="t", attempt=3, delay=2.0, reason="no luck", seconds=0.5),
    ),
    (
        BURIED,
        "bury",
        events.JobBuried(queue="q", id="a", task="t", attempt=3, reason="too late", outcome="expired", seconds=0.5),
    ),
    (ABORTED, "abort", events.JobAborted(queue="q", id="a", task="t", attempt=3, seconds=0.5)),
    (DEFERRED, "defer", events.JobDeferred(queue="q", id="a", task="t", due=9.0)),
    (
        Snoozed("snoozed for at least 9.0 s", 9.0),
        "snooze",
        events.JobSnoozed(queue="q", id="a", task="t", attempt=3, reason="snoozed for at least 9.0 s", seconds=0.5),
    ),
    (
        REQUEUED,
        "requeue",
        events.JobsRequeued(queue="q", worker="w", ids=["a"], cause="busy", reason="no process of the pool was free"),
    ),
]


def ended_run(outcome: Outcome | None, job_id: str = "a") -> Run:
    run = Run(FetchedJob(job_id, 3, 1.0, b""), Delivery("q", 1.0, time.monotonic()))
    run.task, run.took, run.outcome = "t", 0.5, outcome
    return run


def test_the_cases_are_all_outcomes() -> None:
    assert {type(outcome) for outcome, _, _ in CASES} == set(get_args(Outcome))


@pytest.mark.parametrize(("outcome", "verb", "event"), CASES, ids=[verb for _, verb, _ in CASES])
def test_an_outcome_has_a_verb_and_an_event(outcome: Outcome, verb: str, event: Event) -> None:
    run = ended_run(outcome)
    ((call, ended),) = Store("q").end_runs("w", [run])
    assert (call.name, ended) == (verb, [run])
    assert events_of("q", "w", ended) == [event]


def test_runs_of_one_kind_share_a_call_and_progress_precedes_it() -> None:
    first, second, failed = ended_run(DONE, "a"), ended_run(DONE, "b"), ended_run(RETRIED, "c")
    second.progress = Progress(1, 2)
    calls = Store("q").end_runs("w", [first, failed, second, ended_run(None, "d")])
    assert [(call.name, ended) for call, ended in calls] == [
        ("progress", []),
        ("complete", [first, second]),
        ("retry", [failed]),
    ]
    assert calls[0][0].read(1) == NotEnded([])


def test_runs_with_a_refused_message_end_with_their_alternative_outcome() -> None:
    run = ended_run(FORWARDED)
    ((call, _),) = Store("q").end_runs("w", [run])
    assert call.read([[b"b"], [b"a", b"WRONGTYPE x"]]) == NotEnded(["b"], {"a": "WRONGTYPE x"})
    run.refuse("WRONGTYPE x")
    assert run.outcome == Retried(2.0, "no luck: WRONGTYPE x")


def test_runs_share_a_call_if_their_ends_call_the_same_hook() -> None:
    plain, pay, refund = None, Hooks(Hook("t", "pay"), Hook("u", "pay")), Hooks(on_dead=Hook("u", "refund"))
    runs = list[Run]()
    for hooks in (plain, pay, refund, pay):
        for outcome in (DONE, RETRIED, BURIED):
            runs.append(ended_run(outcome, f"j{len(runs)}"))
            runs[-1].hooks = hooks
    calls = [(call.name, len(ended)) for call, ended in Store("q").end_runs("w", runs)]
    assert calls == [
        ("complete", 2),
        ("retry", 4),
        ("bury", 1),
        ("complete", 2),
        ("bury", 2),
        ("bury", 1),
    ]


def test_successful_runs_share_an_event_and_lost_ones_have_their_own() -> None:
    ended = [ended_run(DONE, "a"), ended_run(DONE, "b"), ended_run(DONE, "c")]
    assert events_of("q", "w", ended, ["b"]) == [
        events.RunLost(queue="q", worker="w", id="b", task="t", attempt=3),
        events.Completed(queue="q", worker="w", ids=["a", "c"], tasks=["t", "t"], seconds=[0.5, 0.5], attempts=[3, 3]),
    ]
    assert events_of("q", "w", ended[:1], ["a"]) == [events.RunLost(queue="q", worker="w", id="a", task="t", attempt=3)]
    ended[0].repeated = True
    assert events_of("q", "w", ended[:1], ["a"]) == [
        events.RunLost(queue="q", worker="w", id="a", task="t", attempt=3, end="unknown")
    ]


def test_jobs_that_go_back_share_an_event() -> None:
    ended = [ended_run(REQUEUED, "a"), ended_run(REQUEUED, "b")]
    assert events_of("q", "w", ended) == [
        events.JobsRequeued(queue="q", worker="w", ids=["a", "b"], cause="busy", reason=REQUEUED.reason)
    ]
