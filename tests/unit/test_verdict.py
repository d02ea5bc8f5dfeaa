"""The verdict on a run: its outcome follows from its handler's result and its stop reason."""

from __future__ import annotations

import pickle
from hashlib import sha1

import pytest

from evsched.execution.run import RESULT_MOST, TIMED_OUT, Failed, Prepared, StopReason, judge
from evsched.jobs.job import Aborted, Buried, Done, FetchedJob, Forwarded, Message, Outcome, Payload, Retried, Snoozed
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import define


def job(attempt: int = 1, deaths: int = 0, doubts: int = 0) -> FetchedJob:
    return FetchedJob("a", attempt, 1.0, b"", 1.0, deaths, doubts)


def prepared(attempts: int = 3, *, reply: bool = False) -> Prepared:
    task = define(lambda: None, name="t", retention=60.0)
    payload = Payload(task="t", reply=reply)
    return Prepared(payload, task, Retry(attempts=attempts, interval=0, jitter=0), [], {})


LONG = b"x" * (RESULT_MOST + 1)
TOO_LONG = f"the result has {RESULT_MOST + 1} bytes, more than {RESULT_MOST}: return a reference"

LABEL = b'["t"]'
NEWS = Message("stream", "news", b"1")
REFUSED = "Redis refused the message to news"


@pytest.mark.parametrize(
    ("result", "reason", "outcome"),
    [
        (b"7", None, Done(b"7", 60.0, False, LABEL)),
        (b"7", "timeout", Retried(0, f"attempt 1 of 3: {TIMED_OUT}")),
        (b"7", "cancelled", Aborted(60.0, False)),
        (LONG, None, Buried(TOO_LONG, False)),
        (
            NEWS,
            None,
            Forwarded(b"null", 60.0, False, LABEL, message=NEWS, otherwise=Retried(0, f"attempt 1 of 3: {REFUSED}")),
        ),
        (NEWS, "timeout", Retried(0, f"attempt 1 of 3: {TIMED_OUT}")),
        (NEWS, "cancelled", Aborted(60.0, False)),
        (Message("stream", "news", LONG), None, Buried(TOO_LONG.replace("result", "message"), False)),
        (Failed("no luck"), None, Retried(0, "attempt 1 of 3: no luck")),
        (Failed("no luck"), "timeout", Retried(0, "attempt 1 of 3: no luck")),
        (Failed("no luck", place=" (a.py:7)"), None, Retried(0, "attempt 1 of 3: no luck", location="a.py:7")),
        (
            Failed("no luck", place=" (a.py:7)"),
            "timeout",
            Retried(0, f"attempt 1 of 3: {TIMED_OUT} (a.py:7)", location="a.py:7"),
        ),
        (Failed("no luck"), "cancelled", Aborted(60.0, False)),
        (Failed("later", delay=7.0), None, Retried(7.0, "attempt 1 of 3: later")),
        (Failed("never", given_up=True, traceback="where"), None, Buried("never", False, traceback="where")),
    ],
)
def test_the_result_and_the_stop_reason_decide_the_outcome(
    result: bytes | Message | Failed, reason: StopReason | None, outcome: Outcome
) -> None:
    assert judge(job(), prepared(), result, reason) == outcome


def test_the_last_attempt_that_fails_is_the_end_of_the_job() -> None:
    assert judge(job(3), prepared(reply=True), Failed("no luck")) == Buried("attempt 3 of 3: no luck", True)
    refused = judge(job(3), prepared(), NEWS)
    assert isinstance(refused, Forwarded)
    assert refused.refused("WRONGTYPE") == Buried(f"attempt 3 of 3: {REFUSED}: WRONGTYPE", False)
    assert pickle.loads(pickle.dumps(refused)) == refused  # as it comes from an isolated run
    assert judge(job(1), prepared(1), b"7", "timeout") == Buried(f"attempt 1 of 1: {TIMED_OUT}", False)


def test_snooze_beyond_the_allowed_attempts_ends_the_job_with_its_reason() -> None:
    snoozed = Snoozed("snoozed for at least 30.0 s: no file", 30.0)
    assert judge(job(3, deaths=1), prepared(), snoozed) == snoozed
    beyond = "attempt 4 (3 are allowed, but workers died that held the job)"
    assert judge(job(4, deaths=1), prepared(), snoozed) == Buried(
        f"{beyond}: snoozed for at least 30.0 s: no file; not run again: no attempt is left", False
    )
    assert judge(job(4, deaths=1), prepared(), snoozed, "cancelled") == Aborted(60.0, False)


def test_a_job_that_killed_its_process_is_charged_for_the_doubtful_runs() -> None:
    assert judge(job(1, 2, 2), prepared(), Failed("no luck")) == Retried(0, "attempt 1 of 3: no luck")
    assert judge(job(1, 2, 1), prepared(), Failed("it died", killed=True)) == Retried(
        0, "attempt 2 of 3 (1 earlier run is counted that may not have begun): it died", killed=True
    )
    assert judge(job(1, 2, 2), prepared(reply=True), Failed("it died", killed=True)) == Buried(
        "attempt 3 of 3 (2 earlier runs are counted that may not have begun): it died", True, killed=True
    )


def test_later_reason_names_a_run_whose_process_died_before_its_handler_began() -> None:
    died = Failed("it died", killed=True, began=False)
    assert judge(job(1, 2), prepared(), died) == Retried(0, "attempt 1 of 3: it died", killed=True, unsure=True)


def test_a_job_with_one_attempt_is_not_charged_for_doubtful_runs() -> None:
    """Its runs are marked before they begin, so a run without a mark has not begun."""
    assert judge(job(1, 2, 1), prepared(1), Failed("it died", killed=True)) == Buried("attempt 1 of 1: it died", False)


def test_the_reason_says_why_a_suspect_began_more_often_than_it_may() -> None:
    why = "attempt 9 (3 are allowed, but workers died that held the job): no luck"
    assert judge(job(9, 4, 0), prepared(), Failed("no luck")) == Buried(why, False)
    why = why.replace(": no", " (4 earlier runs are counted that may not have begun): no")
    assert judge(job(5, 4, 4), prepared(), Failed("no luck", killed=True)) == Buried(why, False, killed=True)


MEMBER = b'{"task":"t"}'
UNNAMED = sha1(MEMBER, usedforsecurity=False).hexdigest()


@pytest.mark.parametrize(
    ("job_id", "payload", "of_task", "kept"),
    [
        (UNNAMED, Payload("t"), None, 0.0),
        ("a", Payload("t"), None, 300.0),
        (UNNAMED, Payload("t", reply=True), None, 300.0),
        (UNNAMED, Payload("t", retention=7.0), None, 7.0),
        (UNNAMED, Payload("t"), 300.0, 300.0),
    ],
)
def test_inline_job_that_nobody_names_is_kept_only_on_request(
    job_id: str, payload: Payload, of_task: float | None, kept: float
) -> None:
    task = define(print, name="t") if of_task is None else define(print, name="t", retention=of_task)
    run = Prepared(payload, task, Retry(), [], {})
    outcome = judge(FetchedJob(job_id, 1, 1.0, MEMBER), run, b"7", None)
    assert isinstance(outcome, Done)
    assert outcome.retention == kept
