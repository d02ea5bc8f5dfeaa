"""Handlers that use `multiprocessing` with fork: their children can be ended, and the worker survives that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Generator
from typing import Any

import pytest

from tests.support.cli import Cli, Log, terminate
from tests.support.patience import PATIENCE

TASKS = """
import multiprocessing, os, signal, subprocess
from evsched import App, Retry

app = App()
fork = multiprocessing.get_context("fork")
once = Retry(attempts=1)

def square(number):
    return number * number

def squares():
    with fork.Pool(2) as pool:  # which ends its processes by SIGTERM
        return sum(pool.map(square, range(4)))

@app.task(retry=once, retention=60)
def in_thread():
    return squares()

@app.task(retry=once, retention=60)
async def in_loop():
    return squares()

def forked(raises):
    child = os.fork()
    if child:
        return 14 + os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if raises:
        raise ValueError
    return 99

@app.task(retry=once, retention=60)
def fork_in_thread():
    return forked(raises=False) if forked(raises=True) == 14 else 0

@app.task(retry=once, retention=60)
async def fork_in_loop():
    return forked(raises=False) if forked(raises=True) == 14 else 0

@app.task(on="process", retry=once, retention=60)
def on_process():
    return squares()

@app.task(retry=once, retention=60)
def leave():
    child = fork.Process(target=signal.pause)
    child.start()
    return child.pid

@app.task(on="process", retry=once, retention=60)
def print_and_read():
    subprocess.run(["sh", "-c", "echo to the standard output; cat"], check=True)
    return 14

@app.task(on="process", retry=once, retention=60)
def fork_and_die():
    child = fork.Process(target=signal.pause)
    child.start()
    signal.raise_signal(signal.SIGKILL)
"""


@pytest.fixture
def cli(cli: Cli, queue: str) -> Cli:
    (cli.folder / "tasks.py").write_text(TASKS)
    cli.environment |= {"EVSCHED_SHUTDOWN_GRACE": "0.3", "EVSCHED_QUEUES": queue}
    return cli


@pytest.fixture
def worker(cli: Cli) -> Generator[tuple[subprocess.Popen[str], Log]]:
    with cli.started("dev", "tasks:app", "--log-jobs") as (child, log):
        log.until("WorkerStarted")
        yield child, log


def run(cli: Cli, log: Log, queue: str, task: str) -> Any:
    """Run a job of a task; return its record when it has ended."""
    job = cli.run("enqueue", task, "--queue", queue, "--id", task)
    assert job.returncode == 0, job.stderr
    log.until("Completed", "JobBuried")
    return cli.json("show", task, "--queue", queue)


@pytest.mark.parametrize(
    "task",
    [
        *("in_thread", "on_process", "print_and_read"),
        *(pytest.param(task, marks=pytest.mark.extra) for task in ("in_loop", "fork_in_thread", "fork_in_loop")),
    ],
)
def test_process_started_by_a_handler_harms_neither_pool_nor_worker(
    cli: Cli, worker: tuple[subprocess.Popen[str], Log], queue: str, task: str
) -> None:
    child, log = worker
    job = run(cli, log, queue, task)
    assert (job["outcome"], job["result"], job["attempt"]) == ("done", 14, 1)
    assert child.poll() is None
    assert terminate(child) == 0


@pytest.mark.extra
def test_a_process_that_a_handler_left_behind_ends_with_the_worker(
    cli: Cli, worker: tuple[subprocess.Popen[str], Log], queue: str
) -> None:
    child, log = worker
    left = run(cli, log, queue, "leave")["result"]
    child.send_signal(signal.SIGTERM)
    assert log.until("HandlersLeft")["processes"] == 1
    child.communicate(timeout=PATIENCE)
    assert child.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(left, 0)


@pytest.mark.extra
def test_the_death_of_a_pool_process_is_noticed_while_it_has_children(
    cli: Cli, worker: tuple[subprocess.Popen[str], Log], queue: str
) -> None:
    child, log = worker
    job = run(cli, log, queue, "fork_and_die")
    assert "its process died" in json.dumps(job)
    assert terminate(child) == 0
