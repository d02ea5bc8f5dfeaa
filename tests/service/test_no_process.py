"""`worker --processes 0:8` runs no process while there is nothing to do; what a killed process held starts at once."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, Log
from tests.support.patience import PATIENCE

TASKS = """
import asyncio
from evsched import App

app = App()

@app.task
async def hold() -> None:
    await asyncio.Event().wait()

@app.task
async def short() -> None:
    pass
"""


@pytest.fixture
def cli(server: Any, queue: str, tmp_path: Path) -> Cli:
    (tmp_path / "tasks.py").write_text(TASKS)
    cli = Cli(server.url, tmp_path)
    cli.environment |= {"EVSCHED_QUEUES": queue, "EVSCHED_SHUTDOWN_GRACE": "0.2", "EVSCHED_LOG_JOBS": "true"}
    cli.environment["EVSCHED_SCALE_DOWN_AFTER"] = "0.5"
    return cli


@contextmanager
def parent(cli: Cli, processes: str) -> Generator[tuple[subprocess.Popen[str], Log]]:
    command = cli.command("worker", "tasks:app", "--processes", processes)
    with subprocess.Popen(command, env=cli.environment, cwd=cli.folder, stderr=subprocess.PIPE, text=True) as child:
        try:
            log = Log(child)
            yield child, log
            child.send_signal(signal.SIGTERM)
            log.rest()
            assert child.wait(PATIENCE) == 0
        finally:
            child.kill()


def inline(task: str, job: str) -> dict[str, float]:
    return {f'{{"task":"{task}","id":"{job}"}}': 0}


def test_without_work_no_process_runs_and_a_job_starts_one(cli: Cli, queue: str, raw: Any) -> None:
    with (
        cli.running("dispatcher", until="NotificationsProven"),
        parent(cli, "0:8") as (_, log),
    ):
        log.until("WorkerStarted")  # once: it declares the recurrences
        for n in (1, 2):
            log.until("ParentWaits", count=n)
            log.until("ChildEnded", count=n)
            raw.zadd(f"evsched:{{{queue}}}:schedule", inline("short", f"j{n}"))
            log.until("ParentWoken", count=n)
            log.until("Completed", where=lambda line, n=n: line["id"] == f"j{n}")
    kinds = ("ChildStarted", "ChildEnded")
    order = [line["event"] for line in log.lines if line.get("event") in kinds]
    # One at a time. On a slow machine, one may end as idle before it has fetched, and another is started.
    assert order == [*kinds] * (len(order) // 2)
    assert len(order) >= 6


def test_one_job_starts_one_process_of_two_parents(cli: Cli, queue: str, raw: Any) -> None:
    # However long a process takes until it fetches.
    cli.run_first("from evsched.process import ready_watch\nready_watch._CLAIM = 600.0\n")
    cli.environment["EVSCHED_SCALE_DOWN_AFTER"] = "2"
    with (
        cli.running("dispatcher", until="NotificationsProven"),
        parent(cli, "0:8") as (_, one),
        parent(cli, "0:8") as (_, two),
    ):
        for log in (one, two):
            log.until("ParentWaits")
            log.until("ChildEnded")
        raw.zadd(f"evsched:{{{queue}}}:schedule", {'{"task":"short","id":"a","reply":true}': 0})
        assert raw.blpop(f"evsched:{{{queue}}}:reply:a", PATIENCE)
    started = 0
    for log in (one, two):
        started += len([line for line in log.lines if line.get("event") == "ChildStarted"])
    assert started == 3  # one each at first, and one for the job


def test_what_a_killed_process_ran_starts_elsewhere_at_once(cli: Cli, queue: str, raw: Any) -> None:
    ids = [f"j{n}" for n in range(5)]
    cli.environment["EVSCHED_LEASE"] = "600"  # the janitor would wait for its end
    with (
        cli.running("dispatcher", until="NotificationsProven"),
        parent(cli, "2") as (_, log),
    ):
        log.until("WorkerStarted", count=2)
        for job in ids:
            raw.zadd(f"evsched:{{{queue}}}:schedule", inline("hold", job))
        log.until("Started", count=len(ids))
        holders = [line["worker"] for line in log.lines if line.get("event") == "Started"]
        victim = max(set(holders), key=holders.count)
        os.kill(int(victim.split("-")[-2]), signal.SIGKILL)
        requeued = log.until("JobsRequeued")
        assert (requeued["worker"], requeued["cause"]) == (victim, "died")
        assert "died: its process was ended by SIGKILL" in requeued["reason"]
        log.until("Started", count=len(ids) + holders.count(victim))
        assert {line["id"] for line in log.lines if line.get("event") == "Started" and line["worker"] != victim} >= {
            *requeued["ids"]
        }


def test_a_process_counts_what_was_put_back_for_the_one_before_it(cli: Cli, queue: str, raw: Any) -> None:
    cli.environment["EVSCHED_METRICS_PORT"] = "0"
    cli.run_first("from evsched.process import children\nchildren._COUNTED = 600.0\n")
    with (
        cli.running("dispatcher", "--metrics-port", "0", until="NotificationsProven"),
        parent(cli, "1") as (_, log),
    ):
        url = log.until("Listening")["url"]
        raw.zadd(f"evsched:{{{queue}}}:schedule", inline("hold", "a"))
        victim = log.until("Started")["worker"]
        os.kill(int(victim.split("-")[-2]), signal.SIGKILL)
        log.until("Started", count=2)
        page = subprocess.run(["curl", "-s", f"{url}/metrics"], capture_output=True, text=True, check=True).stdout
        assert f'evsched_jobs_requeued_total{{queue="{queue}",reason="died"}} 1.0' in page


def test_processes_connect_to_the_redis_that_the_app_names(cli: Cli, queue: str) -> None:
    url = cli.environment.pop("EVSCHED_URL")
    (cli.folder / "tasks.py").write_text(TASKS.replace("App()", f"App({url!r})"))
    with parent(cli, "1") as (_, log):
        assert log.until("WorkerStarted")["queues"] == [queue]
        assert not any(line.get("event") == "RedisDown" for line in log.lines)
