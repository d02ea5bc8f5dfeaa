"""Tasks from the enqueue to the result, after the cases of Django's own tests of its backends (tests/tasks)."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from evsched.django.compat import TaskResultStatus, task_enqueued, task_finished, task_started
from tests.django.polls import tasks as of_polls
from tests.support.system import System

tasks: Any = of_polls  # the types are those of Django's own tasks


async def test_result_of_a_plain_task(running: System, ended: Any) -> None:
    result = await tasks.add.aenqueue(1, b=2)
    assert (result.status, result.args, result.kwargs, result.backend) == ("READY", [1], {"b": 2}, "default")
    assert (result.started_at, result.finished_at, result.worker_ids, result.errors) == (None, None, [], [])
    with pytest.raises(ValueError, match="Task has not finished yet"):
        _ = result.return_value
    enqueued = result.enqueued_at
    await ended(result)
    assert (result.status, result.return_value, result.is_finished) == ("SUCCESSFUL", 3, True)
    assert result.enqueued_at == enqueued
    assert result.started_at == result.last_attempted_at <= result.finished_at
    assert (result.worker_ids, result.attempts, result.errors) == ([running.workers[0].id], 1, [])


async def test_result_of_an_async_task(running: System, ended: Any) -> None:
    result = await ended(await tasks.add_slowly.aenqueue(1, 2))
    assert result.return_value == 3


async def test_enqueue_without_an_event_loop(running: System, ended: Any) -> None:
    assert (await ended(tasks.add.enqueue(20, 22))).return_value == 42
    found = tasks.add.enqueue(1)
    assert tasks.add.get_result(found.id).id == found.id


async def test_arguments_are_as_json_has_them(running: System, ended: Any) -> None:
    result = await ended(await tasks.echo.aenqueue((1, 2), b"bytes", args=1, task={"a": (None,)}))
    assert result.return_value == [[1, 2], ["bytes"], {"args": 1, "task": {"a": [None]}}]
    assert (await ended(await tasks.typed.aenqueue("2030-01-31T09:00:00Z"))).return_value == "str"


async def test_failure_has_its_exception_and_traceback(running: System, ended: Any) -> None:
    for task, kind in ((tasks.fail, tasks.PollClosed), (tasks.fail_slowly, ValueError)):
        result = await ended(await task.aenqueue())
        assert (result.status, result.attempts) == ("FAILED", 1)
        (error,) = result.errors
        assert error.exception_class is kind
        assert error.traceback.startswith("Traceback (most recent call last):")
        assert error.traceback.rstrip().endswith("the poll is closed")
        assert f"in {task.func.__name__}" in error.traceback
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value


async def test_result_that_is_not_json_fails(running: System, ended: Any) -> None:
    result = await ended(await tasks.unserialisable.aenqueue())
    assert (result.status, result.attempts) == ("FAILED", 1)
    assert issubclass(result.errors[0].exception_class, TypeError)
    assert "the result is not JSON: Unsupported type" in result.errors[0].traceback


async def test_each_attempt_has_its_error_and_its_worker(running: System, ended: Any) -> None:
    result = await ended(await tasks.flaky.aenqueue(3))
    worker = running.workers[0].id
    assert result.return_value == [3, "RUNNING", 2, 3, result.id]
    assert (result.worker_ids, result.attempts) == ([worker] * 3, 3)
    assert [error.exception_class for error in result.errors] == [tasks.PollClosed] * 2
    assert [f"attempt {number}" in error.traceback for number, error in enumerate(result.errors, 1)] == [True, True]
    assert result.started_at < result.last_attempted_at
    spent = await ended(await tasks.flaky.aenqueue(4))
    assert (spent.status, spent.attempts, len(spent.errors)) == ("FAILED", 3, 3)


async def test_context_of_an_async_task(running: System, ended: Any) -> None:
    result = await ended(await tasks.context_of.aenqueue())
    assert result.return_value == [1, result.id, []]


@contextmanager
def heard() -> Generator[list[tuple[str, Any, str, bool]]]:
    """Record the signals: which, of which result, its status, and whether an exception was being handled."""
    found: list[tuple[str, Any, str, bool]] = []
    receivers = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    kept: list[Any] = []
    for name, signal in receivers.items():

        def hear(sender: Any, task_result: Any, name: str = name, **_: Any) -> None:
            found.append((name, task_result.id, str(task_result.status), sys.exc_info()[0] is not None))

        signal.connect(hear)
        kept.append(hear)
    try:
        yield found
    finally:
        for signal, hear in zip(receivers.values(), kept, strict=True):
            signal.disconnect(hear)


@pytest.mark.parametrize("name", ["add", "add_slowly"])
async def test_signals_of_a_success(running: System, ended: Any, name: str) -> None:
    with heard() as signals:
        result = await getattr(tasks, name).aenqueue(1, 2)
        await ended(result)
    # The worker may begin before the one who enqueued goes on.
    assert sorted(signals) == [
        ("enqueued", result.id, "READY", False),
        ("finished", result.id, "SUCCESSFUL", False),
        ("started", result.id, "RUNNING", False),
    ]
    assert [one[0] for one in signals if one[0] != "enqueued"] == ["started", "finished"]


@pytest.mark.parametrize(
    ("name", "args", "starts"), [("fail", (), 1), ("flaky", (9,), 3), ("closed", (), 1), ("surrender", (), 1)]
)
async def test_a_job_that_fails_finishes_once(
    running: System, ended: Any, name: str, args: tuple[Any, ...], starts: int
) -> None:
    with heard() as signals:
        result = await getattr(tasks, name).aenqueue(*args)
        await ended(result)
    of_runs = [one for one in signals if one[0] != "enqueued"]  # the worker may end before the one who enqueued goes on
    assert [one[0] for one in of_runs] == [*["started"] * starts, "finished"]
    assert of_runs[-1] == ("finished", result.id, "FAILED", True)
    assert result.status == TaskResultStatus.FAILED


async def test_receiver_that_raises_does_not_run_the_job_again(running: System, ended: Any) -> None:
    def refuse(**_: Any) -> None:
        raise RuntimeError("a receiver")

    task_finished.connect(refuse)
    try:
        result = await ended(await tasks.add.aenqueue(1))
    finally:
        task_finished.disconnect(refuse)
    assert (result.status, result.attempts) == ("SUCCESSFUL", 1)


@pytest.mark.parametrize("name", ["break_connection", "use_connection"])
async def test_connection_is_closed_after_the_run(
    running: System, ended: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(connections.settings["default"], "NAME", tmp_path / "polls.sqlite3")  # one in memory stays open
    result = await ended(await getattr(tasks, name).aenqueue())
    assert (result.status, tasks.used.pop().connection) == ("SUCCESSFUL", None)
