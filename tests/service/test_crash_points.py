"""A worker is killed at each step between `start` and the handler's first line: which runs count as attempts."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from evsched.store.store import Store
from evsched.transport.senders import BatchingSender
from tests.crash_points import injection
from tests.support.cli import Cli
from tests.support.patience import PATIENCE

ARM = "from tests.crash_points.injection import arm; arm()"

TASKS = """
import os, signal, time
from evsched import App
from evsched.services.job_process import WorkerLink
from tests.support.plain import plain_client

app = App()
POINT = os.environ["POINT"]
os.environ.setdefault("WORKER", str(os.getpid()))

def die():
    os.kill(int(os.environ["WORKER"]), signal.SIGKILL)
    signal.pause()  # the kernel kills the process of an isolated run with its worker

wait_to_begin = WorkerLink.wait_to_begin

async def wait_to_begin_and_die(*args):
    await wait_to_begin(*args)
    die()

if POINT == "told to begin":
    WorkerLink.wait_to_begin = wait_to_begin_and_die

@app.task
async def crash_here():
    os.write(os.open("began", os.O_WRONLY | os.O_CREAT), b"1")
    if POINT == "first line":
        die()

@app.task(on="thread")
def crash_when_marked():
    os.write(os.open("began", os.O_WRONLY | os.O_CREAT), b"1")
    client = plain_client(os.environ["EVSCHED_URL"])
    while client.hget(os.environ["RECORD"], "begun") not in (b"1", b"alone"):
        time.sleep(0.01)
    die()
"""

PLAIN, SUSPECT, ISOLATED, ALONE = "", "1 1", "2 1", "4 1"
"""What is known of the job beforehand: how many workers died that held it, and in how many it is unknown whether it had
begun."""


@pytest.mark.extra
@pytest.mark.parametrize(
    ("before", "point", "attempt", "after"),
    [
        (PLAIN, "start 1 after kill", 0, "1 1"),
        (PLAIN, "first line", 0, "1 1"),
        (PLAIN, "known to have begun", 1, "1 0"),
        (SUSPECT, "start 1 after kill", 0, "2 1"),
        (SUSPECT, "begin 1 before kill", 0, "2 1"),
        (SUSPECT, "begin 1 after kill", 0, "2 2"),
        (SUSPECT, "first line", 0, "2 2"),
        (SUSPECT, "known to have begun", 1, "2 1"),
        (ISOLATED, "begin 1 before kill", 0, "3 1"),
        (ISOLATED, "begin 1 after kill", 0, "3 2"),
        (ISOLATED, "told to begin", 0, "3 2"),
        (ISOLATED, "known to have begun", 1, "3 1"),
        # It is the cause, so the doubtful runs count too. The reason will say how many may not have begun.
        (ALONE, "begin 1 before kill", 0, "5 1"),
        (ALONE, "begin 1 after kill", 2, "0 0 2"),
        (ALONE, "told to begin", 2, "0 0 2"),
        (ALONE, "known to have begun", 2, "0 0 1"),
    ],
)
async def test_interrupted_run_counts_if_it_began_or_its_reason_admits_doubt(
    server: Any,
    raw: Any,
    sender: BatchingSender,
    store: Store,
    tmp_path: Path,
    before: str,
    point: str,
    attempt: int,
    after: str,
) -> None:
    record, suspects = (f"evsched:{{{store.queue}}}:{name}" for name in ("job:x", "suspects"))
    task = "crash_when_marked" if point == "known to have begun" else "crash_here"
    raw.hset(record, "payload", f'{{"task":"{task}","retry":{{"attempts":9}}}}')
    raw.zadd(f"evsched:{{{store.queue}}}:schedule", {"x": 0})
    if before:
        raw.hset(suspects, "x", before)
    await sender.send(store.dispatch(limit=10, cap=1000))
    cli = Cli(server.url, tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    cli.environment |= {"POINT": point, "RECORD": record}
    if point.endswith(" kill"):
        cli.run_first(ARM)
        cli.environment |= {injection.VARIABLE: point, injection.FOLDER: str(tmp_path)}
    words = cli.command("worker", "tasks:app", "--queue", store.queue, "--log-level", "ERROR")
    with subprocess.Popen(words, env=cli.environment, cwd=tmp_path) as worker:
        try:
            assert await asyncio.to_thread(worker.wait, PATIENCE) == -9
        finally:
            worker.kill()
    (lease,) = (await sender.send(store.survey())).leases
    assert (await sender.send(store.requeue(lease.worker, "it died", lease=lease.end))).ids == ["x"]
    assert (int(raw.hget(record, "attempt")), raw.hget(suspects, "x").decode()) == (attempt, after)
    assert (tmp_path / "began").exists() == (point in ("first line", "known to have begun"))
