"""The number of shards of a live queue changes, and the command is killed in the middle: each job runs exactly once."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from evsched import App, keys
from evsched.client.client import SyncClient
from evsched.client.sweep import Filter
from evsched.shards import Shards
from evsched.store.client_calls import New
from evsched.store.store import Store
from evsched.transport.embedded import EmbeddedRedis
from tests.support.cli import Cli, Log, terminate
from tests.support.cluster import PLACES, foreign_client, started
from tests.support.patience import PATIENCE
from tests.support.topology import pause

TASKS = """
from evsched import App

app = App(queue="mail")

@app.task
async def note(name: str) -> None:
    with open("ran", "a") as file:
        print(name, file=file)
"""
JOBS = 1500
FAR = 600.0


@pytest.fixture(scope="module", params=PLACES)
def url(request: pytest.FixtureRequest, server: EmbeddedRedis) -> Generator[str]:
    with started(request.param, server.server) as found:
        yield found


@pytest.fixture
def raw(url: str) -> Generator[Any]:
    with foreign_client(url) as client:
        client.flushall()
        yield client
        client.flushall()


@pytest.fixture
def cli(url: str, tmp_path: Path) -> Cli:
    (tmp_path / "tasks.py").write_text(TASKS)
    return Cli(url, tmp_path)


class Producer:
    """A program that enqueues all the time: jobs that are due now, and jobs that are due much later."""

    def __init__(self, url: str) -> None:
        self.names = set[str]()
        self.shards = 0
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            shards = self.shards
            app = App(self._url, queue="mail", shards=shards)
            task = app.task(name="note")(_note)
            with app.sync() as client:
                while shards == self.shards and not self._stop.is_set():
                    for kind, delay in (("near", 0.0), ("far", FAR)):
                        name = f"{kind}-{number}"
                        client.enqueue(task.using(delay=delay), name)
                        self.names.add(name)
                    number += 1
                    pause()

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


async def _note(name: str) -> None:
    raise NotImplementedError


class Service:
    """A dispatcher, and a worker that can be restarted."""

    def __init__(self, cli: Cli, stack: ExitStack) -> None:
        self._cli, self._stack = cli, stack
        self._start("dispatcher", "--metrics-port", "0", until="DispatcherStarted")
        self._worker = self._start("worker", "tasks:app", until="WorkerStarted")
        stack.callback(lambda: terminate(self._worker))

    def _start(self, *words: str, until: str) -> subprocess.Popen[str]:
        cli = self._cli
        child = cli.start(*words)
        if words[0] != "worker":
            self._stack.callback(terminate, child)
        Log(child).until(until)
        return child

    def restart(self) -> None:
        """Start a new worker, then end the old one, as a deploy does."""
        old, self._worker = self._worker, self._start("worker", "tasks:app", until="WorkerStarted")
        terminate(old)


def on_schedules(raw: Any, parts: list[str]) -> int:
    return sum(raw.zcard(keys.schedule(part)) for part in parts)


def kill_in_the_middle(cli: Cli, raw: Any, count: int, leaving: list[str]) -> bool:
    """Kill the command when it has moved some jobs; return whether it was still at work."""
    before = on_schedules(raw, leaving)
    child = subprocess.Popen(
        cli.command("queues", "shard", "mail", str(count)),
        env=cli.environment,
        cwd=cli.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while child.poll() is None and on_schedules(raw, leaving) > before - 150:
        pass
    child.send_signal(signal.SIGKILL)
    return child.wait() == -signal.SIGKILL


@pytest.mark.long
def test_each_job_runs_once_while_the_number_of_shards_changes(cli: Cli, url: str, raw: Any) -> None:
    killed, was = 0, 0
    with ExitStack() as stack:
        service = Service(cli, stack)
        client = SyncClient(url)
        stack.callback(client.close)
        names = {f"old-{number}" for number in range(JOBS)}
        client.enqueue("mail", [_job(name) for name in names])
        with Producer(url) as producer:
            for count in (3, 12, 5, 0):
                if count > was:
                    refused = cli.run("queues", "shard", "mail", str(count))
                    assert refused.returncode == 1, refused.stdout
                    assert "Nothing was changed" in refused.stderr
                    assert raw.zscore(keys.SHARDS, "mail") in (was, None)
                    assert cli.run("queues", "shard", "mail", str(count), "--announce").returncode == 0
                    service.restart()
                producer.shards = count
                ours = Shards({"mail": was}).all_of("mail")
                stay = Shards({"mail": count}).all_of("mail")
                leaving = [part for part in ours if count > was or part not in stay]
                killed += sum(kill_in_the_middle(cli, raw, count, leaving) for _ in range(3))
                until = time.monotonic() + PATIENCE
                while (done := cli.run("queues", "shard", "mail", str(count))).returncode:
                    # The worker has jobs of the shards that are to go.
                    assert "still holds jobs" in done.stdout, done.stderr
                    assert time.monotonic() < until
                assert f"queue mail has {count or 'no'} shards now" in done.stdout
                assert raw.zscore(keys.SHARDS, "mail") == count
                was = count
        assert killed >= 4
        names |= producer.names
        assert on_schedules(raw, [f"mail:{number}" for number in range(12)]) == 0
        client.reschedule_matching("mail", Filter(task="note"))
        ran = Counter[str]()
        until = time.monotonic() + 2 * PATIENCE
        while not ran.keys() >= names:
            assert time.monotonic() < until, f"{len(names - ran.keys())} did not run"
            pause()
            ran = Counter((cli.folder / "ran").read_text().split())
    assert Counter((cli.folder / "ran").read_text().split()) == Counter(names)
    left = [key for key in raw.scan_iter(match="evsched:{mail*", count=1000) if key.endswith(":moving")]
    assert not left


def _job(name: str) -> New:
    return New(name, b'{"task":"note","args":["%s"]}' % name.encode(), delay=FAR)


def test_dispatcher_finishes_an_interrupted_reshard(cli: Cli, url: str, raw: Any) -> None:
    source, to = Store("mail"), Store("mail:1")
    client = SyncClient(url)
    client.enqueue("mail", [_job("a"), _job("b")])
    now = client.now("mail")
    batch = client.send(source.at(now - 90.0).depart("mail:1", "t", [b"a", b"b"])).batch
    assert batch is not None
    with ExitStack() as stack:
        child = cli.start("dispatcher", "--metrics-port", "0")
        stack.callback(terminate, child)
        found = Log(child).until("MoveFinished")
    assert (found["queue"], found["to"], found["moved"], found["back"]) == ("mail", to.queue, 2, 0)
    assert raw.zrange(keys.schedule("mail:1"), 0, -1) == ["a", "b"]
    assert not raw.exists("evsched:{mail}:moving")
    client.close()


@pytest.mark.long
def test_no_job_moves_to_a_shard_unknown_to_a_named_dispatcher(cli: Cli, url: str, raw: Any) -> None:
    client = SyncClient(url)
    client.enqueue("mail", [_job("a")])
    client.close()
    words = ("dispatcher", "--queue", "mail", "--metrics-port", "0")
    with cli.running(*words, until="keyspace events arrive"):
        refused = cli.run("queues", "shard", "mail", "2")
    assert refused.returncode == 1
    assert "dispatchers that name the queue do not serve mail:0, mail:1 yet. Repeat the command" in refused.stderr
    assert raw.zcard(keys.schedule("mail")) == 1
    with cli.running(*words, until="keyspace events arrive"):
        assert cli.run("queues", "shard", "mail", "2").returncode == 0
    assert raw.zcard(keys.schedule("mail")) == 0


@pytest.mark.long
def test_reshard_stops_between_two_steps_on_request(cli: Cli, url: str, raw: Any) -> None:
    client = SyncClient(url)
    client.enqueue("mail", [_job(f"j{number}") for number in range(3000)])
    child = subprocess.Popen(
        cli.command("queues", "shard", "mail", "2"),
        env=cli.environment,
        cwd=cli.folder,
        stdout=subprocess.PIPE,
        text=True,
    )
    while raw.zcard(keys.schedule("mail")) > 2900:
        pass
    child.send_signal(signal.SIGINT)
    printed, _ = child.communicate(timeout=PATIENCE)
    assert child.returncode == 130
    moved = re.fullmatch(r"(\d+) moved, then stopped: the same command does the rest\n", printed)
    assert moved, printed
    left = raw.zcard(keys.schedule("mail"))
    assert 0 < left == 3000 - int(moved[1])
    assert not raw.exists("evsched:{mail}:moving")
    assert cli.run("queues", "shard", "mail", "2").stdout == f"{left} moved\nqueue mail has 2 shards now\n"
    client.close()


def test_dry_run_of_a_reshard_reports_moves_and_obstacles(cli: Cli, url: str, raw: Any) -> None:
    client = SyncClient(url)
    client.enqueue("mail", [_job(f"j{number}") for number in range(30)])
    would = cli.run("queues", "shard", "mail", "3", "--dry-run")
    assert (would.returncode, would.stdout) == (
        0,
        "30 of 30 jobs on the schedules are not in their homes, and would move if they can\n",
    )
    assert raw.zscore(keys.SHARDS, "mail") is None
    client.send(Store("mail").heartbeat("w", 60.0, fresh=True))
    client.send(Store("mail:0").heartbeat("w", 60.0, fresh=True))
    refused = cli.run("queues", "shard", "mail", "3")
    assert refused.returncode == 1
    assert "w lacks mail:1, mail:2. Deploy the workers with App(shards=3) first" in refused.stderr
    assert raw.zscore(keys.SHARDS, "mail") is None
    assert raw.zcard(keys.schedule("mail")) == 30
    for shard in ("mail:1", "mail:2"):
        client.send(Store(shard).heartbeat("w", 60.0, fresh=True))
    client.send(Store("mail").pause())
    done = cli.run("queues", "shard", "mail", "3")
    assert (done.returncode, done.stdout) == (0, "30 moved\nqueue mail has 3 shards now\n")
    assert all(raw.hexists(f"evsched:{{mail:{number}}}:limits", "paused") for number in range(3))
    assert cli.run("queues", "shard", "mail:1", "3").stderr.startswith("evsched: mail:1 is a shard of queue mail")
    assert cli.run("queues", "shard", "mail", "5000").returncode == 2
    raw.zadd(keys.schedule("mail:2"), {"not an id": time.time() + 600})
    fewer = cli.run("queues", "shard", "mail", "0")
    assert fewer.returncode == 1
    assert fewer.stdout.splitlines() == [
        "30 moved",
        "1 stay because they also run, wait or are dead under the same id, or cannot run as they are",
        "queue mail has 3 shards now",
        "mail:2 still holds jobs: 1 in schedule",
        "repeat the command when these jobs have run, or when you have revived or dropped the dead ones",
    ]
    raw.delete(keys.schedule("mail:2"))
    done = cli.run("queues", "shard", "mail", "0")
    assert (done.returncode, done.stdout) == (
        0,
        "0 moved\nqueue mail has no shards now: restart the workers, so that they serve no others\n",
    )
    client.close()


@pytest.mark.long
@pytest.mark.parametrize("by", ["command", "worker"])
def test_a_pause_and_the_limits_that_were_set_by_hand_hold_for_new_shards(
    cli: Cli, url: str, raw: Any, by: str, tmp_path: Path
) -> None:
    client = SyncClient(url)
    client.enqueue("mail", [_job("a")])
    assert cli.run("limit", "mail", "--concurrency", "11", "--rate", "8/s").returncode == 0
    assert cli.run("pause", "mail").returncode == 0
    (tmp_path / "grown.py").write_text('from evsched import App\napp = App(queue="mail", shards=3)\n')
    if by == "command":
        assert cli.run("queues", "shard", "mail", "3").returncode == 0
    else:
        with cli.running("worker", "grown:app", until="WorkerStarted"):
            pass
    found = [raw.hgetall(f"evsched:{{{name}}}:limits") for name in Shards({"mail": 3}).all_of("mail")]
    assert [limits["concurrency"] for limits in found] == ["3", "3", "3", "2"]
    assert {limits["rate"] for limits in found} == {"2"}
    assert all("paused" in limits for limits in found)
    client.close()


@pytest.mark.long
def test_a_worker_that_is_refused_has_not_changed_the_number(cli: Cli, url: str, raw: Any, tmp_path: Path) -> None:
    client = SyncClient(url)
    client.enqueue("mail", [_job("a")])
    (tmp_path / "grown.py").write_text('from evsched import App\napp = App(queue="mail", shards=3)\n')
    (tmp_path / "declares.py").write_text((tmp_path / "grown.py").read_text() + "app.limit(concurrency=3)\n")
    assert cli.run("limit", "mail", "--concurrency", "3").returncode == 0
    for app in ("grown:app", "declares:app"):
        done = cli.process("worker", app)
        assert done.returncode == 1
        assert "limit concurrency of queue mail is 3: it is divided among 3 shards" in done.stderr
    refused = cli.run("queues", "shard", "mail", "3")
    assert (refused.returncode, "must be at least 4" in refused.stderr) == (1, True)
    assert cli.run("queues", "shard", "unknown", "3").returncode == 1
    assert raw.zcard(keys.SHARDS) == 0
    client.close()


GROWN = """
import os
from evsched import App
app = App(queue="mail", shards=int(os.environ["SHARDS"]), name="shop")
app.limit(concurrency=26)
"""


def limits(raw: Any, count: int, field: str = "concurrency") -> list[str | None]:
    return [raw.hget(f"evsched:{{{name}}}:limits", field) for name in Shards({"mail": count}).all_of("mail")]


def deploy(cli: Cli, count: int) -> None:
    cli.environment["SHARDS"] = str(count)
    with cli.running("worker", "grown:app", until="WorkerStarted"):
        pass


@pytest.mark.long
def test_declared_limits_are_whole_at_an_earlier_number_of_shards(cli: Cli, url: str, raw: Any) -> None:
    (cli.folder / "grown.py").write_text(GROWN)
    for count in (3, 7, 3):
        deploy(cli, count)
        assert cli.run("queues", "shard", "mail", str(count)).returncode == 0
        assert sum(int(limit or 0) for limit in limits(raw, count)) == 26, count
    deploy(cli, 3)
    assert limits(raw, 3) == ["7", "7", "6", "6"]
    assert not any(limits(raw, 7)[3:-1])
    assert not raw.exists("evsched:{mail:5}:declared_limits")


@pytest.mark.long
def test_manual_limit_is_kept_at_any_number_of_shards(cli: Cli, url: str, raw: Any) -> None:
    (cli.folder / "grown.py").write_text(GROWN)
    deploy(cli, 3)
    cli.run("limit", "mail", "--concurrency", "50")
    for count in (7, 3):
        deploy(cli, count)
        assert cli.run("queues", "shard", "mail", str(count)).returncode == 0
        deploy(cli, count)
        assert sum(int(limit or 0) for limit in limits(raw, count)) == 50, count
    (cli.folder / "grown.py").write_text(GROWN.replace("26", "30"))
    deploy(cli, 3)
    assert limits(raw, 3) == ["8", "8", "7", "7"]


@pytest.mark.long
def test_reopened_shard_takes_over_limits_and_pause_of_the_queue(cli: Cli, url: str, raw: Any) -> None:
    client = SyncClient(url)
    client.enqueue("mail", [_job("a")])
    assert cli.run("queues", "shard", "mail", "6").returncode == 0
    cli.run("limit", "mail", "--concurrency", "60", "--rate", "1/m")
    cli.run("pause", "mail")
    assert cli.run("queues", "shard", "mail", "2").returncode == 0
    assert limits(raw, 6)[2:-1] == [None] * 4
    assert limits(raw, 6, "paused")[2:-1] == [None] * 4
    assert limits(raw, 2) == ["20", "20", "20"]
    # As if what the shard had was not removed.
    client.send(Store("mail:4").limit({"rate": 0.001, "concurrency": 1}))
    client.send(Store("mail:4").pause())
    cli.run("resume", "mail")
    cli.run("limit", "mail", "--rate", "none")
    assert cli.run("queues", "shard", "mail", "6").returncode == 0
    assert raw.hgetall("evsched:{mail:4}:limits").keys() == {"concurrency"}
    assert sum(int(limit or 0) for limit in limits(raw, 6)) == 60
    client.close()


def test_new_shard_of_a_paused_queue_is_paused(cli: Cli, url: str, raw: Any) -> None:
    client = SyncClient(url)
    client.enqueue("mail", [_job("a")])
    client.send(Store("mail").at(1e9).pause())
    assert cli.run("queues", "shard", "mail", "2").returncode == 0
    assert {float(since or 0) for since in limits(raw, 2, "paused")} == {1e9}
    client.close()


@pytest.mark.parametrize("count", ["2.5", "0x3", "1_0", "two"])
def test_shard_count_that_is_not_a_whole_number_is_refused(cli: Cli, url: str, raw: Any, count: str) -> None:
    refused = cli.run("queues", "shard", "mail", count)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)
    assert "whole number" in refused.stderr
    assert cli.run("jobs", "--limit", count).returncode == 2


@pytest.mark.long
def test_a_dry_run_that_is_refused_moves_nothing_and_says_so(cli: Cli, url: str, raw: Any) -> None:
    refused = cli.run("queues", "shard", "unknown", "3", "--announce", "--dry-run")
    assert (refused.returncode, "queue unknown has no jobs" in refused.stderr) == (1, True)
    client = SyncClient(url)
    client.enqueue("mail", [_job("a")])
    raw.delete(keys.schedule("mail"))
    raw.set(keys.schedule("mail"), "a string")
    failed = cli.run("queues", "shard", "mail", "3", "--dry-run")
    assert (failed.returncode, "moved before" in failed.stderr) == (1, False)
    client.close()
