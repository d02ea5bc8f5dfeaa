"""SIGHUP to the parent of worker processes: new code, process by process, without a gap."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, Log, terminate
from tests.support.patience import PATIENCE
from tests.support.web import get

pytestmark = pytest.mark.anyio

TASKS = """
import asyncio
from evsched import App

app = App()

@app.task
async def hold() -> None:
    await asyncio.Event().wait()

@app.task(name="VERSION")
async def version() -> None:
    pass
"""


@pytest.fixture
def cli(cli: Cli, queue: str) -> Cli:
    cli.environment |= {"EVSCHED_QUEUES": queue, "EVSCHED_SHUTDOWN_GRACE": "0.2", "EVSCHED_LOG_JOBS": "true"}
    write(cli, "one")
    return cli


def write(cli: Cli, version: str, text: str = TASKS) -> None:
    """Write a version whose file has another length than the one before it.

    Python takes compiled code for that of a file of the same length which was written in the same second.
    """
    (cli.folder / "tasks.py").write_text(text.replace("VERSION", version))


@contextmanager
def parent(cli: Cli, *words: str) -> Generator[tuple[subprocess.Popen[str], Log]]:
    with cli.started("worker", "tasks:app", *words) as (child, log):
        yield child, log
        assert terminate(child) == 0


@pytest.mark.extra
def test_reload_replaces_each_process_only_after_its_successor_is_ready(cli: Cli) -> None:
    with parent(cli, "--processes", "2") as (child, log):
        log.until("WorkerStarted", count=2)
        write(cli, "second")
        child.send_signal(signal.SIGHUP)
        assert log.until("Reloaded")["processes"] == 2
        started = [line for line in log.lines if line.get("event") == "WorkerStarted"]
        assert [line["tasks"] for line in started] == [["hold", "one"]] * 2 + [["hold", "second"]] * 2
        kinds = ("ChildStarted", "WorkerStarted", "ChildEnded")
        order = [line["event"] for line in log.lines if line.get("event") in kinds]
        assert order[4:] == [*kinds, *kinds]
        assert all(line["code"] == 0 for line in log.lines if line.get("event") == "ChildEnded")


def test_jobs_running_during_a_reload_are_handed_back(cli: Cli, queue: str, raw: Any) -> None:
    schedule = f"evsched:{{{queue}}}:schedule"
    with (
        cli.running("dispatcher", until="NotificationsProven"),
        parent(cli, "--processes", "1") as (child, log),
    ):
        raw.zadd(schedule, {'{"task":"hold","id":"held"}': 0})
        log.until("Started", where=lambda line: line["id"] == "held")
        child.send_signal(signal.SIGHUP)
        again = log.until("Started", where=lambda line: line["id"] == "held", count=2)
        assert again["attempt"] == 1
        log.until("Reloaded")


@pytest.mark.extra
def test_old_processes_keep_running_until_broken_code_is_corrected(cli: Cli) -> None:
    with parent(cli, "--processes", "2") as (child, log):
        log.until("WorkerStarted", count=2)
        write(cli, "", "this is no Python")
        child.send_signal(signal.SIGHUP)
        failed = log.until("ReloadFailed")
        assert (failed["reason"], failed["replaced"], failed["processes"]) == ("ended with 1", 0, 2)
        assert len([line for line in log.lines if line.get("event") == "ChildEnded"]) == 1  # the new one
        write(cli, "second")
        child.send_signal(signal.SIGHUP)
        log.until("Reloaded")
        assert log.until("WorkerStarted", count=4)["tasks"] == ["hold", "second"]


HANGS = """
import asyncio, contextlib, sys

@contextlib.asynccontextmanager
async def lifespan():
    print('{"event": "Hangs"}', file=sys.stderr, flush=True)
    await asyncio.Event().wait()
    yield
"""


@pytest.mark.extra
def test_second_sighup_replaces_a_new_process_that_never_becomes_ready(cli: Cli) -> None:
    with parent(cli, "--processes", "1") as (child, log):
        log.until("WorkerStarted")
        write(cli, "second", HANGS + TASKS.replace("App()", "App(lifespan=lifespan)"))
        child.send_signal(signal.SIGHUP)
        log.until("Hangs")
        write(cli, "third")
        child.send_signal(signal.SIGHUP)
        log.until("Reloaded")
        assert log.until("WorkerStarted", count=2)["tasks"] == ["hold", "third"]


@pytest.mark.extra
async def test_the_old_process_answers_on_the_metrics_port_until_it_has_ended(cli: Cli, queue: str, raw: Any) -> None:
    cli.environment["EVSCHED_SHUTDOWN_GRACE"] = "60"
    with (
        cli.running("dispatcher", until="NotificationsProven"),
        parent(cli, "--processes", "1", "--metrics-port", "0") as (child, log),
    ):
        url = log.until("Listening")["url"]
        raw.zadd(f"evsched:{{{queue}}}:schedule", {'{"task":"hold","id":"held"}': 0})
        log.until("Started")
        child.send_signal(signal.SIGHUP)
        log.until("WorkerDraining")
        for _ in range(20):
            assert 'started_total{queue="' + queue + '",task="hold"} 1.0' in (await get(f"{url}/metrics"))[1]
        cli.run("cancel", "held", "--queue", queue)
        log.until("Listening", count=2)
        assert 'task="hold"} 1.0' not in (await get(f"{url}/metrics"))[1]
        log.until("Reloaded")


@pytest.fixture
def hang_up() -> Generator[None]:
    """Let SIGHUP end the processes that the test starts, even if the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.extra
@pytest.mark.usefixtures("hang_up")
def test_sighup_ends_a_worker_without_a_parent(cli: Cli) -> None:
    with cli.started("worker", "tasks:app") as (child, log):
        log.until("WorkerStarted")
        child.send_signal(signal.SIGHUP)
        child.communicate(timeout=PATIENCE)
        assert child.returncode == -signal.SIGHUP


@pytest.mark.extra
def test_sighup_ends_a_parent_whose_terminal_has_hung_up(cli: Cli) -> None:
    ours, its = os.openpty()
    with cli.started("worker", "tasks:app", "--processes", "1", stdin=its) as (child, log):
        os.close(its)
        log.until("WorkerStarted")
        os.close(ours)
        child.send_signal(signal.SIGHUP)
        log.until("WorkerStopped")
        child.communicate(timeout=PATIENCE)
        assert child.returncode == 0


HANDLES = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: print('{"event": "User"}', file=sys.stderr, flush=True))
"""


@pytest.mark.extra
def test_a_signal_that_the_app_handles_does_not_end_its_worker(cli: Cli, queue: str, raw: Any) -> None:
    write(cli, "one", HANDLES + TASKS)
    with (
        cli.running("dispatcher", until="NotificationsProven"),
        cli.started("worker", "tasks:app") as (child, log),
    ):
        log.until("WorkerStarted")
        child.send_signal(signal.SIGUSR1)
        log.until("User")
        raw.zadd(f"evsched:{{{queue}}}:schedule", {'{"task":"one"}': 0})
        log.until("Completed")
        assert terminate(child) == 0


@pytest.mark.extra
def test_children_run_in_the_directory_to_which_a_link_leads_now(cli: Cli, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tasks.py").write_text(TASKS.replace("VERSION", name))
    link = tmp_path / "current"
    link.symlink_to("one")
    cli.folder, cli.environment["PWD"] = link, str(link)
    with parent(cli, "--processes", "1") as (child, log):
        log.until("WorkerStarted")
        (tmp_path / "next").symlink_to("two")
        (tmp_path / "next").rename(link)
        child.send_signal(signal.SIGHUP)
        log.until("Reloaded")
        assert log.until("WorkerStarted", count=2)["tasks"] == ["hold", "two"]
