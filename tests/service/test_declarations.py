"""Deploys with real processes: old workers that are killed and restart, a rollback, a Redis that lost its data."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli, Log
from tests.support.patience import PATIENCE

TASKS = """
from evsched import App, Retry

app = App(queue="QUEUE")

@app.task(retry=Retry(attempts=1))
async def report() -> None: ...
"""

VERSIONS = {
    "old": {"changed": "0 9 * * *", "removed": "0 9 * * *"},
    "new": {"changed": "0 10 * * *", "added": "every 1"},
    "none": {},
}
"""By version, the recurrences that it declares."""


@pytest.fixture
def cli(server: EmbeddedRedis, tmp_path: Path, queue: str) -> Cli:
    for version, rules in VERSIONS.items():
        declared = "".join(f'app.recurring("{rule}", name="{name}")(report)\n' for name, rule in rules.items())
        (tmp_path / f"{version}.py").write_text(TASKS.replace("QUEUE", queue) + declared)
    cli = Cli(server.url, tmp_path)
    cli.environment |= {"EVSCHED_QUEUES": queue, "EVSCHED_IDLE_HEARTBEAT": "0.2", "EVSCHED_HEARTBEAT": "0.2"}
    return cli


@contextmanager
def started(cli: Cli, *words: str) -> Generator[tuple[subprocess.Popen[str], Log]]:
    """Start a service; at the end kill it with SIGKILL."""
    child = subprocess.Popen(
        cli.command(*words), env=cli.environment, cwd=cli.folder, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr is not None
    try:
        yield child, Log(child)
    finally:
        child.kill()
        child.wait(PATIENCE)
        child.stderr.close()


def states(cli: Cli, queue: str) -> dict[str, tuple[str, bool, bool]]:
    """Return the rule of each recurrence, and whether it is stopped and paused."""
    rows = cli.json("recurrences", "--queue", queue)
    return {row["name"]: (row["rule"], bool(row["retired"]), bool(row["paused"])) for row in rows}


AFTER_NEW = {
    "changed": ("0 10 * * *", False, True),
    "removed": ("0 9 * * *", True, False),
    "added": ("every 1", False, False),
}


def test_old_workers_that_restart_change_nothing_until_the_rollback(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    with started(cli, "worker", "old:app") as (_, log):
        log.until("WorkerStarted")
        assert cli.run("recurrences", "pause", "changed", *of).returncode == 0
        with started(cli, "worker", "new:app") as (_, new_log):
            new_log.until("WorkerStarted")
            assert states(cli, queue) == AFTER_NEW
    # Both were killed -9; the supervisor restarts the old one.
    with started(cli, "worker", "old:app") as (_, log):
        assert "recurrences rollback" in log.until("RevisionOutdated")["message"]
        log.until("WorkerStarted")
        assert states(cli, queue) == AFTER_NEW
        shown = cli.run("recurrences", *of).stdout
        assert "stopped: the code no longer declares it" in shown
        # Rolled back on purpose: the worker that runs declares, and the pause is still there.
        assert f"app {queue}: its workers declare" in cli.run("recurrences", "rollback", *of).stdout
        log.until("RecurrenceDeclared", where=lambda line: line["name"] == "added")
        assert states(cli, queue) == {
            "changed": ("0 9 * * *", False, True),
            "removed": ("0 9 * * *", False, False),
            "added": ("every 1", True, False),
        }


def test_prune_deletes_what_the_newest_revision_does_not_declare(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    for version in ("old", "new"):
        assert cli.run("worker", f"{version}:app", "--burst").returncode == 0
    prune = ("recurrences", "prune", *of)
    other = cli.run(*prune, "--app", queue[:-1])
    assert (other.returncode, other.stdout) == (1, "")
    assert other.stderr == (
        f"evsched: no worker has declared recurrences or limits of app {queue[:-1]} in queue {queue}: "
        f"did you mean {queue}?\n"
    )
    assert cli.run(*prune, "--dry-run").stdout == "removed would be removed\n"
    assert "removed" in states(cli, queue)
    assert cli.run(*prune, "--app", queue).stdout == "removed removed\n"
    assert states(cli, queue).keys() == {"changed", "added"}
    assert cli.run(*prune).stdout.startswith("nothing to prune")
    refused = cli.run("recurrences", "rollback", "--app", "nobody", *of)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)


def test_a_rollback_finds_the_app_although_all_its_recurrences_are_pruned(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    for version in ("old", "none"):
        assert cli.run("worker", f"{version}:app", "--burst").returncode == 0
    assert cli.run("recurrences", "prune", *of).stdout.count("removed\n") == 2
    assert cli.run("recurrences", "rollback", *of).returncode == 0
    assert cli.run("worker", "old:app", "--burst").returncode == 0
    assert states(cli, queue).keys() == {"changed", "removed"}


def test_after_a_flush_an_idle_worker_declares_again_and_its_recurrences_run(cli: Cli, queue: str, raw: Any) -> None:
    with started(cli, "dispatcher") as (_, dispatcher), started(cli, "worker", "new:app", "--log-jobs") as (_, log):
        dispatcher.until("NotificationsProven")
        log.until("WorkerStarted")
        raw.flushall()
        log.until("RecurrenceDeclared", where=lambda line: line["name"] == "added", count=2)
        done = len([line for line in log.lines if line["event"] == "Completed"])
        log.until("Completed", count=done + 1)
    assert {name: rule for name, (rule, *_) in states(cli, queue).items()} == VERSIONS["new"]


def test_a_worker_serves_the_queues_of_its_tasks_and_sets_their_limits(cli: Cli, queue: str) -> None:
    own = f"{queue}-own"
    limited = f'@app.task(queue="{own}", concurrency=2)\nasync def limited() -> None: ...\n'
    (cli.folder / "own.py").write_text(TASKS.replace("QUEUE", queue) + limited + f'app.limit("{own}", rate=50)\n')
    del cli.environment["EVSCHED_QUEUES"]
    cli.run("enqueue", "limited", "--queue", own, "--id", "a")
    assert cli.run("worker", "own:app", "--burst").returncode == 0
    assert cli.json("show", "a", "--queue", own)["place"] == "finished"
    rows = cli.json("limits", "--queue", queue, "--queue", own)
    assert [(row["queue"], row["group"], row["limit"], row["declared"]) for row in rows] == [
        (queue, "task:limited", "concurrency", 2),
        (own, None, "rate", 50),
        (own, "task:limited", "concurrency", 2),
    ]
