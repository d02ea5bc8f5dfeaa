"""The marks of runs that are about to begin: which of them one call writes, and when the runs go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from evsched.execution import beginning
from evsched.execution.deferral import RunStore
from evsched.execution.executor import Executor
from evsched.execution.program import Program
from evsched.execution.run import Delivery, Run
from evsched.jobs.current_job import current_job
from evsched.jobs.job import Aborted, Buried, Done, FetchedJob, Mark, Requeued
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import Tasks, define


class Marking(RunStore):
    """Notes what happens: each call, as the ids that it marks, its reply as "marked", and the first steps."""

    def __init__(self, lost: Sequence[str] = ()) -> None:
        self.lost = list(lost)
        self.calls = list[list[str]]()
        self.happened = list[str]()
        self.steps = 0
        self.called = asyncio.Event()
        self.may_reply = asyncio.Event()
        self.may_reply.set()
        self.error: Exception | None = None

    async def mark(self, queue: str, runs: Sequence[tuple[FetchedJob, Mark]]) -> list[str]:
        assert {mark for _, mark in runs} <= {"1", "soon"}
        ids = [job.id for job, _ in runs]
        self.calls.append(ids)
        self.happened += [f"mark {job_id}" for job_id in ids]
        self.called.set()
        await self.may_reply.wait()
        error, self.error = self.error, None
        if error is not None:
            raise error
        self.happened.append("marked")
        return self.lost


class Scene:
    """Runs of a worker that were handed out together. Their handler notes its first step."""

    def __init__(self, count: int, store: Marking, queue: str = "q", deaths: int = 0, attempts: int = 1) -> None:
        self.store = store
        tasks = Tasks()

        async def once() -> None:
            store.happened.append(f"begin {current_job().id}")
            store.steps += 1

        tasks.add(define(once, name="t", retry=Retry(attempts=attempts)))
        self.executor = Executor(Program(tasks), 256, store=store)
        self.runs = [
            Run(FetchedJob(str(n), 1, 1.0, b'{"task":"t"}', deaths=deaths), Delivery(queue, 1.0, time.monotonic()))
            for n in range(count)
        ]

    def begin(self) -> list[asyncio.Task[None]]:
        works = [asyncio.create_task(self.executor.run(run)) for run in self.runs]
        for run, work in zip(self.runs, works, strict=True):
            run.work = work
        return works


async def test_runs_that_wait_together_are_marked_by_one_call_before_they_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(beginning, "time", SimpleNamespace(monotonic=lambda: 0.0))
    scene = Scene(40, store := Marking())
    await asyncio.wait(scene.begin())
    assert [len(ids) for ids in store.calls] == [1, 4, 16, 19]
    marked = set[str]()
    for what, _, job_id in (happened.partition(" ") for happened in store.happened):
        if what == "mark":
            marked.add(job_id)
        elif what == "begin":
            assert job_id in marked
    assert store.happened[:9] == [
        "mark 0",
        "marked",
        "begin 0",
        *(f"mark {n}" for n in range(1, 5)),
        "marked",
        "begin 1",
    ]
    assert all(type(run.outcome) is Done for run in scene.runs)


async def test_runs_that_take_long_to_begin_are_marked_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is marked and has not begun is given up if the worker dies."""
    store = Marking()
    monkeypatch.setattr(beginning, "time", SimpleNamespace(monotonic=lambda: 0.02 * store.steps))
    scene = Scene(5, store)
    await asyncio.wait(scene.begin())
    assert [len(ids) for ids in store.calls] == [1] * 5


@pytest.mark.parametrize("attempts", [1, 9])
async def test_a_suspect_has_taken_its_first_step_when_the_next_one_is_marked(attempts: int) -> None:
    """So if it ends the worker, no other run is doubtful."""
    scene = Scene(5, store := Marking(), deaths=1, attempts=attempts)
    await asyncio.wait(scene.begin())
    assert store.happened == [step for n in range(5) for step in (f"mark {n}", "marked", f"begin {n}")]


async def test_a_run_that_is_lost_when_it_is_marked_does_not_begin() -> None:
    scene = Scene(5, store := Marking(lost=["2", "3"]))
    await asyncio.wait(scene.begin())
    assert [type(run.outcome) for run in scene.runs] == [Done, Done, Requeued, Requeued, Done]
    assert [step for step in store.happened if step.startswith("begin")] == ["begin 0", "begin 1", "begin 4"]


async def test_runs_that_are_stopped_while_they_wait_for_a_mark_do_not_begin() -> None:
    """One whose mark is under way, and one whose mark is not sent yet."""
    scene = Scene(3, store := Marking())
    store.may_reply.clear()
    works = scene.begin()
    await store.called.wait()
    for run in scene.runs[:2]:
        run.stop("cancelled")
    await asyncio.wait([works[1]])
    store.may_reply.set()
    await asyncio.wait(works)
    assert store.happened == ["mark 0", "marked", "mark 2", "marked", "begin 2"]
    assert [type(run.outcome) for run in scene.runs] == [Aborted, Aborted, Done]


@pytest.mark.extra
async def test_a_mark_that_fails_ends_its_runs_and_not_the_next_ones() -> None:
    scene = Scene(2, store := Marking())
    store.error = RuntimeError("no luck")
    await asyncio.wait(scene.begin())
    first, second = scene.runs
    assert isinstance(first.outcome, Buried)
    assert "RuntimeError: no luck" in first.outcome.reason
    assert type(second.outcome) is Done


@pytest.mark.extra
async def test_closed_executor_sends_no_more_marks() -> None:
    scene = Scene(2, store := Marking())
    store.may_reply.clear()
    async with scene.executor:
        works = scene.begin()
        await store.called.wait()
    store.may_reply.set()
    await asyncio.wait(works)
    assert all(work.cancelled() for work in works)
    assert store.happened == ["mark 0"]
