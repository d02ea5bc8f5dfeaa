"""`worker --processes 0:8` runs no process while there is no work; jobs of a killed process restart at once."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from evsched.store.client_calls import New
from evsched.store.queue import Announced
from evsched.store.store import Store
from evsched.transport.senders import SyncSender
from tests.support.cli import Cli, Log
from tests.support.patience import PATIENCE

OTHER = """
from evsched import App

app = App(name="other")

@app.task
async def theirs() -> None:
    pass
"""

TASKS = """
import asyncio
import os
from evsched import App

app = App()

@app.task
async def hold() -> None:
    await asyncio.Event().wait()

@app.task
async def short() -> None:
    pass

@app.recurring("@yearly", queue=os.environ["EVSCHED_QUEUES"])
async def party() -> None:
    pass
"""


ELSEWHERE = """
from evsched import App

app = App()

@app.task(queue="QUEUE")
async def short() -> None:
    pass
"""


@pytest.fixture
def cli(cli: Cli, queue: str) -> Cli:
    (cli.folder / "tasks.py").write_text(TASKS)
    (cli.folder / "other.py").write_text(OTHER)
    cli.environment |= {"EVSCHED_QUEUES": queue, "EVSCHED_SHUTDOWN_GRACE": "0.2", "EVSCHED_LOG_JOBS": "true"}
    cli.environment["EVSCHED_TEST_SCALE_DOWN_AFTER"] = "0.5"
    return cli


@pytest.fixture
def sender(server: Any) -> Generator[SyncSender]:
    sender = SyncSender(server.url)
    yield sender
    sender.close()


@contextmanager
def parent(cli: Cli, processes: str, app: str = "tasks:app") -> Generator[tuple[subprocess.Popen[str], Log]]:
    with cli.started("worker", app, "--processes", processes) as (child, log):
        yield child, log
        child.send_signal(signal.SIGTERM)
        log.rest()
        assert child.wait(PATIENCE) == 0


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
    assert order == [*kinds] * 3  # one at a time; the first declares the recurrences


SLOW_FIRST_FETCH = """
import asyncio
from evsched.services import scale_to_zero
from evsched.worker.consumer import QueueConsumer

scale_to_zero._CLAIM = 600.0  # however slow the machine is
scale_to_zero._REFUSED = 0.05
scale_to_zero._REFUSED_MOST = 10**6
exchange = QueueConsumer.exchange

async def late(consumer):
    QueueConsumer.exchange = exchange
    await asyncio.sleep(1.5)
    await exchange(consumer)

QueueConsumer.exchange = late
"""


def assert_one_process_runs_a_job(cli: Cli, queue: str, raw: Any, until: str) -> None:
    """Schedule a job when both of two parents wait, and their first processes have reached an event."""
    with (
        cli.running("dispatcher", until="NotificationsProven"),
        parent(cli, "0:8") as (_, one),
        parent(cli, "0:8") as (_, two),
    ):
        for log in (one, two):
            log.until("ParentWaits")
            log.until(until)
        raw.zadd(f"evsched:{{{queue}}}:schedule", {'{"task":"short","id":"a","reply":true}': 0})
        assert raw.blpop(f"evsched:{{{queue}}}:reply:a", PATIENCE)
    for event, times in (("ChildStarted", 3), ("ParentWoken", 1)):  # one each at first, and one for the job
        found = [line for log in (one, two) for line in log.lines if line.get("event") == event]
        assert len(found) == times, (one.lines, two.lines)


@pytest.mark.long
def test_one_job_starts_one_process_of_two_parents_despite_a_late_fetch(cli: Cli, queue: str, raw: Any) -> None:
    cli.run_first(SLOW_FIRST_FETCH)  # longer than a process may be idle: it is not idle before
    assert_one_process_runs_a_job(cli, queue, raw, "ChildEnded")


SLOW_END = """
import asyncio
from contextlib import asynccontextmanager
from evsched import App

@asynccontextmanager
async def lifespan():
    yield
    await asyncio.sleep(1.5)

app = App(lifespan=lifespan)

@app.task
async def short() -> None:
    pass
"""


@pytest.mark.long
def test_a_process_that_still_ends_does_not_end_the_claim_for_the_next_one(cli: Cli, queue: str, raw: Any) -> None:
    (cli.folder / "tasks.py").write_text(SLOW_END)
    cli.run_first(SLOW_FIRST_FETCH)
    cli.environment["EVSCHED_SHUTDOWN_GRACE"] = "10"
    assert_one_process_runs_a_job(cli, queue, raw, "WorkerDraining")


@pytest.mark.long
def test_parent_waits_for_the_new_queue_after_a_reload(cli: Cli, queue: str, raw: Any) -> None:
    del cli.environment["EVSCHED_QUEUES"]
    (cli.folder / "tasks.py").write_text(ELSEWHERE.replace("QUEUE", queue))
    with (
        cli.running("dispatcher", until="NotificationsProven"),
        parent(cli, "0:2") as (process, log),
    ):
        assert queue in log.until("ParentWaits")["queues"]
        log.until("ChildEnded")
        (cli.folder / "tasks.py").write_text(ELSEWHERE.replace("QUEUE", f"{queue}-new"))
        process.send_signal(signal.SIGHUP)
        log.until("Reloaded")
        assert f"{queue}-new" in log.until("ParentWaits", count=2)["queues"]
        raw.zadd(f"evsched:{{{queue}-new}}:schedule", inline("short", "a"))
        log.until("Completed", where=lambda line: line["id"] == "a")
    assert not raw.exists(f"evsched:{{{queue}}}:parents")


@pytest.mark.long
def test_a_parent_whose_process_does_not_start_still_stands_by(cli: Cli, queue: str, raw: Any) -> None:
    with (
        cli.running("dispatcher", until="NotificationsProven"),
        parent(cli, "0:2") as (_, log),
    ):
        log.until("ParentWaits")
        log.until("ChildEnded")
        (cli.folder / "tasks.py").write_text("import nothing_of_that_name\n")
        raw.zadd(f"evsched:{{{queue}}}:schedule", inline("short", "a"))
        log.until("ChildEnded", count=2, where=lambda line: line["code"] != 0)
        (row,) = cli.json("workers", "--queue", queue)
        assert row["stands_by"]
        assert "one stands by, and no process runs yet" in cli.run("explain", "a", "--queue", queue).stdout
        (cli.folder / "tasks.py").write_text(TASKS)
        log.until("Completed", where=lambda line: line["id"] == "a")


@pytest.mark.long
def test_lost_declarations_are_restored_though_no_process_runs(cli: Cli, queue: str, raw: Any) -> None:
    cli.environment["EVSCHED_TEST_SAFETY_CAP"] = "0.5"
    with parent(cli, "0:8") as (_, log):
        log.until("RecurrenceDeclared")
        log.until("ParentWaits")
        log.until("ChildEnded")
        raw.flushall()
        assert log.until("ParentWoken")["need"] == "undeclared"
        assert log.until("RecurrenceDeclared", count=2)["name"] == "party"
        log.until("ParentWaits", count=2)
    assert raw.zcard(f"evsched:{{{queue}}}:recurrences") == 1


@pytest.mark.long
def test_job_unknown_to_running_workers_wakes_the_parent_with_its_task(cli: Cli, queue: str, raw: Any) -> None:
    cli.environment["EVSCHED_UNKNOWN_TASK_GRACE"] = "0.1"
    with (
        cli.running("dispatcher", until="NotificationsProven"),
        parent(cli, "0:1", "other:app") as (_, other),
    ):
        other.until("ParentWaits")
        other.until("ChildEnded")
        cli.environment["EVSCHED_TEST_SCALE_DOWN_AFTER"] = "1000"
        with parent(cli, "0:1") as (_, log):
            log.until("WorkerStarted")
            raw.zadd(f"evsched:{{{queue}}}:schedule", inline("theirs", "a"))
            other.until("Completed", where=lambda line: line["id"] == "a")
            assert not raw.exists(f"evsched:{{{queue}}}:sought"), "no other parent is to start a process"


def test_a_parent_that_stands_by_is_shown_and_its_queue_exists(cli: Cli, queue: str, sender: SyncSender) -> None:
    store = Store(queue)
    assert f"queue {queue} has no jobs, no workers" in cli.run("pause", queue).stderr
    sender.send(store.stand_by("host-1-abc", Announced(), lease=1000, claim=1))
    (row,) = cli.json("workers", "--queue", queue)
    assert (row["worker"], row["held"], row["stands_by"]) == ("host-1-abc", 0, True)
    assert "stands by" in cli.run("workers", "--queue", queue).stdout
    (shown,) = cli.json("queues", "--queue", queue)
    assert (shown["workers"], shown["parents"]) == (0, 1)
    assert "0, 1 stands by" in cli.run("queues", "--queue", queue).stdout
    assert cli.run("limit", queue, "--rate", "5/s").returncode == 0
    sender.send(store.enqueue([New("a", b'{"task":"short"}')]))
    sender.send(store.dispatch(limit=10, cap=1000))
    assert "a parent has started a worker process" in cli.run("explain", "a", "--queue", queue).stdout
    assert cli.run("pause", queue).returncode == 0


def test_jobs_of_a_killed_process_start_elsewhere_at_once(cli: Cli, queue: str, raw: Any) -> None:
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
        os.kill(int(victim.split("-")[-3]), signal.SIGKILL)
        requeued = log.until("JobsRequeued")
        assert (requeued["worker"], requeued["cause"]) == (victim, "died")
        assert "died: its process was ended by SIGKILL" in requeued["reason"]
        log.until("Started", count=len(ids) + holders.count(victim))
        assert {line["id"] for line in log.lines if line.get("event") == "Started" and line["worker"] != victim} >= {
            *requeued["ids"]
        }


@pytest.mark.long
def test_process_counts_jobs_requeued_for_its_predecessor(cli: Cli, queue: str, raw: Any) -> None:
    cli.environment["EVSCHED_METRICS_PORT"] = "0"
    cli.run_first("from evsched.services import children\nchildren._COUNTED = 600.0\n")
    with (
        cli.running("dispatcher", "--metrics-port", "0", until="NotificationsProven"),
        parent(cli, "1") as (_, log),
    ):
        url = log.until("Listening")["url"]
        raw.zadd(f"evsched:{{{queue}}}:schedule", inline("hold", "a"))
        victim = log.until("Started")["worker"]
        os.kill(int(victim.split("-")[-3]), signal.SIGKILL)
        log.until("Started", count=2)
        page = subprocess.run(["curl", "-s", f"{url}/metrics"], capture_output=True, text=True, check=True).stdout
        assert f'evsched_jobs_requeued_total{{queue="{queue}",reason="died"}} 1.0' in page


@pytest.mark.long
def test_processes_connect_to_the_redis_that_the_app_names(cli: Cli, queue: str) -> None:
    url = cli.environment.pop("EVSCHED_URL")
    (cli.folder / "tasks.py").write_text(TASKS.replace("App()", f"App({url!r})"))
    with parent(cli, "1") as (_, log):
        assert log.until("WorkerStarted")["queues"] == [queue]
        assert not any(line.get("event") == "RedisDown" for line in log.lines)
