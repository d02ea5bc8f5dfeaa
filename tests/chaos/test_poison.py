"""A job that kills every process that runs it is buried after its attempts and harms no other job."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter
from typing import Any

import pytest

from evsched import Retry
from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from tests.chaos.conftest import Fleet

SHORT = {"EVSCHED_LEASE": "2", "EVSCHED_TEST_HEARTBEAT": "0.5"}
HARMLESS = 1000


class Supervised:
    """Workers that are started again when they die, as under systemd."""

    def __init__(self, fleet: Fleet, count: int, *words: str) -> None:
        self._fleet = fleet
        self._words = words
        self.deaths = 0
        self.workers: list[subprocess.Popen[bytes]] = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[bytes]:
        return self._fleet.start("worker", "tests.chaos.app:app", *self._words, **SHORT)

    def restart_dead(self) -> None:
        for n, worker in enumerate(self.workers):
            if worker.poll() is not None:
                self.deaths += 1
                self.workers[n] = self._start()


def wait_for_the_end(fleet: Fleet, raw: Any, workers: Supervised, jobs: int, limit: float) -> None:
    end = time.monotonic() + limit
    while (done := ended(fleet)) < jobs or not dead(raw):
        assert time.monotonic() < end, f"{workers.deaths} deaths, {done} of {jobs} done, dead: {dead(raw)}"
        workers.restart_dead()
        time.sleep(0.1)


def ended(fleet: Fleet) -> int:
    return len({job for what, job, *_ in fleet.lines() if what == "end"})


def dead(raw: Any) -> set[str]:
    return {job.decode() for job in raw.zrange("evsched:{chaos}:dead", 0, -1)}


@pytest.fixture(autouse=True)
def the_server_is_empty(raw: Any) -> None:
    raw.flushdb()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("seed", range(20))
def test_only_the_poison_among_a_thousand_jobs_dies(
    fleet: Fleet, client: SyncClient, raw: Any, workers: int, seed: int
) -> None:
    assert "its process died" in reason_of_poison(fleet, client, raw, "poison", workers, seed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_job_that_kills_its_whole_worker_is_buried_after_its_attempts(
    fleet: Fleet, client: SyncClient, raw: Any, workers: int, seed: int
) -> None:
    reason = reason_of_poison(fleet, client, raw, "massacre", workers, seed)
    assert reason.startswith(f"the last of its {Retry().attempts} attempts began and never ended")


def reason_of_poison(fleet: Fleet, client: SyncClient, raw: Any, task: str, workers: int, seed: int) -> str:
    """Run a thousand harmless jobs and one poison; return why the poison was given up."""
    rng = random.Random(seed)
    concurrency = str(rng.choice([4, 32, 256]))
    place = rng.randrange(HARMLESS)
    jobs = [
        new_job("harmless", (rng.choice([0.0, 0.0, 0.01, 0.2]),), {}, JobOptions(id=f"h{n}")) for n in range(HARMLESS)
    ]
    jobs.insert(place, new_job(task, (), {}, JobOptions(id="poison")))
    fleet.start("dispatcher", **SHORT)
    client.enqueue("chaos", jobs)
    supervised = Supervised(fleet, workers, "--concurrency", concurrency)
    wait_for_the_end(fleet, raw, supervised, HARMLESS, 200)
    assert dead(raw) == {"poison"}
    starts = Counter(job for what, job, *_ in fleet.lines() if what == "start")
    assert starts["poison"] == Retry().attempts
    status = client.status("chaos", "poison")
    assert status is not None
    assert status.attempt == starts["poison"]
    # Each attempt has a start: the attempt that a handler gets is at most the number of its starts so far. One may have
    # none: that of a suspect whose worker died between the mark that it begins and its first step, some milliseconds.
    seen, charged = Counter[str](), set[str]()
    for what, job, attempt, *_ in fleet.lines():
        if what == "start":
            seen[job] += 1
            if job != "poison" and attempt > seen[job]:
                charged.add(job)
                seen[job] = attempt
    assert len(charged) <= 1, charged
    print(f"{workers} workers of {concurrency} slots, poison at {place}: {supervised.deaths} deaths")
    return status.reason or ""
