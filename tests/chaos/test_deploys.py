"""Deploys under load: two versions of an app are swapped process by process, and workers of both are killed."""

from __future__ import annotations

import math
import random
import subprocess
import time
from collections.abc import Callable
from itertools import count
from threading import Event, Lock, Thread
from typing import Any

import pytest

from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.store.store import Store
from tests.chaos.conftest import Fleet
from tests.chaos.versions import RULES

WORKERS = 4
SETTINGS = {
    "EVSCHED_LEASE": "1.5",
    "EVSCHED_TEST_HEARTBEAT": "0.3",
    "EVSCHED_TEST_IDLE_HEARTBEAT": "0.5",
    "EVSCHED_SHUTDOWN_GRACE": "0.1",
}
ROOT = "evsched:{chaos}:"


class Producer(Thread):
    """Schedules some 200 jobs a second until it is stopped."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.tasks = ["common", "added"]
        self.ids = dict[str, list[str]](common=[], added=[])
        self._client = SyncClient(url)
        self._rng = random.Random(seed)
        self._stopping = Event()
        self._scheduling = Lock()

    def run(self) -> None:
        for n in count():
            with self._scheduling:
                self._schedule(n)
            if self._stopping.wait(0.05):
                return

    def _schedule(self, n: int) -> None:
        for task in self.tasks:
            ids = [f"{task}{n}.{i}" for i in range(5)]
            jobs = [
                new_job(task, (self._rng.uniform(0, 0.4),), {}, JobOptions(id=job_id, retention=600)) for job_id in ids
            ]
            self._client.enqueue("chaos", jobs)
            self.ids[task] += ids

    def schedule_no_more(self, task: str) -> None:
        """Return when the last jobs of a task are on the schedule."""
        with self._scheduling:
            self.tasks.remove(task)

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._client.close()


class Workers:
    """The workers, each of the version that it was started with last."""

    def __init__(self, fleet: Fleet, raw: Any, rng: random.Random) -> None:
        self._fleet = fleet
        self._raw = raw
        self._rng = rng
        self.killed = 0
        self.versions = ["old"] * WORKERS
        self._children = [self._start("old") for _ in range(WORKERS)]
        for child in self._children:
            self._wait_for(child)

    def _start(self, version: str) -> subprocess.Popen[bytes]:
        app = f"tests.chaos.versions:{version}"
        return self._fleet.start("worker", app, "--concurrency", "20", **SETTINGS)

    def _wait_for(self, child: subprocess.Popen[bytes]) -> None:
        """Wait until a worker has its lease: by then it has declared its recurrences."""
        wait_until(lambda: any(b"-%d-" % child.pid in name for name in self._raw.zrange(f"{ROOT}leases", 0, -1)))

    def swap(self, n: int, version: str) -> None:
        """Kill a worker that is of the other version, so that it restarts; then replace the n-th worker."""
        before = [m for m, other in enumerate(self.versions) if other != version]
        victim = self._rng.choice(before)
        self._children[victim].kill()
        self._children[victim].wait()
        self.killed += 1
        self._children[victim] = self._start(self.versions[victim])
        self._wait_for(self._children[victim])
        self._children[n].terminate()
        assert self._children[n].wait(20) == 0
        self._children[n] = self._start(version)
        self.versions[n] = version
        self._wait_for(self._children[n])


def wait_until(found: Callable[[], Any]) -> None:
    until = time.monotonic() + 100
    while not found():
        assert time.monotonic() < until
        time.sleep(0.05)


def recurrences(raw: Any) -> dict[str, tuple[str, bool, bool]]:
    """Return the rule of each recurrence, and whether it is retired and paused."""
    found = dict[str, tuple[str, bool, bool]]()
    for name, at in raw.zrange(f"{ROOT}recurrences", 0, -1, withscores=True):
        fields = raw.hgetall(f"{ROOT}recurrence:{name.decode()}")
        retired = at == float("inf") and b"retired" in fields
        found[name.decode()] = fields[b"rule"].decode(), retired, b"paused" in fields
    return found


def expected(version: str) -> dict[str, tuple[str, bool, bool]]:
    rules = RULES["old"] | RULES[version]
    return {name: (rule, name not in RULES[version], name == "paused") for name, rule in rules.items()}


def outcomes(raw: Any, ids: list[str]) -> list[bytes | None]:
    with raw.pipeline(transaction=False) as pipe:
        for job_id in ids:
            pipe.hget(f"{ROOT}job:{job_id}", "outcome")
        return pipe.execute()


def redis_now(raw: Any) -> float:
    seconds, micros = raw.time()
    return seconds + micros / 1e6


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(2))
def test_two_versions_are_swapped_in_both_directions(fleet: Fleet, client: SyncClient, raw: Any, seed: int) -> None:
    raw.flushdb()
    for _ in range(2):
        fleet.start("dispatcher", **SETTINGS)
    workers = Workers(fleet, raw, random.Random(seed))
    assert recurrences(raw).keys() == RULES["old"].keys()
    client.send(Store("chaos").hold("paused", True))
    assert recurrences(raw) == expected("old")
    producer = Producer(fleet.url, seed)
    producer.start()

    declared = 0.0
    for n in range(WORKERS):
        workers.swap(n, "new")
        declared = declared or redis_now(raw)
        assert recurrences(raw) == expected("new")
    for n in range(WORKERS):
        if n == 1:  # while most workers know it
            producer.schedule_no_more("added")
            wait_until(lambda: None not in outcomes(raw, producer.ids["added"]))
        workers.swap(n, "old")
        assert recurrences(raw) == expected("new")  # Redis cannot know that this is no restart
    back = redis_now(raw)
    client.send(Store("chaos").forget_revisions("shop"))
    wait_until(lambda: recurrences(raw) == expected("old"))
    producer.stop()

    for name in RULES["old"]:
        client.send(Store("chaos").hold(name, True))
    for ids in producer.ids.values():
        wait_until(lambda ids=ids: None not in outcomes(raw, ids))
        assert {*outcomes(raw, ids)} == {b"done"}
    assert raw.zcard(f"{ROOT}dead") == 0
    ended = {job for what, job, *_ in fleet.lines() if what == "end"}
    assert ended == {job for ids in producer.ids.values() for job in ids}
    ticks = {job.partition("@")[::2] for what, job, *_ in fleet.lines() if what == "tick"}
    between = [(name, float(planned)) for name, planned in ticks if declared < float(planned) < back]
    assert {name for name, _ in between} == {"kept", "changed"}
    assert all(planned % 2 == 0 for name, planned in between if name == "changed")
    kept = {planned for name, planned in between if name == "kept"}
    gaps = [at for at in range(math.ceil(declared), math.floor(back)) if at not in kept]
    assert len(gaps) <= int(client.send(Store("chaos").recurrence("kept")).get("missed", 0))
    deferred = sum(b"unknown" in raw.hkeys(f"{ROOT}job:{job}") for job in producer.ids["added"])
    print(
        f"{workers.killed} kills, {2 * WORKERS} workers replaced; jobs done: {len(producer.ids['common'])} of a task "
        f"of both, {len(producer.ids['added'])} of the new one, {deferred} of them after a worker did not know it; "
        f"{len(between)} occurrences, all of the newest revision, {len(gaps)} missed; 0 dead"
    )
    assert deferred
