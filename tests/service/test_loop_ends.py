"""When a loop of a service ends, or its event loop: the process says why in one line, and exits with 70."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cli import Cli

TASKS = """
import asyncio
from evsched import App

app = App()

@app.task
async def stop_loop() -> None:
    asyncio.get_running_loop().stop()

@app.task
async def cancel_all() -> None:
    for task in asyncio.all_tasks():
        task.cancel()
"""


@pytest.fixture
def cli(cli: Cli, queue: str) -> Cli:
    (cli.folder / "tasks.py").write_text(TASKS)
    cli.environment["EVSCHED_QUEUES"] = queue
    return cli


BROKEN = """
import {module}

async def step(*_): raise KeyError("a bug")
def step_of_thread(*_): raise KeyError("a bug")

{module}.{name} = {function}
"""


@pytest.mark.extra
@pytest.mark.parametrize(
    ("words", "module", "name", "function", "loop"),
    [
        (["dispatcher"], "evsched.dispatcher.janitor", "Janitor.step", "step", "janitor"),
        (["dispatcher"], "evsched.dispatcher.dispatch_loop", "DispatchLoop.step", "step", "dispatcher"),
        (["worker", "tasks:app"], "evsched.worker.heartbeat", "Heartbeat.step", "step_of_thread", "heartbeat"),
        (["worker", "tasks:app"], "evsched.worker.consumer", "QueueConsumer.exchange", "step", "queue"),
    ],
)
def test_process_exits_with_code_70_when_a_loop_ends(
    cli: Cli, words: list[str], module: str, name: str, function: str, loop: str
) -> None:
    cli.run_first(BROKEN.format(module=module, name=name, function=function))
    cli.environment |= {"EVSCHED_TEST_HEARTBEAT": "0.1", "EVSCHED_TEST_IDLE_HEARTBEAT": "0.1"}
    done = cli.run(*words)
    assert done.returncode == 70, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"evsched: the {loop}")
    assert "loop has ended: KeyError: 'a bug' (" in last
    assert "Traceback" not in done.stderr


@pytest.mark.extra
@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("stop_loop", "a handler stopped the event loop"),
        ("cancel_all", "a handler cancelled tasks that are not its own"),
    ],
)
def test_handler_that_ends_the_event_loop_ends_the_worker_with_code_70(
    cli: Cli, queue: str, raw: Any, task: str, message: str
) -> None:
    raw.zadd(f"evsched:{{{queue}}}:schedule", {f'{{"task":"{task}"}}': 0})
    done = cli.run("worker", "tasks:app", "--burst")
    assert done.returncode == 70, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"evsched: {message}, which ends the worker")
    assert "Traceback" not in done.stderr
