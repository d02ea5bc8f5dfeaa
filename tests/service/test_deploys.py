"""A rolling deploy: two versions of an app serve one queue, and each job runs on a worker that knows its task."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, Log, terminate
from tests.support.patience import PATIENCE

OLD = """
import asyncio
from evsched import App, Retry, current_job

app = App()

@app.task(retention=600)
async def work() -> str:
    await asyncio.sleep(0.02)
    return "worked"
"""

NEW = (
    OLD
    + """
@app.task(retention=600, retry=Retry(attempts=2))
async def quick() -> str:
    return f"attempt {current_job().attempt}"

@app.task(retention=600)
async def slow() -> str:
    await asyncio.sleep(0.5)
    return f"attempt {current_job().attempt}"
"""
)

JOBS = 40
"""Of each task, in each direction of the deploy."""


class Deploy:
    """Workers of both versions, each with a log of its own."""

    def __init__(self, cli: Cli, stack: ExitStack) -> None:
        self._cli = cli
        self._stack = stack

    def start(self, version: str) -> tuple[subprocess.Popen[str], Log]:
        """Start a worker of a version, and return it when it fetches jobs."""
        words = ("worker", f"{version}:app", "--concurrency", "8", "--log-jobs")
        child, log = self._stack.enter_context(self._cli.started(*words))
        log.until("WorkerStarted")
        return child, log


@pytest.fixture
def deploy(server: Any, tmp_path: Path, queue: str) -> Generator[Deploy]:
    (tmp_path / "old.py").write_text(OLD)
    (tmp_path / "new.py").write_text(NEW)
    cli = Cli(server.url, tmp_path)
    # The new version is offered a job soon, however long the job has waited by then.
    cli.run_first("from evsched.execution import deferral\ndeferral._LONGEST = 1.0\n")
    cli.environment |= {
        "EVSCHED_QUEUES": queue,
        "EVSCHED_SHUTDOWN_GRACE": "0.1",
        "EVSCHED_LEASE": "5",
        "EVSCHED_TEST_HEARTBEAT": "0.5",
    }
    with cli.running("dispatcher", until="NotificationsProven"), ExitStack() as stack:
        yield Deploy(cli, stack)


def schedule(raw: Any, queue: str, part: str) -> None:
    members = {
        json.dumps({"task": task, "id": f"{part}-{task}-{n}", "reply": True}): n
        for task in ("work", "quick", "slow")
        for n in range(JOBS)
    }
    raw.zadd(f"evsched:{{{queue}}}:schedule", members)


def outcomes(raw: Any, queue: str, part: str, task: str) -> set[str]:
    """Wait for the jobs of a task; return their outcomes."""
    found = set[str]()
    for n in range(JOBS):
        key, popped, until = f"evsched:{{{queue}}}:reply:{part}-{task}-{n}", None, time.monotonic() + PATIENCE
        while popped is None and time.monotonic() < until:
            popped = raw.blpop(key, timeout=1)
        assert popped is not None, (n, raw.hgetall(f"evsched:{{{queue}}}:job:{part}-{task}-{n}"))
        reply = json.loads(popped[1])
        found.add(str(reply["result"]) if reply["outcome"] == "done" else f"{reply['outcome']}: {reply.get('reason')}")
    return found


EXPECTED = {"work": {"worked"}, "quick": {"attempt 1"}, "slow": {"attempt 1"}}


@pytest.mark.extra
def test_deploy_and_rollback_lose_no_job_and_no_attempt(deploy: Deploy, queue: str, raw: Any) -> None:
    (one, log), (two, _) = deploy.start("old"), deploy.start("old")
    schedule(raw, queue, "forth")
    assert "this worker has 'work'" in log.until("TaskUnknown")["reason"]
    one.kill()  # its supervisor starts it again, with the old code
    one, _ = deploy.start("old")
    three, log = deploy.start("new")
    assert terminate(two) == 0
    two, _ = deploy.start("new")
    log.until("Started", where=lambda line: line["task"] == "slow")
    assert terminate(three) == 0  # it hands back what runs there
    assert terminate(one) == 0
    assert {task: outcomes(raw, queue, "forth", task) for task in EXPECTED} == EXPECTED
    schedule(raw, queue, "back")
    one, log = deploy.start("old")
    assert terminate(two) == 0
    assert outcomes(raw, queue, "back", "work") == EXPECTED["work"]
    log.until("TaskUnknown")
    two, _ = deploy.start("new")
    assert terminate(one) == 0
    for task in ("quick", "slow"):
        assert outcomes(raw, queue, "back", task) == EXPECTED[task]
    assert terminate(two) == 0
    assert raw.zcard(f"evsched:{{{queue}}}:dead") == 0
