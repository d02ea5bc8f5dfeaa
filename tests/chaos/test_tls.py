"""A primary dies while the processes of many queues share a busy machine, over TLS: each connection costs CPU time."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from evsched import keys
from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from tests.chaos.conftest import Fleet
from tests.support.cluster import Cluster, tls_cluster

BURNERS = int(os.environ.get("CHAOS_BURNERS", "16"))
"""Processes that compute all the while, beside the dozen of the scene, on two cores."""
LENGTH = 40.0
"""Seconds between the first due and the last."""
KILLED = 10.0
"""Seconds after the first due at which the primary is killed."""
SPACE = 0.025
HEALTHY = 1.0
"""Seconds that jobs of the other primaries may be late."""
LOST = 5.0
"""Seconds after the promotion by which jobs of the primary that died have started."""


class Start(NamedTuple):
    """When a job was due, and started, by Redis's clock."""

    queue: str
    due: float
    started: float


@contextmanager
def busy_machine() -> Generator[None]:
    """Keep all cores busy with processes of a lower priority than the project's."""
    code = "import os\nos.nice(5)\nwhile True: pass"
    burners = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(BURNERS)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", [6, 60, 198])
def test_queues_resume_soon_after_a_primary_dies_on_a_busy_machine(tmp_path: Path, count: int) -> None:
    with tls_cluster(tmp_path, replicas=3) as cluster, closing(SyncClient(cluster.tls_url)) as client:
        fleet, queues = Fleet(cluster.tls_url, tmp_path / "oracle"), [f"q{n}" for n in range(count)]
        names = [word for queue in queues for word in ("--queue", queue)]
        try:
            for words in (("dispatcher",), ("worker", "tests.chaos.app:app", *names)) * 3:
                fleet.start(*words)
            until = time.monotonic() + 120
            while any(_leases(cluster, queue) < 3 for queue in queues):
                assert time.monotonic() < until
                time.sleep(0.5)
            with busy_machine():
                _measure(cluster, client, queues)
        finally:
            fleet.stop()


def _leases(cluster: Cluster, queue: str) -> int:
    return cluster.client(cluster.primary(queue)).zcard(f"{keys.root(queue)}leases")


def _measure(cluster: Cluster, client: SyncClient, queues: list[str]) -> None:
    jobs = dict[str, list[str]]()
    begin = 3.0
    for n in range(int(LENGTH / SPACE)):
        jobs.setdefault(queues[n % len(queues)], []).append(f"j{n}")
    first = time.time() + begin
    for queue, ids in jobs.items():
        options = [JobOptions(id=job, due=first + SPACE * int(job[1:]), retention=600) for job in ids]
        client.enqueue(queue, [new_job("lateness", (), {}, one) for one in options])
    victim = cluster.primary(queues[0])
    lost = [queue for queue in queues if cluster.primary(queue) is victim]
    assert cluster.client(victim).wait(1, 5000) == 1
    time.sleep(max(0.0, first + KILLED - time.time()))
    load = os.getloadavg()[0]
    victim.kill()
    killed = time.time()
    cluster.wait_for_failover(victim, queues[0])
    promoted = time.time()
    starts = _wait_for(client, jobs)
    assert min(start.started - start.due for start in starts) >= 0, "a job was early"
    healthy = [start.started - start.due for start in starts if start.queue not in lost and start.due > killed]
    moved = [
        start.started - max(start.due, promoted)
        for start in starts
        if start.queue in lost and start.started > promoted and start.due > killed - 1
    ]
    print(
        f"{len(queues)} queues, load {load:.0f}, promoted after {promoted - killed:.1f} s: jobs of healthy primaries "
        f"{statistics.median(healthy):.2f} s late at the median, {max(healthy):.2f} s at most; jobs of the lost one "
        f"{statistics.median(moved):.2f} s after the promotion at the median, {max(moved):.2f} s at most"
    )
    assert max(healthy) <= HEALTHY
    assert max(moved) <= LOST


def _wait_for(client: SyncClient, jobs: dict[str, list[str]]) -> list[Start]:
    """Wait until all jobs are done, and return when they started."""
    until, starts = time.monotonic() + LENGTH + 120, list[Start]()
    for queue, ids in jobs.items():
        for job in ids:
            while (status := client.status(queue, job)) is None or status.outcome != "done":
                assert time.monotonic() < until, f"{queue} {job} is lost or late: {status}"
                time.sleep(0.2)
            assert status.due
            assert status.started
            starts.append(Start(queue, status.due, status.started))
    return starts
