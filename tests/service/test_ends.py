"""How a service ends: asked to, or killed; and what ends with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, Log

TASKS = """
import os, signal
from evsched import App

app = App()

@app.task(on="process", timeout=60)
def spin() -> None:
    pipe = open("pipe", "w")  # open while this process lives
    print("began", file=pipe, flush=True)
    while True:
        pass

@app.task(on="process", timeout=60)
def signalled() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    return "still there"
"""


@pytest.fixture
def cli(server: Any, tmp_path: Path, queue: str) -> Cli:
    (tmp_path / "tasks.py").write_text(TASKS)
    cli = Cli(server.url, tmp_path)
    cli.environment |= {"EVSCHED_GRACE": "0.3", "EVSCHED_QUEUES": queue}
    return cli


def start(cli: Cli, *words: str) -> tuple[subprocess.Popen[str], Log]:
    child = subprocess.Popen(
        cli.command(*words), env=cli.environment, cwd=cli.folder, stderr=subprocess.PIPE, text=True
    )
    return child, Log(child)


def schedule(raw: Any, queue: str, task: str, job: str) -> None:
    raw.zadd(f"evsched:{{{queue}}}:schedule", {f'{{"task":"{task}","id":"{job}"}}': 0})


def test_the_processes_of_a_pool_end_with_a_worker_that_is_killed(cli: Cli, queue: str, raw: Any) -> None:
    os.mkfifo(cli.folder / "pipe")
    child, _ = start(cli, "worker", "tasks:app", "--burst")
    schedule(raw, queue, "spin", "endless")
    with (cli.folder / "pipe").open() as pipe:
        assert pipe.readline() == "began\n"
        child.kill()
        assert pipe.read() == ""  # it is closed when the handler's process has ended
    child.communicate(timeout=20)


def test_a_signal_to_the_whole_group_leaves_the_processes_of_a_pool_to_the_worker(
    cli: Cli, queue: str, raw: Any
) -> None:
    schedule(raw, queue, "signalled", "one")
    done = cli.run("worker", "tasks:app", "--burst")
    assert done.returncode == 0, done.stderr
    assert cli.json("show", "one", "--queue", queue)["result"] == "still there"
