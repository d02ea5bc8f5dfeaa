"""The installed release is removed while services run, as by a deployment that replaces it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import evsched
from evsched.transport.call import folder
from tests.support.cli import Cli, terminate
from tests.support.patience import PATIENCE

TASKS = """
import asyncio
from evsched import App, Retry

app = App()

@app.task
async def hold() -> None:
    await asyncio.Event().wait()

@app.task(retry=Retry(attempts=1))
async def fail() -> None:
    raise ValueError("broken")

@app.task(retry=Retry(interval=3600, max_interval=3600))
async def again() -> None:
    raise ValueError("broken for now")
"""


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A copy of the package as it is installed, with its Lua files inside."""
    package = tmp_path / "release" / "evsched"
    shutil.copytree(Path(evsched.__file__).parent, package, ignore=shutil.ignore_patterns("lua"))
    shutil.copytree(folder(), package / "lua")
    return package


@pytest.fixture
def cli(cli: Cli, queue: str, release: Path) -> Cli:
    (cli.folder / "tasks.py").write_text(TASKS)
    cli.environment |= {
        "PYTHONPATH": str(release.parent),
        "EVSCHED_SHUTDOWN_GRACE": "0.3",
        "EVSCHED_LEASE": "3",
        "EVSCHED_TEST_HEARTBEAT": "0.3",
        "EVSCHED_LOG_JOBS": "true",
        "EVSCHED_QUEUES": queue,
    }
    return cli


@pytest.mark.extra
def test_services_whose_release_is_removed_lose_nothing_and_end_in_order(
    cli: Cli, raw: Any, queue: str, release: Path
) -> None:
    root = f"evsched:{{{queue}}}:"

    def schedule(task: str, job: str) -> None:
        raw.zadd(f"{root}schedule", {f'{{"task":"{task}","id":"{job}"}}': 0})

    with (
        cli.started("worker", "tasks:app") as (doomed, its_log),
        cli.started("dispatcher") as (dispatcher, dispatched),
    ):
        its_log.until("WorkerStarted")
        dispatched.until("DispatcherStarted")
        schedule("hold", "held-by-the-killed")
        its_log.until("Started")
        with cli.started("worker", "tasks:app") as (worker, log):
            log.until("WorkerStarted")
            release.rename(release.with_name("removed"))
            doomed.kill()
            dispatched.until("JobsRequeued")
            schedule("hold", "held")
            schedule("fail", "dead")
            schedule("nosuch", "unknown")
            schedule("again", "retried")
            log.until("JobBuried")
            log.until("TaskUnknown")
            log.until("Retrying")
            log.until("Started", where=lambda line: line["id"] == "held")
            assert terminate(worker) == 0
        assert terminate(dispatcher) == 0
    assert raw.zrange(f"{root}dead", 0, -1) == [b"dead"]
    waiting = [*raw.zrange(f"{root}schedule", 0, -1), *raw.zrange(f"{root}backlog", 0, -1)]
    waiting += raw.lrange(f"{root}ready", 0, -1)
    assert sorted(waiting) == [b"held", b"held-by-the-killed", b"retried", b"unknown"]


PRODUCER = """
import sys
from tasks import app, hold

print("ready", flush=True)
sys.stdin.readline()
with app.sync() as session:
    session.enqueue(hold)
"""


def test_a_producer_whose_release_is_removed_still_enqueues(cli: Cli, raw: Any, queue: str, release: Path) -> None:
    (cli.folder / "producer.py").write_text(PRODUCER)
    (cli.folder / "tasks.py").write_text(TASKS.replace("App()", f"App(queue={queue!r})"))
    command = [sys.executable, "producer.py"]
    with subprocess.Popen(
        command, env=cli.environment, cwd=cli.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        release.rename(release.with_name("removed"))
        child.communicate("go\n", timeout=PATIENCE)
        assert child.returncode == 0
    assert raw.zcard(f"evsched:{{{queue}}}:schedule") == 1
