"""How a service ends when it is asked to end, at any moment, or is killed; and which processes end with it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis

from evsched.transport.address import hide_password
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli, Log, terminate
from tests.support.patience import PATIENCE
from tests.support.web import get

pytestmark = pytest.mark.anyio

TASKS = """
import asyncio, multiprocessing, os, signal, time
from evsched import App, Retry

app = App()

@app.task
async def hold() -> None:
    await asyncio.Event().wait()

@app.task(retry=Retry(attempts=1))
async def once() -> None:
    await asyncio.Event().wait()

@app.task
async def block() -> None:
    with open("pipe", "w") as pipe:
        print("began", file=pipe)
    time.sleep(3600)

@app.task
def sleep() -> None:
    multiprocessing.get_context("fork").Process(target=signal.pause).start()
    time.sleep(3600)

@app.task
async def start() -> None:
    await asyncio.create_task(block())

@app.task(on="process", timeout=60)
def spin() -> None:
    pipe = open("pipe", "w")  # open while this process lives
    print("began", file=pipe, flush=True)
    while True:
        pass

@app.task(on="process", timeout=60)
def signalled() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    return "still there"
"""

SERVICES = [("dispatcher",), ("worker", "tasks:app"), ("dev", "tasks:app")]
OTHERS = [("api",), ("ledger", "run"), ("doctor", "--watch")]
"""They run until a signal, and have no jobs."""
WORKERS = [("worker", "tasks:app"), ("worker", "tasks:app", "--burst"), ("dev", "tasks:app")]
PARENT = ("worker", "tasks:app", "--processes", "1")


@pytest.fixture
def cli(cli: Cli, queue: str) -> Cli:
    (cli.folder / "tasks.py").write_text(TASKS)
    os.mkfifo(cli.folder / "pipe")
    cli.environment |= {"EVSCHED_SHUTDOWN_GRACE": "0.3", "EVSCHED_QUEUES": queue}
    return cli


def schedule(raw: Any, queue: str, task: str, *ids: str, due: int = 0) -> None:
    members = {f'{{"task":"{task}","id":"{job}"}}': due + n for n, job in enumerate(ids)}
    raw.zadd(f"evsched:{{{queue}}}:schedule", members)


def wait_for(cli: Cli, word: str) -> None:
    with (cli.folder / "pipe").open() as pipe:
        assert pipe.readline() == f"{word}\n"


# While it starts.


HELD = """
import os, sys, time

class Held:
    def find_spec(self, name, *_):
        if name in ("evsched.client.client", "evsched.services.supervisor"):  # a parent imports the second alone
            os.write(os.open("pipe", os.O_WRONLY), b"imports\\n")  # in one call, which no signal interrupts
            while True:
                time.sleep(0.05)  # a signal in the instant before one long sleep would be noticed only after it

sys.meta_path.insert(0, Held())
"""


@pytest.mark.extra
@pytest.mark.parametrize(
    ("words", "number", "code"),
    [
        *((words, signal.SIGTERM, 0) for words in (*SERVICES, *OTHERS)),
        (PARENT, signal.SIGINT, 0),
        (("queues",), signal.SIGINT, 130),
    ],
    ids=["dispatcher", "worker", "dev", "api", "ledger", "doctor", "SIGINT", "no service"],
)
def test_a_signal_during_the_import_ends_the_service_silently(
    cli: Cli, words: tuple[str, ...], number: signal.Signals, code: int
) -> None:
    cli.run_first(HELD)
    with cli.started(*words, stdout=subprocess.PIPE) as (child, _):
        wait_for(cli, "imports")
        child.send_signal(number)
        assert child.communicate(timeout=PATIENCE) == ("", "")
        assert child.returncode == code


TERMINATED = """
import os, signal
if "_EVSCHED_LINK_FD" in os.environ:
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.extra
def test_child_stopped_while_python_starts_exits_cleanly(cli: Cli) -> None:
    cli.run_first(TERMINATED)
    with cli.started(*PARENT) as (child, log):
        assert log.until("ChildEnded")["code"] == 0
        child.send_signal(signal.SIGTERM)
        child.communicate(timeout=PATIENCE)
        assert child.returncode == 0


@pytest.fixture
def refusing(cli: Cli) -> Generator[Cli]:
    """Use a Redis that answers, but accepts no writes, because it is a replica."""
    with EmbeddedRedis(replicaof="127.0.0.1 1") as server:
        cli.environment["EVSCHED_URL"] = server.url
        yield cli


@pytest.mark.extra
@pytest.mark.parametrize("words", [*WORKERS, PARENT], ids=" ".join)
def test_a_worker_whose_redis_refuses_ends_with_code_0_on_sigterm(refusing: Cli, words: tuple[str, ...]) -> None:
    with refusing.started(*words) as (child, log):
        log.until("RedisDown")
        assert terminate(child) == 0


def test_a_child_whose_redis_refuses_ends_with_a_parent_that_is_killed(refusing: Cli) -> None:
    with refusing.started(*PARENT) as (child, log):
        log.until("RedisDown")
        child.kill()
        child.communicate(timeout=PATIENCE)  # the child writes to the same pipe: it is closed when both have ended


@pytest.mark.extra
@pytest.mark.parametrize("words", [("dispatcher",), PARENT], ids=" ".join)
def test_a_service_that_waits_for_redis_ends_with_code_0_on_sigterm(cli: Cli, words: tuple[str, ...]) -> None:
    cli.environment["EVSCHED_URL"] = "redis://127.0.0.1:1/0"
    with cli.started(*words) as (child, log):
        assert "start one, or name another" in log.until("RedisDown")["reason"]
        assert terminate(child) == 0


def assert_wait_is_logged_once(log: Log) -> None:
    """Check that the attempts of the start were one outage. On a machine that stalls, another may have followed."""
    outages = [line for line in log.lines if line.get("event") in ("RedisDown", "RedisUp")]
    assert [line["event"] for line in outages[:2]] == ["RedisDown", "RedisUp"], outages


@pytest.mark.parametrize("words", [("dispatcher",), ("worker", "tasks:app")], ids=" ".join)
def test_a_service_begins_when_redis_answers(cli: Cli, words: tuple[str, ...]) -> None:
    with EmbeddedRedis() as server:
        cli.environment["EVSCHED_URL"] = server.url
        server.stop()
        with cli.started(*words) as (child, log):
            log.until("RedisDown")
            server.start()
            log.until("DispatcherStarted" if words == SERVICES[0] else "WorkerStarted")
            assert_wait_is_logged_once(log)
            assert terminate(child) == 0


@pytest.mark.extra
def test_a_service_begins_when_redis_has_read_its_data(cli: Cli) -> None:
    """It reads for as long as the service takes to look, on a machine of any speed."""
    with EmbeddedRedis(key_load_delay="1000") as server:  # µs for each command of the AOF
        cli.environment["EVSCHED_URL"] = server.url
        with redis.Redis(unix_socket_path=str(server.socket)) as client:
            pipeline = client.pipeline(transaction=False)
            for number in range(100 * 1024):  # after each 1024, Redis answers
                pipeline.rpush("filler", number)
            pipeline.execute()
            server.stop()
            loading = threading.Thread(target=server.start)
            loading.start()
            with cli.started("dispatcher") as (child, log):
                assert "still reads its data" in log.until("RedisDown")["reason"]
                client.config_set("key-load-delay", 0)
                log.until("DispatcherStarted")
                assert_wait_is_logged_once(log)
                assert terminate(child) == 0
            loading.join()


@pytest.mark.extra
def test_a_service_that_requires_redis_exits_with_code_1_without_it(cli: Cli) -> None:
    cli.environment["EVSCHED_REQUIRE_REDIS"] = "true"
    done = cli.run("worker", "tasks:app", "--processes", "2", "--url", "redis://127.0.0.1:1/0")
    assert (done.returncode, "no Redis at redis://127.0.0.1:1/0" in done.stderr) == (1, True)


@pytest.mark.extra
def test_a_lifespan_that_does_not_begin_is_cancelled(cli: Cli) -> None:
    lifespan = """
import contextlib
@contextlib.asynccontextmanager
async def never(*_):
    print("begins", file=open("pipe", "w"), flush=True)
    await asyncio.Event().wait()
    yield
app = App(lifespan=never)
"""
    (cli.folder / "tasks.py").write_text(TASKS + lifespan)
    with cli.started("worker", "tasks:app") as (child, _):
        wait_for(cli, "begins")
        assert terminate(child) == 0


# While it works.


@pytest.mark.extra
def test_a_worker_without_a_valid_password_ends_with_code_0_on_sigterm(cli: Cli) -> None:
    with EmbeddedRedis() as server:
        cli.environment["EVSCHED_URL"] = server.url
        with cli.started("worker", "tasks:app") as (child, log), socket.socket(socket.AF_UNIX) as admin:
            log.until("WorkerStarted")
            admin.connect(str(server.socket))
            admin.sendall(b"CONFIG SET requirepass secret\r\nCLIENT KILL TYPE normal SKIPME yes\r\n")
            log.until("RedisDown", "CallRefused")  # depends on whether it waits on a connection or is about to open one
            assert terminate(child) == 0


@pytest.mark.extra
def test_handler_that_blocks_the_loop_does_not_delay_the_stop(cli: Cli, queue: str, raw: Any) -> None:
    with cli.running("dispatcher", until="NotificationsProven"), cli.started(*PARENT) as (child, log):
        schedule(raw, queue, "hold", "other")
        schedule(raw, queue, "block", "one", due=1)
        wait_for(cli, "began")
        child.send_signal(signal.SIGTERM)
        blocked = log.until("WorkerBlocked")
        assert (blocked["id"], blocked["task"], blocked["handed_back"]) == ("one", "block", 2)
        assert "in block" in blocked["traceback"]
        assert log.until("JobsRequeued", where=lambda line: line["worker"] == blocked["worker"])["cause"] == "stopped"
        assert log.until("ChildEnded")["code"] == 70
        child.communicate(timeout=PATIENCE)
        assert child.returncode == 70
        assert not raw.keys(f"evsched:{{{queue}}}:processing:*")
        assert not raw.exists(f"evsched:{{{queue}}}:leases")


@contextmanager
def holding(cli: Cli, queue: str, raw: Any) -> Generator[tuple[subprocess.Popen[str], Log]]:
    """Run a worker with one job that has attempts left and one that has none left."""
    cli.environment |= {"EVSCHED_TEST_KILL_GRACE": "0.2", "EVSCHED_LEASE": "60", "EVSCHED_TEST_HEARTBEAT": "0.5"}
    with (
        cli.running("dispatcher", until="NotificationsProven"),
        cli.started("worker", "tasks:app", "--log-jobs") as (child, log),
    ):
        schedule(raw, queue, "hold", "again")
        schedule(raw, queue, "once", "only")
        log.until("Started", count=2)
        yield child, log


def ends(child: subprocess.Popen[str], log: Log) -> dict[str, dict[str, Any]]:
    """Read the log of a worker that exits with code 70; return the line with the outcome of each job."""
    assert child.stderr is not None
    log.lines += [json.loads(line) for line in child.stderr]
    assert child.wait(PATIENCE) == 70
    found = {line["id"]: line for line in log.lines if line.get("event") in ("JobBuried", "Retrying")}
    requeued = [line for line in log.lines if line.get("event") == "JobsRequeued"]
    return found | {job: line for line in requeued for job in line["ids"]}


@pytest.mark.extra
@pytest.mark.parametrize("task", ["block", "sleep"])
def test_worker_ended_by_a_hanging_job_logs_the_outcome_of_each_job(cli: Cli, queue: str, raw: Any, task: str) -> None:
    (cli.folder / "pipe").unlink()  # so that `block` writes to a file
    with holding(cli, queue, raw) as (child, log):
        raw.zadd(f"evsched:{{{queue}}}:schedule", {f'{{"task":"{task}","id":"bad","timeout":0.2}}': 1})
        stuck = log.until("WorkerStuck")
        assert (stuck["id"], stuck["handed_back"]) == ("bad", 1)
        lines = ends(child, log)
    assert {job: line["event"] for job, line in lines.items()} == {
        "bad": "Retrying",
        "only": "JobBuried",
        "again": "JobsRequeued",
    }
    assert "job bad did not yield" in lines["only"]["reason"]
    assert f"did not yield ({cli.folder / 'tasks.py'}:" in lines["bad"]["reason"]
    assert f"in {task}\n    time.sleep(3600)\n" in lines["bad"]["traceback"]
    left = [line["processes"] for line in log.lines if line["event"] == "HandlersLeft"]
    assert left == ([1] if task == "sleep" else [])
    assert raw.zrange(f"evsched:{{{queue}}}:dead", 0, -1) == [b"only"]


@pytest.mark.extra
def test_blocking_job_fails_and_jobs_timing_out_meanwhile_do_not(cli: Cli, queue: str, raw: Any) -> None:
    (cli.folder / "pipe").unlink()
    with holding(cli, queue, raw) as (child, log):
        waits, bad = '{"task":"hold","id":"waits","timeout":1}', '{"task":"block","id":"bad"}'
        raw.zadd(f"evsched:{{{queue}}}:schedule", {waits: 1, bad: 2})
        assert log.until("WorkerStuck")["id"] == "bad"
        lines = ends(child, log)
    assert (lines["bad"]["event"], lines["waits"]["event"]) == ("Retrying", "JobsRequeued")
    assert "it blocked the event loop" in lines["bad"]["reason"]
    assert "in block\n" in lines["bad"]["traceback"]


@pytest.mark.extra
def test_worker_with_an_unread_log_still_ends_when_a_job_hangs(cli: Cli, queue: str, raw: Any) -> None:
    cli.environment |= {"EVSCHED_TEST_KILL_GRACE": "0.2", "EVSCHED_LEASE": "60", "EVSCHED_TEST_HEARTBEAT": "0.5"}
    with cli.running("dispatcher", until="NotificationsProven"), cli.started("worker", "tasks:app") as (child, log):
        log.until("WorkerStarted")
        assert child.stderr is not None
        # Opened again, so that the worker's own end stays one that waits for a reader.
        end = os.open(f"/proc/{child.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while os.write(end, b"\n"):
                pass
        os.close(end)
        raw.zadd(f"evsched:{{{queue}}}:schedule", {'{"task":"sleep","id":"bad","timeout":0.2}': 1})
        assert child.wait(PATIENCE) == 70
    assert b"did not yield" in raw.hget(f"evsched:{{{queue}}}:job:bad", "reason")


@pytest.mark.extra
@pytest.mark.parametrize(("task", "blocker"), [("block", "bad"), ("start", "")])
def test_worker_stopped_while_blocked_logs_the_outcome_of_each_job(
    cli: Cli, queue: str, raw: Any, task: str, blocker: str
) -> None:
    with holding(cli, queue, raw) as (child, log):
        schedule(raw, queue, task, "bad")
        wait_for(cli, "began")
        child.send_signal(signal.SIGTERM)
        blocked = log.until("WorkerBlocked")
        assert (blocked["id"], blocked["handed_back"]) == (blocker, 2)
        assert "in block\n    time.sleep(3600)\n" in blocked["traceback"]
        lines = ends(child, log)
    assert {job: line["event"] for job, line in lines.items()} == {
        "bad": "JobsRequeued",
        "only": "JobBuried",
        "again": "JobsRequeued",
    }


@pytest.mark.extra
def test_a_worker_whose_lifespan_does_not_end_is_ended_by_force(cli: Cli) -> None:
    lifespan = """
import contextlib
@contextlib.asynccontextmanager
async def endless(*_):
    yield
    await asyncio.Event().wait()
app = App(lifespan=endless)
"""
    (cli.folder / "tasks.py").write_text(TASKS + lifespan)
    with cli.started("worker", "tasks:app") as (child, log):
        log.until("WorkerStarted")
        child.send_signal(signal.SIGTERM)
        log.until("EndedByForce")
        child.communicate(timeout=PATIENCE)
        assert child.returncode == 70


@pytest.mark.extra
def test_signal_handlers_of_the_app_do_not_replace_ours(cli: Cli) -> None:
    lifespan = """
import contextlib
@contextlib.asynccontextmanager
async def minding(*_):
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, print)
    yield
app = App(lifespan=minding)
"""
    (cli.folder / "tasks.py").write_text(TASKS + lifespan)
    with cli.started("worker", "tasks:app") as (child, log):
        log.until("WorkerStarted")
        assert terminate(child) == 0


@pytest.mark.extra
async def test_a_worker_that_drains_is_live_but_not_ready(cli: Cli, queue: str, raw: Any) -> None:
    cli.environment["EVSCHED_SHUTDOWN_GRACE"] = "30"
    with cli.started("dev", "tasks:app", "--metrics-port", "0") as (child, log):
        url = log.until("Listening")["url"]
        log.until("WorkerStarted")
        log.until("NotificationsProven")
        schedule(raw, queue, "hold", "one")
        while 'evsched_worker_slots{state="busy"} 1.0' not in (await get(f"{url}/metrics"))[1]:
            pass  # wait until it begins
        assert await get(f"{url}/readyz") == (200, "ok\n")
        child.send_signal(signal.SIGTERM)
        log.until("WorkerDraining")
        assert await get(f"{url}/readyz") == (503, "draining: the process was asked to stop\n")
        assert (await get(f"{url}/healthz"))[0] == 200


@pytest.mark.parametrize("words", [("worker", "tasks:app"), PARENT], ids=" ".join)
def test_a_second_signal_ends_the_service_at_once(cli: Cli, words: tuple[str, ...], queue: str, raw: Any) -> None:
    cli.environment["EVSCHED_SHUTDOWN_GRACE"] = "60"
    with (
        cli.running("dispatcher", until="NotificationsProven"),
        cli.started(*words, "--concurrency", "1") as (child, log),
    ):
        schedule(raw, queue, "block", "one")
        wait_for(cli, "began")
        while child.poll() is None:  # as a user who presses Ctrl-C until the process ends
            child.send_signal(signal.SIGINT)
            try:
                child.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
        assert child.returncode == 130
        log.until("EndedAtOnce")
        child.communicate(timeout=PATIENCE)  # its children have ended too
    raw.delete(*raw.scan_iter(match=f"evsched:{{{queue}}}:*"))


# What ends with it.


@pytest.mark.extra
def test_the_processes_of_a_pool_end_with_a_worker_that_is_killed(cli: Cli, queue: str, raw: Any) -> None:
    with cli.started("worker", "tasks:app", "--burst") as (child, _):
        schedule(raw, queue, "spin", "endless")
        with (cli.folder / "pipe").open() as pipe:
            assert pipe.readline() == "began\n"
            child.kill()
            assert pipe.read() == ""  # it is closed when the handler's process has ended


@pytest.mark.extra
def test_signal_to_the_process_group_does_not_end_pool_processes(cli: Cli, queue: str, raw: Any) -> None:
    schedule(raw, queue, "signalled", "one")
    done = cli.run("worker", "tasks:app", "--burst")
    assert done.returncode == 0, done.stderr
    assert cli.json("show", "one", "--queue", queue)["result"] == "still there"


@pytest.mark.extra
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_private_redis_of_dev_ends_with_it(cli: Cli, number: signal.Signals) -> None:
    del cli.environment["EVSCHED_URL"]
    with (
        cli.started("dev", "tasks:app", stdout=subprocess.PIPE) as (child, log),
        socket.socket(socket.AF_UNIX) as redis,
    ):
        assert child.stdout is not None
        url = [child.stdout.readline() for _ in range(2)][1].removeprefix("export EVSCHED_URL=").strip()
        redis.connect(url.removeprefix("unix://").partition("?")[0])
        log.until("WorkerStarted")
        child.send_signal(number)
        assert redis.recv(1) == b""
        child.communicate(timeout=PATIENCE)
        assert child.returncode == (-9 if number == signal.SIGKILL else 0)


@pytest.mark.extra
def test_unsafe_settings_of_redis_are_reported_once_at_start(cli: Cli) -> None:
    with EmbeddedRedis(appendonly="no", maxmemory="100mb", maxmemory_policy="allkeys-lru") as unsafe:
        done = cli.run("worker", "tasks:app", "--burst", EVSCHED_URL=unsafe.url)
    assert done.returncode == 0, done.stderr
    unsafe = [line for line in map(json.loads, done.stderr.splitlines()) if line.get("event") == "RedisUnsafe"]
    assert ["append-only log is off" in unsafe[0]["what"], "allkeys-lru" in unsafe[1]["what"]] == [True, True]
    assert len(unsafe) == 2
    assert "RedisUnsafe" not in cli.run("worker", "tasks:app", "--burst").stderr


@pytest.mark.one_server
def test_the_processes_of_the_demo_end_with_it(cli: Cli, raw: Any) -> None:
    del cli.environment["EVSCHED_QUEUES"]
    words = ("demo", "--url", cli.environment["EVSCHED_URL"], "--seconds", "60")
    with cli.started(*words, stdout=subprocess.PIPE) as (child, _):
        assert child.stdout is not None
        assert child.stdout.readline() == f"the demo uses {hide_password(cli.environment['EVSCHED_URL'])}\n"
        assert any("jobs scheduled" in line for line in child.stdout)
        child.kill()
        child.communicate(timeout=PATIENCE)  # they hold the same pipes
    raw.delete(*raw.scan_iter(match="evsched:{demo}:*", count=1000))
