"""The workers of a queue share its jobs: none computes alone, and no job waits while a slot is free elsewhere."""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from evsched.client.new_job import JobOptions, new_job
from evsched.client.sync_client import SyncClient
from tests.chaos.conftest import Fleet

ROOT = "evsched:{chaos}:"
COMPUTED = 100
WAITED = 4000
LONGEST = 0.05
"""Seconds that a job may wait while a slot is free."""


class Run(NamedTuple):
    """When a job was due, handed out and ended, by Redis's clock; and where."""

    due: float
    started: float
    finished: float
    pid: int


def start(fleet: Fleet, raw: Any, *slots: int) -> dict[int, int]:
    """Start a worker with each of these numbers of slots; return the slots by process, when all serve the queue."""
    children = [
        fleet.start("worker", "tests.chaos.app:app", "--queue", "chaos", "--concurrency", str(count)) for count in slots
    ]
    fleet.start("dispatcher")
    until = time.monotonic() + 30
    while raw.zcard(f"{ROOT}leases") < len(slots):
        assert time.monotonic() < until
        time.sleep(0.05)
    return {child.pid: count for child, count in zip(children, slots, strict=True)}


def runs_of(raw: Any, ids: list[str]) -> list[Run]:
    """Wait until all jobs are done, and read their records."""
    until = time.monotonic() + 60
    while True:
        with raw.pipeline(transaction=False) as pipe:
            for job_id in ids:
                pipe.hmget(f"{ROOT}job:{job_id}", "outcome", "due", "started", "finished", "worker")
            records = pipe.execute()
        if all(record[0] == b"done" for record in records):
            return [
                Run(float(due), float(started), float(finished), int(worker.split(b"-")[-2]))
                for _, due, started, finished, worker in records
            ]
        assert time.monotonic() < until
        time.sleep(0.2)


def longest_wait(runs: list[Run], slots: dict[int, int]) -> float:
    """Return the longest time for which a job waited while a slot was free in some worker all the while."""
    changes = [(min(run.due for run in runs), 0, 0)]
    changes += [(run.started, run.pid, 1) for run in runs] + [(run.finished, run.pid, -1) for run in runs]
    busy, free = Counter[int](), list[tuple[float, float]]()
    for (at, pid, more), (until, *_) in pairwise(sorted(changes)):
        busy[pid] += more
        if any(busy[other] < count for other, count in slots.items()):
            if free and free[-1][1] == at:
                free[-1] = (free[-1][0], until)
            else:
                free.append((at, until))
    return max(min(run.started, until) - max(run.due, since) for run in runs for since, until in free)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("task", ["compute", "compute_in_thread"])
def test_two_workers_share_a_hundred_jobs_that_compute(fleet: Fleet, client: SyncClient, raw: Any, task: str) -> None:
    raw.flushdb()
    slots = start(fleet, raw, 8, 8)
    jobs = [new_job(task, (0.1,), {}, JobOptions(id=f"c{n}", retention=600)) for n in range(COMPUTED)]
    client.enqueue("chaos", jobs)
    runs = runs_of(raw, [job.id for job in jobs])
    shares = Counter(run.pid for run in runs)
    took = max(run.finished for run in runs) - min(run.due for run in runs)
    print(f"{task}: shares {sorted(shares.values())}, {took:.1f} s")
    assert shares.keys() == slots.keys()
    assert min(shares.values()) >= 0.4 * COMPUTED


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(3))
def test_no_job_waits_while_a_slot_is_free_in_a_large_or_a_small_worker(
    fleet: Fleet, client: SyncClient, raw: Any, seed: int
) -> None:
    """First many jobs at once, then about as many as the workers can run."""
    raw.flushdb()
    rng = random.Random(seed)
    slots = start(fleet, raw, 256, 4)
    ids = list[str]()
    while len(ids) < WAITED:
        count = rng.choice([1, 5, 20]) if ids else 600
        fresh = [f"w{len(ids) + n}" for n in range(count)]
        client.enqueue(
            "chaos",
            [new_job("harmless", (rng.uniform(0.1, 0.7),), {}, JobOptions(id=one, retention=600)) for one in fresh],
        )
        ids += fresh
        time.sleep(0 if len(ids) == 600 else count / 600)
    runs = runs_of(raw, ids)
    waits, longest = [run.started - run.due for run in runs], longest_wait(runs, slots)
    share = Counter(run.pid for run in runs)
    print(
        f"{len(runs)} jobs, {[share[pid] for pid in slots]} of them in the workers with {[*slots.values()]} slots; "
        f"a job waited {max(waits):.2f} s at most, and {longest * 1000:.1f} ms at most while a slot was free"
    )
    assert max(waits) > LONGEST  # there were times without a free slot
    assert longest <= LONGEST
