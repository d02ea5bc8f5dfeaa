"""Upgrade and downgrade: one release fills every place and is killed, and the other continues its jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from evsched import keys
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli, Log
from tests.support.patience import NO_CAP, PATIENCE
from tests.support.previous_release import ROOT, previous_release

TASKS: Final = """
import asyncio
import os
from evsched import App, Retry

app = App(queue="mail")

def note(name):
    with open("ran", "a") as file:
        print(name, file=file)

@app.task(retention=3600)
async def work(name: str) -> str:
    note(name)
    return name.upper()

@app.task
async def hold(name: str) -> None:
    if "FIRST" in os.environ:
        await asyncio.Event().wait()
    note(name)

@app.task(retry=Retry(attempts=1))
async def fail(name: str) -> None:
    if "FIRST" in os.environ:
        raise ValueError(name)
    note(name)

@app.task(retry=Retry(attempts=2, interval=3600))
async def again(name: str) -> None:
    if "FIRST" in os.environ:
        raise ValueError(name)
    note(name)

@app.recurring(every=1.0, name="tick")
@app.task(retry=Retry(attempts=1))
async def tick() -> None:
    note("tick")
"""

BEFORE: Final = """
from tasks import again, app, fail, hold, work
with app.sync() as client:
    client.enqueue(work.using(id="finished"), "finished")
    client.enqueue(hold.using(id="held"), "held")
    client.enqueue(fail.using(id="dead"), "dead")
    client.enqueue(again.using(id="retried"), "retried")
"""

AFTER: Final = """
from tasks import app, work
from evsched import Unique
with app.sync() as client:
    client.enqueue_many(work, [(f"waits-{n}",) for n in range(40)])
    for n in range(3):
        client.enqueue(work.using(group="alice"), f"alice-{n}")
    client.enqueue(work.using(delay=2, id="later"), "later")
    client.enqueue(work.using(unique=Unique(within=3600)), "once")
"""

RAN: Final = {
    *(f"waits-{n}" for n in range(40)),
    *(f"alice-{n}" for n in range(3)),
    *("finished", "held", "dead", "retried", "later", "once", "inline"),
}


@contextmanager
def service(cli: Cli, *words: str, ready: str, **environment: str) -> Generator[Log]:
    """Run a service; kill it if it has not been ended."""
    with cli.started(*words, environment=environment) as (_, log):
        log.until(ready)
        yield log


def json_of(cli: Cli, *words: str) -> Any:
    return json.loads(cli.process(*words, "--json").stdout)


def run(cli: Cli, script: str) -> None:
    done = subprocess.run(
        (sys.executable, "-c", script),
        env=cli.environment,
        cwd=cli.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.extra
@pytest.mark.one_server
@pytest.mark.parametrize("upgrade", [True, False], ids=["upgrade", "downgrade"])
def test_other_release_continues_every_job(own: EmbeddedRedis, client: Any, tmp_path: Path, *, upgrade: bool) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    old, new = Cli(own.url, tmp_path), Cli(own.url, tmp_path)
    for cli, folder in ((old, previous_release()), (new, ROOT)):
        cli.environment |= {"PYTHONPATH": f"{folder}:{tmp_path}", "EVSCHED_LEASE": "5", "EVSCHED_LOG_JOBS": "true"}
        cli.environment |= {"EVSCHED_TEST_HEARTBEAT": "1", "EVSCHED_SHUTDOWN_GRACE": "1"}
    old.environment |= {"EVSCHED_HEARTBEAT": "1", "EVSCHED_SAFETY_CAP": str(NO_CAP)}  # it still has them as settings
    first, second = (old, new) if upgrade else (new, old)
    inline = {'{"task":"work","args":["inline"]}': 0}
    with service(first, "dispatcher", ready="NotificationsProven"):
        with service(first, "worker", "tasks:app", ready="WorkerStarted", FIRST="1") as log:
            run(first, BEFORE)
            log.until("Started", where=lambda line: line["id"] == "held")
            for event, job in (("Completed", "finished"), ("JobBuried", "dead"), ("Retrying", "retried")):
                log.until(event, where=lambda line, job=job: line["id"] == job)
            # The worker is killed here, with a job in its list.
        assert first.process("limit", "mail", "--group", "alice", "--concurrency", "1").returncode == 0
        assert first.process("windows", "set", "nights", "22:00-06:00 Europe/Berlin", "--queue", "mail").returncode == 0
        assert first.process("pause", "mail").returncode == 0
        run(first, AFTER)
        if upgrade:
            client.zadd("evsched:{mail}:schedule", inline)
    if not upgrade:  # an old worker cannot run a light job, so docs/upgrade.md says to let these end before
        client.zadd("evsched:{mail}:schedule", inline)
    limits = [[row for row in json_of(cli, "limits") if row["limit"] != "paused"] for cli in (first, second)]
    assert limits[0] == limits[1] != []
    with (
        service(second, "dispatcher", ready="NotificationsProven"),
        service(second, "worker", "tasks:app", ready="WorkerStarted") as log,
    ):
        assert second.process("resume", "mail").returncode == 0
        assert second.process("run-now", "retried", "--queue", "mail").returncode == 0
        assert second.process("dead", "revive", "dead", "--queue", "mail").returncode == 0
        for job in ("held", "dead", "retried", "later"):
            log.until("Completed", where=lambda line, job=job: line["id"] == job)
        log.until("Completed", count=len(RAN) - 1, where=lambda line: line["task"] != "tick")
        log.until("Completed", where=lambda line: line["task"] == "tick")
        assert "FINISHED" in second.process("show", "finished", "--queue", "mail").stdout
        faults = [found for found in json_of(second, "doctor") if found["level"] != "info"]
        assert faults == []
    ran = (tmp_path / "ran").read_text().split()
    assert {*ran} - {"tick"} == RAN
    assert sorted(name for name in ran if name != "tick") == sorted(RAN), "each ran once"


@pytest.mark.extra
@pytest.mark.parametrize("words", [("dispatcher",), ("worker", "tasks:app")], ids=" ".join)
def test_a_service_does_not_start_with_the_keys_of_a_newer_release(
    own: EmbeddedRedis, client: Any, tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    client.set(keys.LAYOUT_KEY, keys.LAYOUT + 1)
    done = Cli(own.url, tmp_path).process(*words)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"layout {keys.LAYOUT + 1}, and evsched" in done.stderr
    assert "docs/upgrade.md" in done.stderr


@pytest.mark.extra
def test_workers_of_several_releases_are_listed_and_found_by_the_doctor(
    own: EmbeddedRedis, client: Any, tmp_path: Path
) -> None:
    cli = Cli(own.url, tmp_path)
    (tmp_path / "tasks.py").write_text(TASKS)
    with cli.running("worker", "tasks:app", until="WorkerStarted"):
        assert "releases" not in cli.run("doctor").stdout
        ends = client.zrange("evsched:{mail}:leases", 0, 0, withscores=True)[0][1]
        client.zadd("evsched:{mail}:leases", {"host-17-0123abcd-9.8.7": ends})
        assert [row["release"] for row in cli.json("workers")] == ["9.8.7", "0.1.0"]
        assert "workers of several releases run: 1 of 0.1.0, 1 of 9.8.7" in cli.run("doctor").stdout
