"""What operators ask of worker processes: to fetch no more, to stop, and where a job is."""

from __future__ import annotations

import os
from collections.abc import Generator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import pytest

from evsched.client.client import SyncClient
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli, Log
from tests.support.patience import PATIENCE

TASKS = """
import asyncio
import time
from evsched import App

app = App(queue="{queue}")


@app.task
async def wait():
    await nested()


async def nested():
    return await asyncio.gather(asyncio.to_thread(read))


def read():
    with open("gate") as gate:
        return gate.read()


@app.task
def work():
    return read()
"""


class Scene:
    """A worker process, and jobs that run until `release`."""

    def __init__(self, cli: Cli, queue: str, client: SyncClient, child: Any, log: Log) -> None:
        self.cli, self.client, self.child, self.log = cli, client, child, log
        self.queue, self._store = queue, Store(queue)
        self.worker: str = log.until("WorkerStarted")["worker"]
        self._gates = list[TextIOWrapper]()

    def enqueue(self, job: str, task: str = "wait") -> None:
        self.client.send(self._store.enqueue([New(job, f'{{"task":"{task}"}}'.encode())]))
        self.client.send(self._store.dispatch(limit=9, cap=1000))

    def begun(self) -> None:
        """Return when a job has begun: its handler opens the other end of the pipe."""
        self._gates.append((self.cli.folder / "gate").open("w"))

    def release(self) -> None:
        for gate in self._gates:
            gate.close()

    def place(self, job: str) -> str:
        status = self.client.status(self.queue, job)
        assert status is not None
        return status.place

    def state(self) -> tuple[int, str | None]:
        """Return how many jobs the worker holds, and why it fetches none."""
        (row,) = self.cli.json("workers")
        return row["held"], row["not_fetching"]


@pytest.fixture
def scene(cli: Cli, queue: str, server: EmbeddedRedis) -> Generator[Scene]:
    (cli.folder / "tasks.py").write_text(TASKS.format(queue=queue))
    os.mkfifo(cli.folder / "gate")
    with cli.started("worker", "tasks:app") as (child, log):
        client = SyncClient(server.url)
        found = Scene(cli, queue, client, child, log)
        yield found
        found.release()
        client.close()


def test_quiet_worker_finishes_its_jobs_fetches_no_more_and_stays_until_it_is_stopped(scene: Scene) -> None:
    scene.enqueue("first")
    scene.begun()
    asked = scene.cli.run("workers", "quiet", scene.worker, "--as", "ann")
    assert asked.returncode == 0, asked.stderr
    assert scene.queue in asked.stdout
    scene.log.until("WorkerQuiet")
    scene.enqueue("second")
    assert scene.place("first") == "processing"
    scene.release()
    scene.client.result(scene.queue, "first", PATIENCE)
    assert scene.place("second") == "ready"
    assert scene.child.poll() is None
    assert scene.state() == (0, "quiet")
    (line,) = [line for line in scene.cli.run("workers").stdout.splitlines() if scene.worker in line]
    assert line.endswith("\tquiet")
    assert scene.cli.run("workers", "stop", scene.worker, "--as", "ann").returncode == 0
    assert scene.child.wait(PATIENCE) == 0
    assert scene.place("second") == "ready"
    acts = scene.cli.json("audit", "--queue", scene.queue)
    assert [(act["act"], act["who"], act["what"]) for act in acts] == [
        ("stop", "ann", {"worker": scene.worker}),
        ("quiet", "ann", {"worker": scene.worker}),
    ]


def test_stopped_worker_ends_when_its_jobs_have(scene: Scene) -> None:
    scene.enqueue("first")
    scene.begun()
    assert scene.cli.run("workers", "stop", scene.worker).returncode == 0
    scene.log.until("WorkerDraining")
    assert scene.state() == (1, "stopping")
    scene.release()
    assert scene.child.wait(PATIENCE) == 0
    assert scene.place("first") == "finished"


def test_worker_that_there_is_not_is_named(cli: Cli, scene: Scene) -> None:
    done = cli.run("workers", "quiet", "nobody")
    assert done.returncode == 1
    assert done.stderr == "evsched: no worker nobody serves any queue: see `evsched workers`\n"
    assert cli.json("audit", "--queue", scene.queue) == []


@pytest.mark.parametrize(
    ("task", "lines"),
    [
        ("wait", ["in wait\n    await nested()", "in nested\n    return await asyncio.gather("]),
        ("work", ["in work\n    return read()", "in read\n"]),
    ],
)
def test_stack_of_a_running_job_has_the_lines_of_its_handler(scene: Scene, task: str, lines: list[str]) -> None:
    scene.enqueue("first", task)
    scene.begun()
    shown = scene.cli.run("stack", "first", "--queue", scene.queue)
    assert shown.returncode == 0, shown.stderr
    for line in lines:
        assert line in shown.stdout
    found = scene.cli.json("stack", "first")
    assert (found["worker"], found["id"], found["attempt"]) == (scene.worker, "first", 1)
    assert str(Path("evsched") / "execution") not in shown.stdout


@pytest.mark.extra
def test_stack_of_a_job_that_does_not_run_is_not_there(scene: Scene) -> None:
    scene.client.enqueue(scene.queue, [New("later", b'{"task":"wait"}', due=2e9)])
    done = scene.cli.run("stack", "later", "--queue", scene.queue)
    assert done.returncode == 1
    assert "no worker says where job later is" in done.stderr
