"""A failed run is freed at once, with all that its handler held, wherever that ran and however it failed."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from evsched.execution.executor import Executor
from evsched.execution.precautions import AppSource
from evsched.execution.program import Middleware, Program
from evsched.execution.run import Delivery, Run
from evsched.jobs.current_job import CurrentJob
from evsched.jobs.job import Done, FetchedJob, Outcome, encode
from tests.support.failures import ASYNC, PLAIN, alive, app

RUNS = 10

IN_WORKER = [f"{one.__name__} {on}" for one in PLAIN for on in ("loop", "thread")] + [
    f"{one.__name__} loop" for one in ASYNC
]


@pytest.fixture(autouse=True)
def collector_off() -> Generator[None]:
    gc.collect()
    alive.clear()
    gc.disable()
    yield
    gc.enable()


def executor(*middleware: Middleware) -> Executor:
    return Executor(Program(app.tasks, list(middleware)), 4, 1, source=AppSource("tests.support.failures:app"))


async def outcome_of(running: Executor, task: str, *args: Any, deaths: int = 0) -> Outcome | None:
    job = FetchedJob("a", 1, 1.0, encode({"task": task, "args": args}), deaths=deaths)
    run = Run(job, Delivery("q", 1.0, time.monotonic()))
    run.work = asyncio.ensure_future(running.run(run))
    await run.work
    return run.outcome


async def fail(running: Executor, task: str) -> None:
    for _ in range(RUNS):
        outcome = await outcome_of(running, task)
        assert outcome is not None
        assert not isinstance(outcome, Done)


@pytest.mark.extra
@pytest.mark.parametrize("task", IN_WORKER)
async def test_failed_handler_in_the_worker_leaves_no_reference(task: str) -> None:
    await fail(executor(), task)
    assert len(alive) <= 1  # its thread may need a moment more to forget the last one


async def test_failure_swallowed_by_a_middleware_leaves_no_reference() -> None:
    async def swallow(_: CurrentJob, proceed: Callable[[], Awaitable[Any]]) -> Any:
        try:
            await proceed()
        except ValueError:
            return None

    running = executor(swallow)
    for task in ("raises loop", "raises thread"):
        for _ in range(RUNS):
            assert isinstance(await outcome_of(running, task), Done)
    assert len(alive) <= 1


async def test_middleware_that_chains_the_error_leaves_no_handler_alive() -> None:
    async def keep(_: CurrentJob, proceed: Callable[[], Awaitable[Any]]) -> Any:
        kept: Exception | None = None
        try:
            await proceed()
        except ValueError as error:
            kept = error
        raise RuntimeError from kept

    for task in ("raises loop", "raises thread"):
        await fail(executor(keep), task)
    assert len(alive) <= 1


@pytest.mark.extra
@pytest.mark.parametrize("handler", PLAIN, ids=[one.__name__ for one in PLAIN])
async def test_failed_handler_in_a_process_leaves_no_reference(handler: Callable[[], None]) -> None:
    async with executor() as running:
        await outcome_of(running, "collector_off")
        await fail(running, f"{handler.__name__} process")
        found = await outcome_of(running, "left")
    assert isinstance(found, Done)
    assert found.result == b"0"


@pytest.mark.extra
async def test_failed_isolated_handler_leaves_no_reference(tmp_path: Path) -> None:
    async with executor() as running:
        for _ in range(4):  # one after the other in one process of the pool
            await outcome_of(running, "reports what is left", str(tmp_path / "left"), deaths=2)
    found = [int(count) for count in (tmp_path / "left").read_text().split()]
    assert len(found) == 4
    assert max(found) <= 1
