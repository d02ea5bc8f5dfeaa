"""Results of records, also of those that are seldom met."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.exceptions import SuspiciousOperation
from django.test import override_settings

from evsched.django.task_results import read_result
from evsched.jobs.record import JobRun, JobStatus
from tests.django.polls import tasks as of_polls

tasks: Any = of_polls
PATH: str = tasks.add.module_path


def read(place: Any, **fields: Any) -> Any:
    known: dict[str, Any] = {"task": PATH, "payload": {"task": PATH, "args": [1]}, **fields}
    return read_result(JobStatus("a", "mails", place, **known), "a@mails", "any")


def lost(attempt: int) -> JobRun:
    return JobRun(attempt, f"w{attempt}", attempt * 1.0, attempt + 0.5, "lost", reason="its worker died")


def test_job_of_another_client() -> None:
    result = read("schedule", created=1.0)
    assert (result.id, result.backend, result.task.queue_name, result.args) == ("a@mails", "any", "mails", [1])
    assert (result.status, result.enqueued_at) == ("READY", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("place", "outcome", "state"),
    [
        ("schedule", None, "READY"),
        ("backlog", None, "READY"),
        ("ready", None, "READY"),
        ("processing", None, "RUNNING"),
        ("finished", "done", "SUCCESSFUL"),
        ("finished", "cancelled", "FAILED"),
        ("dead", "dead", "FAILED"),
        ("dead", "expired", "FAILED"),
    ],
)
def test_states(place: str, outcome: str | None, state: str) -> None:
    result = read(place, outcome=outcome, reason="its reason")
    assert result.status == state
    assert [error.traceback for error in result.errors] == (["its reason"] if state == "FAILED" else [])
    assert all(error.exception_class.__name__ == "JobDead" for error in result.errors)


def test_run_that_was_not_counted_gives_way_to_the_next_of_its_number() -> None:
    result = read("processing", attempt=1, worker="w9", started=9.0, runs=[lost(1)])
    assert (result.worker_ids, result.errors) == (["w9"], [])
    result = read("processing", attempt=2, worker="w9", started=9.0, runs=[lost(1)])
    assert (result.worker_ids, [error.exception_class.__name__ for error in result.errors]) == (
        ["w1", "w9"],
        ["WorkerDied"],
    )
    assert (result.started_at.timestamp(), result.last_attempted_at.timestamp()) == (1.0, 9.0)


def test_attempts_that_the_record_has_no_more() -> None:
    result = read("dead", attempt=30, outcome="dead", runs=[lost(1), lost(29), lost(30)])
    assert (result.attempts, len(result.errors), result.worker_ids[27:]) == (30, 3, ["", "w29", "w30"])


def test_errors_of_timeouts_and_builtin_exceptions() -> None:
    timeout = JobRun(1, "w", 1.0, 2.0, "failed", reason="attempt 1 of 5: timeout: it ran longer than its limit")
    wrong = JobRun(2, "w", 3.0, 4.0, "failed", "ValueError", "polls.py:7 in vote", "attempt 2 of 5: no such poll")
    result = read("schedule", runs=[timeout, wrong], traceback="Traceback of the last")
    assert [error.exception_class for error in result.errors] == [TimeoutError, ValueError]
    assert [error.traceback for error in result.errors] == [timeout.reason, "Traceback of the last"]
    result = read("schedule", runs=[wrong, timeout])
    assert result.errors[0].traceback == "polls.py:7 in vote: attempt 2 of 5: no such poll"


def test_times_without_time_zones() -> None:
    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin"):
        assert read("schedule", created=1.0).enqueued_at == datetime(1970, 1, 1, 1, 0, 1)  # noqa: DTZ001
        later = tasks.add.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001
        note = {"run_after": 1893452400.0, "at": 1.0}
        found = read("schedule", payload={"meta": {"django": note}}).task
    assert found.run_after == later.run_after


def test_malformed_note_and_payload_are_ignored() -> None:
    malformed: list[Any] = [None, "text", {"meta": 7}, {"meta": {"django": []}}]
    for payload in malformed:
        assert read("schedule", payload=payload).args == []


def test_path_that_is_no_task() -> None:
    with pytest.raises(SuspiciousOperation, match="not a task"):
        read("schedule", task="os.system")
