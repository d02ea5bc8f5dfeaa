"""An ended run is freed at once: it leaves no reference cycle for the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any

import pytest

from evsched import App, Retry
from evsched.config import Config
from evsched.events import Completed, JobBuried
from tests.support.system import System, system

RUNS = 500
"""More than the objects that remain however many runs there are, such as closed event loops."""


@pytest.fixture
def collector_off() -> Generator[None]:
    gc.disable()
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


async def wait_for_runs(running: System, kind: type[Completed | JobBuried], count: int) -> None:
    def ended() -> int:
        found = running.recorder.of(kind)
        return sum(len(event.ids) if isinstance(event, Completed) else 1 for event in found)

    await running.recorder.wait(kind, lambda _: ended() == count)


@pytest.mark.extra
@pytest.mark.usefixtures("collector_off")
@pytest.mark.parametrize("task", ["on_the_loop", "in_a_thread", "failing"])
async def test_runs_leave_nothing_for_the_garbage_collector(task: str, config: Config, app: App) -> None:
    @app.task
    async def on_the_loop() -> None:
        pass

    @app.task
    def in_a_thread() -> None:
        pass

    @app.task(retry=Retry(attempts=1))
    async def failing() -> None:
        raise ValueError

    tasks: dict[str, Any] = {"on_the_loop": on_the_loop, "in_a_thread": in_a_thread, "failing": failing}
    kind = JobBuried if task == "failing" else Completed
    async with system(config, app) as running:
        await tasks[task].enqueue()
        await wait_for_runs(running, kind, 1)
        gc.collect()
        await tasks[task].enqueue_many([()] * RUNS)
        await wait_for_runs(running, kind, 1 + RUNS)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [type(one).__name__ for one in gc.garbage]
    assert len(left) < RUNS, left
