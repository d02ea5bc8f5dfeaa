"""Deploys with real processes: old workers that are killed and restart, a rollback, a Redis that lost its data."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.cli import Cli

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
def cli(cli: Cli, queue: str) -> Cli:
    for version, rules in VERSIONS.items():
        declared = "".join(f'app.recurring("{rule}", name="{name}")(report)\n' for name, rule in rules.items())
        (cli.folder / f"{version}.py").write_text(TASKS.replace("QUEUE", queue) + declared)
    cli.environment |= {"EVSCHED_QUEUES": queue, "EVSCHED_TEST_IDLE_HEARTBEAT": "0.2", "EVSCHED_TEST_HEARTBEAT": "0.2"}
    return cli


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
    with cli.started("worker", "old:app") as (_, log):
        log.until("WorkerStarted")
        assert cli.run("recurrences", "pause", "changed", *of).returncode == 0
        with cli.started("worker", "new:app") as (_, new_log):
            new_log.until("WorkerStarted")
            assert states(cli, queue) == AFTER_NEW
    # Both were killed -9; the supervisor restarts the old one.
    with cli.started("worker", "old:app") as (_, log):
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


@pytest.mark.extra
def test_prune_deletes_recurrences_missing_from_the_newest_revision(cli: Cli, queue: str) -> None:
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


@pytest.mark.extra
def test_a_rollback_finds_the_app_although_all_its_recurrences_are_pruned(cli: Cli, queue: str) -> None:
    of = ("--queue", queue)
    for version in ("old", "none"):
        assert cli.run("worker", f"{version}:app", "--burst").returncode == 0
    assert cli.run("recurrences", "prune", *of).stdout.count("removed\n") == 2
    assert cli.run("recurrences", "rollback", *of).returncode == 0
    assert cli.run("worker", "old:app", "--burst").returncode == 0
    assert states(cli, queue).keys() == {"changed", "removed"}


def test_idle_worker_declares_again_after_a_flush(cli: Cli, queue: str, raw: Any) -> None:
    with cli.started("dispatcher") as (_, dispatcher), cli.started("worker", "new:app", "--log-jobs") as (_, log):
        dispatcher.until("NotificationsProven")
        log.until("WorkerStarted")
        raw.flushall()
        log.until("RecurrenceDeclared", where=lambda line: line["name"] == "added", count=2)
        done = len([line for line in log.lines if line["event"] == "Completed"])
        log.until("Completed", count=done + 1)
    assert {name: rule for name, (rule, *_) in states(cli, queue).items()} == VERSIONS["new"]


@pytest.mark.extra
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


MOVED = """
from evsched import App, Retry

app = App(queue="QUEUE")

@app.recurring("every 60", name="own", overlap="allow")
@app.task(queue="QUEUE-own", retry=Retry(attempts=1))
async def report() -> None: ...

app.limit("QUEUE-own", rate=50)
"""
"""An app that declares a recurrence and a limit in a second queue."""


@pytest.fixture
def left(cli: Cli, queue: str) -> str:
    """Have an app declare in a second queue, and its next version serve the first one only; return the second."""
    (cli.folder / "before.py").write_text(MOVED.replace("QUEUE", queue))
    (cli.folder / "after.py").write_text(
        TASKS.replace("QUEUE", queue) + 'app.recurring("every 60", name="own")(report)\n'
    )
    del cli.environment["EVSCHED_QUEUES"]
    for version in ("before", "after"):
        assert cli.run("worker", f"{version}:app", "--burst").returncode == 0
    return f"{queue}-own"


def limits_in_force(cli: Cli, queue: str) -> dict[str, float]:
    return {row["limit"]: row["value"] for row in cli.json("limits", "--queue", queue)}


@pytest.mark.extra
def test_abandoned_queue_is_pruned_when_no_worker_serves_it(cli: Cli, queue: str, left: str, raw: Any) -> None:
    prune, of_app = ("recurrences", "prune", "--queue", left), ("--all", "--app", queue)
    assert states(cli, left) == {"own": ("every 60", False, False)}
    found = cli.run(*prune).stdout
    assert f"No worker serves queue {left}" in found
    assert f"in force: {queue}. If no code uses the queue any more, add --all --app NAME" in found
    assert cli.run(*prune, "--all").stderr.startswith("evsched: prune: --all needs --app")
    before = raw.zrange(f"evsched:{{{queue}}}:recurrences", 0, -1, withscores=True)

    assert cli.run(*prune, *of_app, "--dry-run").stdout == "own would be removed\nlimit rate would be removed\n"
    assert (states(cli, left).keys(), limits_in_force(cli, left)) == ({"own"}, {"rate": 50})
    assert cli.run(*prune, *of_app).stdout == "own removed\nlimit rate removed\n"
    assert (states(cli, left), limits_in_force(cli, left)) == ({}, {})
    assert cli.run(*prune, *of_app).returncode == 1

    assert raw.zrange(f"evsched:{{{queue}}}:recurrences", 0, -1, withscores=True) == before
    # A version that uses the queue again declares there, although its content was seen before.
    assert cli.run("worker", "before:app", "--burst").returncode == 0
    assert (states(cli, left).keys(), limits_in_force(cli, left)) == ({"own"}, {"rate": 50})


@pytest.mark.extra
def test_declarations_are_not_pruned_while_a_worker_serves_the_queue(cli: Cli, queue: str, left: str) -> None:
    with cli.started("worker", "before:app") as (_, log):
        log.until("WorkerStarted")
        for more in ((), ("--dry-run",)):
            refused = cli.run("recurrences", "prune", "--queue", left, "--all", "--app", queue, *more)
            assert (refused.returncode, refused.stdout) == (1, "")
            assert f"queue {left} is served by workers" in refused.stderr
        assert "No worker serves" not in cli.run("recurrences", "prune", "--queue", left).stdout
    assert (states(cli, left).keys(), limits_in_force(cli, left)) == ({"own"}, {"rate": 50})


@pytest.mark.extra
def test_burst_on_an_abandoned_queue_stops_its_declarations(cli: Cli, queue: str, left: str) -> None:
    cli.run("enqueue", "report", "--queue", left, "--id", "a")
    assert cli.run("worker", "after:app", "--queue", left, "--burst").returncode == 0
    assert cli.json("show", "a", "--queue", left)["place"] == "finished"
    assert (states(cli, left), limits_in_force(cli, left)) == ({"own": ("every 60", True, False)}, {})
    assert states(cli, queue) == {"own": ("every 60", False, False)}
    assert cli.run("worker", "before:app", "--burst").returncode == 0  # an old worker that restarts
    assert (states(cli, left)["own"], limits_in_force(cli, left)) == (("every 60", True, False), {})
    rollback = cli.run("recurrences", "rollback", "--queue", left, "--app", queue).stdout
    assert f"no worker serves queue {left} now" in rollback
    assert cli.run("worker", "before:app", "--burst").returncode == 0
    assert (states(cli, left)["own"], limits_in_force(cli, left)) == (("every 60", False, False), {"rate": 50})
