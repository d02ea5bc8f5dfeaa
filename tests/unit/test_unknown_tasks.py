"""Jobs whose task a worker does not know: they are offered again, ever less often, and are given up after the grace."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise
from typing import cast

import pytest

from evsched import events
from evsched.errors import StoreRefused
from evsched.execution.deferral import RunStore, UnknownTasks, judge_unknown
from evsched.execution.run import Delivery, Run
from evsched.jobs.job import Buried, Deferred, FetchedJob, Payload
from evsched.jobs.record import unknown_since
from evsched.jobs.tasks import Tasks, define
from tests.support.recorder import Recorder

GRACE = 600.0


def judged(
    due: float,
    since: float | None,
    now: float,
    *,
    expires: float | None = None,
    grace: float = GRACE,
    known: bool = False,
) -> Deferred | Buried:
    job, payload = FetchedJob("a", 1, due, b""), Payload("pay", expires=expires, reply=True)
    return judge_unknown(job, payload, "unknown task 'pay'", since, now, grace, known=known)


def offers(due: float, expires: float | None = None) -> tuple[list[float], Buried]:
    """Offer a job, first at its due time, until it is given up; return the waits between, and how it ended."""
    waits, since, now = list[float](), cast("float | None", None), due
    while isinstance(outcome := judged(due, since, now, expires=expires), Deferred):
        waits.append(outcome.due - now)
        since, due, now = outcome.unknown_since, outcome.due, outcome.due
    return waits, outcome


def test_the_waits_grow_from_some_hundred_milliseconds_to_30_seconds() -> None:
    waits, ended = offers(1e9)
    assert 0.2 < waits[0] < 0.4
    assert all(later > earlier for earlier, later in pairwise(waits[:7]))
    assert 20 < max(waits) <= 36.5
    assert GRACE <= sum(waits) < GRACE + 37
    assert len(waits) < 35  # in ten minutes
    assert ended.reason.startswith("unknown task 'pay'; no worker that fetched the job in 10m ")
    assert (ended.reply, ended.began) == (True, False)


def test_the_grace_does_not_count_while_another_worker_has_the_task() -> None:
    since, now = cast("float | None", None), 1e9
    while now < 1e9 + 4 * GRACE:
        found = judged(now, since, now, known=True)
        assert isinstance(found, Deferred)
        assert found.reason == "unknown task 'pay'; another worker of the queue has it"
        assert found.due - now < 6.5, "it comes back soon, since chance decides which worker fetches it"
        since, now = found.unknown_since, found.due
    began = now
    while isinstance(found := judged(now, since, now), Deferred):  # that worker has ended
        since, now = found.unknown_since, found.due
    assert now > began + 0.9 * GRACE


def test_crowd_of_unknown_jobs_returns_in_spread_batches() -> None:
    for waited in (0.0, 10.0, 100.0):
        crowd = [judged(1e9 + waited, 1e9, 1e9 + waited + n / 1e4) for n in range(10_000)]
        dues = Counter(job.due for job in crowd if isinstance(job, Deferred))
        assert 10 < len(dues) < 500


def test_the_time_counts_from_the_first_worker_and_not_from_the_due_time() -> None:
    found = judged(due=1e9, since=None, now=1e9 + 86400)  # it waited for a day in a queue that was paused
    assert isinstance(found, Deferred)
    assert found.unknown_since == 1e9 + 86400


def test_the_time_that_the_last_worker_took_does_not_count() -> None:
    found = judged(due=1e9 + 5, since=1e9, now=1e9 + 86400)  # a worker that knows the task ran it, and was stopped
    assert isinstance(found, Deferred)


def test_without_a_grace_the_job_is_given_up_at_once() -> None:
    assert judged(1e9, None, 1e9, grace=0.0) == Buried("unknown task 'pay'", True, began=False)


@pytest.mark.parametrize("left", [5.0, 50.0, 500.0])
def test_a_job_is_offered_until_shortly_before_it_expires(left: float) -> None:
    due = since = now = before = 1e9
    while now < 1e9 + left:
        found = judged(due, since, now, expires=1e9 + left)
        assert isinstance(found, Deferred)
        before, due, now = now, found.due, found.due
    assert before >= 1e9 + left - 0.6  # so a worker that knows the task could start it until then


FIELDS = [
    (b"100.5 200.25", 200.25, 100.5),
    (b"100.5 200.25", 200.5, None),  # it has been given another due time since
    (b"100.5 200.25", None, None),
    (b"100.5", 100.5, None),
    (b"x 200.25", 200.25, None),
    (b"100.5 x", 200.25, None),
    (b"\xff \xff", 200.25, None),
    (b"", 0.0, None),
    (None, 200.25, None),
]


@pytest.mark.parametrize(("field", "due", "since"), FIELDS)
def test_the_field_counts_only_for_the_due_time_that_it_names(
    field: bytes | None, due: float | None, since: float | None
) -> None:
    assert unknown_since(field, due) == since


def run(payload: bytes = b'{"task":"pya"}') -> Run:
    return Run(FetchedJob("a", 1, 1.0, payload, 1.0), Delivery("q", 1.0, time.monotonic()))


def tasks() -> Tasks:
    found = Tasks()
    found.add(define(lambda: None, name="pay"))
    return found


async def test_a_task_is_reported_once_with_the_names_that_are_known(recorder: Recorder) -> None:
    unknown = UnknownTasks(tasks(), RunStore(), GRACE, recorder)
    for _ in range(3):
        outcome = await unknown.judge(run(), Payload("pya"))
        assert isinstance(outcome, Deferred)
        assert (outcome.cause, outcome.reason) == ("task", REASON)
    assert recorder.of(events.TaskUnknown) == [events.TaskUnknown(queue="q", task="pya", reason=REASON, grace=GRACE)]


REASON = (
    "unknown task 'pya': did you mean 'pay'? This worker has 'pay'. Register it with @app.task, or correct the name"
)


class Refusing(RunStore):
    async def unknown_since(self, run: Run) -> float | None:
        raise StoreRefused("WRONGTYPE", kind="wrongtype")


async def test_a_record_that_cannot_be_read_keeps_the_job(recorder: Recorder) -> None:
    outcome = await UnknownTasks(tasks(), Refusing(), 0.0, recorder).judge(run(), Payload("pya"))
    assert isinstance(outcome, Deferred)
    assert outcome.cause == "task"
    assert "WRONGTYPE" in outcome.reason
