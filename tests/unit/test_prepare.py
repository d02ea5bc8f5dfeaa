"""A payload becomes a prepared run, or the reason why it cannot run."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import Struct

from evsched.execution.deferral import judge_window
from evsched.execution.run import NoTask, Prepared, prepare, read_payload
from evsched.jobs.job import Buried, Deferred, FetchedJob, Outcome, Payload
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import Tasks, define


class Odd(Struct):
    error: str

    def __post_init__(self) -> None:
        raise {"key": KeyError, "exit": SystemExit, "cancel": asyncio.CancelledError}[self.error]("no luck")


def tasks() -> Tasks:
    def pay(amount: int) -> None: ...
    def odd(one: Odd) -> None: ...

    found = Tasks()
    found.add(define(odd, name="odd"))
    found.add(define(pay, name="pay", timeout=7.0, retention=60.0, retry=Retry(attempts=2)))
    return found


def prepared(payload: bytes, attempt: int = 1, deaths: int = 0, now: float = 100.0) -> Prepared | NoTask | Buried:
    job = FetchedJob("a", attempt, 1.0, payload, 1.0, deaths)
    read = read_payload(job)
    return read if isinstance(read, Buried) else prepare(tasks(), job, read, now)


def test_the_payload_overrides_the_task() -> None:
    plain = prepared(b'{"task":"pay","args":[5]}')
    own = prepared(b'{"task":"pay","args":[5],"timeout":1,"retention":2,"retry":{"attempts":9}}')
    assert isinstance(plain, Prepared)
    assert isinstance(own, Prepared)
    assert (plain.timeout, plain.retention, plain.policy.attempts) == (7.0, 60.0, 2)
    assert (own.timeout, own.retention, own.policy.attempts) == (1.0, 2.0, 9)


@pytest.mark.parametrize(
    ("payload", "attempt", "deaths", "reason"),
    [
        (b'{"task":', 1, 0, "invalid payload: Input data was truncated"),
        (b'{"task":"pay","args":["\\ud800"]}', 1, 0, "invalid payload: it has half of a surrogate pair"),
        (b'{"task":"pay","args":["\xe4bc"]}', 1, 0, "invalid payload: byte 23 is 0xe4, which is not UTF-8: correct it"),
        (b'{"task":"pay","args":["a\\\\\\uDBffx", "and more"]}', 1, 0, "it has half of a surrogate pair"),
        (b'{"task":"pay","args":["\\udc00 alone"]}', 1, 0, "it has half of a surrogate pair"),
        (b'{"task":"pay","args":["\\\\ud800 \\ud83d\\ude00', 1, 0, "invalid payload: Input data was truncated"),
        (
            b'{"task":"pay","args":["x"]}',
            1,
            0,
            (
                "the arguments do not fit: Expected `int`, got `str` - at `$.args[0]`: correct the payload, or revive "
                "the job when the workers have the code for it"
            ),
        ),
        (
            b'{"task":"odd","args":[{"error":"key"}]}',
            1,
            0,
            "do not fit: its class raised KeyError: 'no luck' - at `$.arg",
        ),
        (
            b'{"task":"odd","args":[{"error":"exit"}]}',
            1,
            0,
            "do not fit: its class raised SystemExit: no luck - at `$.",
        ),
        (b'{"task":"odd","args":[{"error":"cancel"}]}', 1, 0, "do not fit: its class raised CancelledError: no luck"),
        (b'{"task":"pay","args":[5],"timeout":0}', 1, 0, "the payload's timeout is 0, must be over 0 s"),
        (b'{"task":"pay","args":[5],"retention":-1}', 1, 0, "the payload's retention is -1, must be 0 s or more"),
        (
            b'{"task":"pay","args":[5],"tags":["a b"]}',
            1,
            0,
            "the payload's tags is ('a b',): give a tuple of at most 5 tags",
        ),
        (b'{"task":"pay","args":[5],"tags":"a"}', 1, 0, "invalid payload: Expected `array`, got `str` - at `$.tags`"),
        (b'{"task":"pay","args":[5]}', 3, 0, "the last of its 2 attempts began and never ended"),
        (b'{"task":"pay","args":[5]}', 9, 0, "8 attempts began, 2 are allowed: "),
        (b'{"task":"pay","args":[5],"retry":{"attempts":1}}', 2, 1, "its only attempt began, or was about to"),
    ],
)
def test_a_job_that_cannot_be_run_is_buried_with_the_reason(
    payload: bytes, attempt: int, deaths: int, reason: str
) -> None:
    outcome = prepared(payload, attempt, deaths)
    assert isinstance(outcome, Buried)
    assert reason in outcome.reason


def test_a_suspect_whose_attempts_are_spent_may_run() -> None:
    assert isinstance(prepared(b'{"task":"pay","args":[5]}', attempt=3, deaths=1), Prepared)


@pytest.mark.parametrize(("now", "expired"), [(99.0, False), (100.0, False), (100.5, True)])
def test_a_job_expires_by_the_clock_that_is_given(now: float, expired: bool) -> None:
    outcome = prepared(b'{"task":"pay","args":[5],"expires":100,"reply":true}', now=now)
    assert isinstance(outcome, Buried) is expired
    if isinstance(outcome, Buried):
        assert outcome == Buried("expired 500 ms before a worker could start it", True, "expired")


def test_job_that_expired_long_ago_says_when_in_days() -> None:
    outcome = prepared(b'{"task":"pay","args":[5],"expires":1}', now=1e6)
    assert isinstance(outcome, Buried)
    assert outcome.reason == "expired 11d 13h before a worker could start it"


def test_a_retry_that_expires_says_for_which_attempt_it_waited() -> None:
    outcome = prepared(b'{"task":"pay","args":[5],"expires":100}', attempt=2, now=103.0)
    assert isinstance(outcome, Buried)
    assert outcome.reason == "expired 3.0 s before a worker could start it, while it waited for attempt 2"


def test_unknown_task_does_not_fail_the_job() -> None:
    outcome = prepared(b'{"task":"pya","args":["x"],"timeout":0,"retention":9}', attempt=7)
    assert isinstance(outcome, NoTask)
    assert (outcome.payload.task, outcome.retention) == ("pya", 9.0)


def test_a_job_whose_task_is_unknown_expires() -> None:
    assert prepared(b'{"task":"pya","expires":99.5}') == Buried(
        "expired 500 ms before a worker could start it", False, "expired"
    )


@pytest.mark.parametrize(
    ("text", "name", "now", "outcome"),
    [
        ("09:00-17:00 UTC", "", 36_000.0, None),
        ("09:00-17:00 UTC", "", 0.0, Deferred(32_400.0, "outside its window 09:00-17:00 UTC")),
        (
            "09:00-17:00 UTC",
            "office",
            0.0,
            Deferred(32_400.0, "outside its window 09:00-17:00 UTC", "office", "09:00-17:00 UTC"),
        ),
    ],
)
def test_a_closed_window_defers_a_job_until_it_opens(text: str, name: str, now: float, outcome: Outcome | None) -> None:
    assert judge_window(text, name, now, reply=False) == outcome


def test_a_window_that_cannot_be_read_buries_the_job() -> None:
    assert isinstance(judge_window("never", "", 0.0, reply=True), Buried)


def test_the_payload_names_the_task() -> None:
    assert read_payload(FetchedJob("a", 1, 1.0, b'{"task":"pay"}')) == Payload(task="pay")
