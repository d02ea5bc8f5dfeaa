"""`evsched dev --reload`: a change of a file starts the app again, and an error in it waits for the next change."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, Log, terminate
from tests.support.patience import PATIENCE

TASKS = """
import asyncio
from evsched import App

app = App(queue="QUEUE")

@app.task
async def hold() -> None:
    await asyncio.Event().wait()

@app.task
async def VERSION() -> None: ...
"""


@pytest.fixture
def cli(cli: Cli, queue: str) -> Cli:
    cli.environment |= {"EVSCHED_QUEUES": queue, "EVSCHED_SHUTDOWN_GRACE": "0.2", "EVSCHED_LOG_JOBS": "true"}
    write(cli, queue, "one")
    return cli


def write(cli: Cli, queue: str, version: str, url: str = "") -> None:
    """Write a version. Each has another length: Python tells compiled code by the length, and the time in seconds."""
    part = cli.folder / "tasks.part"
    part.write_text(TASKS.replace("App(", f"App({url}").replace("QUEUE", queue).replace("VERSION", version))
    part.rename(cli.folder / "tasks.py")


def runs(log: Log, task: str) -> Any:
    """Read the log until a worker has started that has a task."""
    return log.until("WorkerStarted", where=lambda line: task in line["tasks"])


def test_change_starts_the_app_again_and_an_error_waits_for_the_next_change(cli: Cli, queue: str, raw: Any) -> None:
    with cli.started("dev", "tasks:app", "--reload") as (child, log):
        runs(log, "one")
        raw.zadd(f"evsched:{{{queue}}}:schedule", {'{"task":"hold","id":"held"}': 0})
        log.until("Started", where=lambda line: line["id"] == "held")
        (cli.folder / "notes.txt").write_text("no code")
        write(cli, queue, "second broken")
        assert log.until("CodeChanged")["files"] == ["tasks.py"]
        assert log.until("DevWaits")["code"] == 1
        assert [line["code"] for line in log.lines if line.get("event") == "ChildEnded"] == [0, 1]
        errors = [line["message"] for line in log.lines if "does not import" in line["message"]]
        assert len(errors) == 1
        assert errors[0].startswith("evsched: module 'tasks' does not import: SyntaxError: ")
        assert "(tasks.py, line 12)" in errors[0]
        assert not [line for line in log.lines if "notes.txt" in str(line)]
        write(cli, queue, "corrected")
        runs(log, "corrected")
        # In order: the old process handed its job back, and it did not cost an attempt.
        assert log.until("Started", where=lambda line: line["id"] == "held", count=2)["attempt"] == 1
        assert terminate(child) == 0


@pytest.mark.extra
def test_private_redis_outlives_the_restarts(cli: Cli, queue: str) -> None:
    del cli.environment["EVSCHED_URL"]
    with cli.started("dev", "tasks:app", "--reload", stdout=subprocess.PIPE) as (child, log):
        runs(log, "one")
        assert child.stdout is not None
        child.stdout.readline()
        url = child.stdout.readline().strip().removeprefix("export EVSCHED_URL=")
        job = cli.run("enqueue", "hold", "--in", "1h", "--id", "kept", "--queue", queue, EVSCHED_URL=url)
        assert job.returncode == 0, job.stderr
        write(cli, queue, "second")
        runs(log, "second")
        assert '"place": "schedule"' in cli.run("show", "kept", "--queue", queue, "--json", EVSCHED_URL=url).stdout
        # Ctrl-C on the terminal; a second one after a while would end it at once.
        child.send_signal(signal.SIGINT)
        assert child.wait(PATIENCE) == 0
        assert not Path(url.removeprefix("unix://")).exists()


@pytest.mark.extra
def test_private_redis_is_not_named_if_the_code_names_another(cli: Cli, queue: str) -> None:
    write(cli, queue, "one", f'"{cli.environment.pop("EVSCHED_URL")}", ')
    with cli.started("dev", "tasks:app", "--reload", stdout=subprocess.PIPE) as (child, log):
        runs(log, "one")
        assert child.stdout is not None
        child.terminate()
        assert (child.stdout.read(), child.wait(PATIENCE)) == ("", 0)


def test_folder_that_the_system_does_not_watch_is_named(cli: Cli) -> None:
    # Each user may watch a number of folders, which a test cannot use up: this is what the package raises then.
    cli.run_first(
        "import watchfiles.main\ndef refuse(*_): raise OSError('limit')\nwatchfiles.main.RustNotify = refuse\n"
    )
    done = cli.process("dev", "tasks:app", "--reload")
    assert done.returncode == 1
    assert "cannot be watched: limit; set WATCHFILES_FORCE_POLLING=true" in done.stderr


def test_missing_package_is_named(cli: Cli) -> None:
    hidden = "import sys; sys.modules['watchfiles'] = None; from evsched.cli.main import main; main()"
    words = [sys.executable, "-c", hidden, "dev", "tasks:app", "--reload"]
    environment = {**os.environ, **cli.environment}
    done = subprocess.run(
        words, env=environment, cwd=cli.folder, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == 2
    assert done.stderr == (
        "evsched: evsched dev --reload needs the package watchfiles: pip install 'evsched[reload]'\n"
    )
