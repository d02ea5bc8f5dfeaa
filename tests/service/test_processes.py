"""`worker --processes`: as many processes as are needed, each with its own metrics port, and none left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from evsched.client.client import SyncClient
from evsched.store.store import Store
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

@app.task
async def short() -> None:
    await asyncio.sleep(0.02)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def cli(server: Any, folder: Path) -> Cli:
    return Cli(server.url, folder)


QUICK = {"EVSCHED_SHUTDOWN_GRACE": "0.2", "EVSCHED_TEST_SCALE_DOWN_AFTER": "0.5"}


def start(cli: Cli, *words: str) -> subprocess.Popen[str]:
    return cli.start("worker", "tasks:app", *words, environment=QUICK)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.extra
async def test_each_process_has_a_metrics_port_and_a_file_lists_the_ports(cli: Cli, queue: str, folder: Path) -> None:
    targets = folder / "targets.json"
    child = start(
        cli, "--queue", queue, "--processes", "2", "--metrics-port", "0", "--metrics-targets", str(targets)
    )  # fmt: skip
    log = Log(child)
    try:
        for n in (1, 2):
            log.until("WorkerStarted", count=n)
        (group,) = json.loads(targets.read_text())
        assert len(set(group["targets"])) == 2
        for target in group["targets"]:
            status, page = await get(f"http://{target}/metrics")
            assert status == 200
            assert 'evsched_worker_slots{state="free"} 256.0' in page
        assert json.loads(targets.read_text())[0]["targets"] == group["targets"]
        victim = log.until("ChildStarted")
        os.kill(victim["pid"], signal.SIGKILL)
        log.until("ChildEnded", where=lambda line: line["code"] == -signal.SIGKILL)
        log.until("ChildStarted", count=3)
        log.until("WorkerStarted", count=3)
        assert (await get(f"http://{group['targets'][victim['number']]}/healthz"))[0] == 200
    finally:
        assert terminate(child) == 0
    assert not targets.exists()
    assert not any(alive(line["pid"]) for line in log.lines if line.get("event") == "ChildStarted")


@pytest.mark.extra
def test_another_process_starts_when_slots_are_full_and_ends_when_idle(
    cli: Cli, queue: str, raw: Any, folder: Path
) -> None:
    targets = folder / "targets.json"
    ports = ("--metrics-port", "0", "--metrics-targets", str(targets))
    child = start(cli, "--queue", queue, "--processes", "1:2", "--concurrency", "1", *ports)
    log = Log(child)
    try:
        log.until("WorkerStarted")
        for n in range(5):
            raw.zadd(f"evsched:{{{queue}}}:schedule", {f'{{"task":"hold","args":[],"id":"{n}"}}': 0})
        with cli.running("dispatcher", "--queue", queue, until="NotificationsProven"):
            second = log.until("WorkerStarted", count=2)
            assert len(json.loads(targets.read_text())[0]["targets"]) == 2
            client = SyncClient(cli.environment["EVSCHED_URL"])
            for n in range(5):
                client.send(Store(queue).cancel(str(n)))
            client.close()
            assert log.until("ChildEnded")["code"] == 0  # whichever was idle first
            assert len(json.loads(targets.read_text())[0]["targets"]) == 1
            assert second["slots"] == 1
    finally:
        assert terminate(child) == 0


@pytest.mark.extra
def test_another_process_starts_when_short_jobs_keep_one_busy(cli: Cli, queue: str, raw: Any) -> None:
    cli.environment["EVSCHED_TEST_BATCH"] = "5"  # so that after each exchange some slots are free for a moment
    child = start(cli, "--queue", queue, "--processes", "1:2", "--concurrency", "8")
    log = Log(child)
    try:
        log.until("WorkerStarted")
        with cli.running("dispatcher", "--queue", queue, until="NotificationsProven"):
            jobs = {f'{{"task":"short","id":"{n}"}}': 0 for n in range(5000)}  # 10 s for one process, at any speed
            raw.zadd(f"evsched:{{{queue}}}:schedule", jobs)
            log.until("WorkerStarted", count=2)
    finally:
        assert terminate(child) == 0
        raw.delete(*raw.scan_iter(match=f"evsched:{{{queue}}}:*", count=1000))


def test_children_end_with_a_parent_that_is_killed(cli: Cli, queue: str) -> None:
    child = start(cli, "--queue", queue, "--processes", "1")
    log = Log(child)
    log.until("WorkerStarted")
    child.kill()
    log.until("WorkerStopped")  # the child writes to the same pipe
    child.communicate(timeout=PATIENCE)  # which is closed when it has ended


@pytest.mark.extra
def test_a_child_that_hangs_is_killed_after_its_time_limit(cli: Cli, queue: str) -> None:
    cli.environment["EVSCHED_TEST_REPLY_TIMEOUT"] = "0.1"
    child = start(cli, "--queue", queue, "--processes", "1")
    log = Log(child)
    log.until("WorkerStarted")
    os.kill(log.until("ChildStarted")["pid"], signal.SIGSTOP)
    child.send_signal(signal.SIGTERM)
    log.until("ChildKilled")
    assert log.until("ChildEnded")["code"] == -signal.SIGKILL
    child.communicate(timeout=PATIENCE)
    assert child.returncode == 70


@pytest.mark.extra
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--metrics-targets", "t.json"), "give --processes too"),
        (("--processes", "2", "--metrics-targets", "t.json"), "give the first one with --metrics-port"),
        (("--processes", "2", "--burst"), "--burst runs in one process"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(cli: Cli, words: tuple[str, ...], message: str) -> None:
    done = cli.run("worker", "tasks:app", *words)
    assert (done.returncode, message in done.stderr) == (2, True)


@pytest.mark.extra
def test_the_parent_ends_if_its_first_child_cannot_start(cli: Cli) -> None:
    done = cli.run("worker", "nowhere:app", "--processes", "2")
    assert done.returncode == 1
    assert "module 'nowhere' does not import" in done.stderr
    assert '"ChildCannotStart"' in done.stderr


def test_a_child_that_is_killed_before_it_is_ready_is_restarted(cli: Cli, queue: str, folder: Path) -> None:
    killed = f"""
import os, signal
try:
    open({str(folder / "first")!r}, "x").close()
except FileExistsError:
    pass
else:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    (folder / "tasks.py").write_text(killed + TASKS)
    child = start(cli, "--queue", queue, "--processes", "1")
    log = Log(child)
    try:
        assert log.until("ChildEnded")["code"] == -signal.SIGKILL
        log.until("WorkerStarted")
    finally:
        assert terminate(child) == 0


@pytest.mark.extra
def test_death_of_a_child_is_noticed_while_a_grandchild_holds_its_link(cli: Cli, queue: str, folder: Path) -> None:
    started = f"""
import os, subprocess
from pathlib import Path
link = os.dup(int(os.environ["_EVSCHED_LINK_FD"]))
sleeper = subprocess.Popen(["sleep", "600"], pass_fds=[link], stderr=subprocess.DEVNULL)
Path({str(folder)!r}, f"{{sleeper.pid}}.pid").touch()
"""
    (folder / "tasks.py").write_text(started + TASKS)
    child = start(cli, "--queue", queue, "--processes", "1")
    log = Log(child)
    try:
        log.until("WorkerStarted")
        os.kill(log.until("ChildStarted")["pid"], signal.SIGKILL)
        assert log.until("ChildEnded")["code"] == -signal.SIGKILL
        log.until("WorkerStarted", count=2)
    finally:
        assert terminate(child) == 0
        for file in folder.glob("*.pid"):
            os.kill(int(file.stem), signal.SIGKILL)


def test_process_that_hangs_in_an_import_ends_with_its_parent(cli: Cli, queue: str, folder: Path) -> None:
    hang = """import sys, time
print('{"event": "Importing"}', file=sys.stderr, flush=True)
time.sleep(1000)
"""
    (folder / "tasks.py").write_text(hang)
    with start(cli, "--queue", queue, "--processes", "1") as child:
        log = Log(child)
        log.until("Importing")
        child.kill()
        log.rest()  # the process has the same stderr, which is closed when it has ended


@pytest.mark.extra
async def test_the_ports_of_processes_that_do_not_run_refuse_a_scrape(cli: Cli, queue: str) -> None:
    child = start(cli, "--queue", queue, "--processes", "0:2", "--metrics-port", "0")
    log = Log(child)
    try:
        url = urlsplit(str(log.until("Listening")["url"]))
        log.until("ChildEnded")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(url.hostname, url.port)
    finally:
        terminate(child)
