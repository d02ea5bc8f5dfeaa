"""The workers of a queue share its jobs: none computes alone, and no job waits while a slot is free elsewhere."""

from __future__ import annotations

import random
import time
from collections import Counter
from functools import partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import pytest

from evsched import keys
from evsched.client.new_job import JobOptions, new_job
from evsched.client.sync_client import SyncClient
from evsched.shards import Shards
from tests.chaos.conftest import Fleet

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


def start(fleet: Fleet, raw: Any, *slots: int, shards: int = 0) -> dict[int, int]:
    """Start a worker with each of these numbers of slots; return the slots by process, when all serve the queue."""
    children = [
        fleet.start(
            "worker", "tests.chaos.app:app", "--queue", "chaos", "--concurrency", str(count), SHARDS=str(shards)
        )
        for count in slots
    ]
    fleet.start("dispatcher")
    until = time.monotonic() + 30
    queues = Shards({"chaos": shards}).all_of("chaos")
    while any(raw.zcard(f"{keys.root(queue)}leases") < len(slots) for queue in queues):
        assert time.monotonic() < until
        time.sleep(0.05)
    return {child.pid: count for child, count in zip(children, slots, strict=True)}


def runs_of(raw: Any, ids: list[str], shards: int = 0) -> list[Run]:
    """Wait until all jobs are done, and read their records."""
    until = time.monotonic() + 60
    known = Shards({"chaos": shards})
    while True:
        with raw.pipeline(transaction=False) as pipe:
            for job_id in ids:
                key = keys.job(known.home("chaos", job_id), job_id)
                pipe.hmget(key, "outcome", "due", "started", "finished", "worker")
            records = pipe.execute()
        if all(record[0] == b"done" for record in records):
            return [
                Run(float(due), float(started), float(finished), int(worker.split(b"-")[-3]))
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
@pytest.mark.parametrize("shards", [0, 12])
@pytest.mark.parametrize("seed", range(3))
def test_no_job_waits_while_a_slot_is_free_in_a_large_or_a_small_worker(
    fleet: Fleet, client: SyncClient, raw: Any, seed: int, shards: int
) -> None:
    """First many jobs at once, then about as many as the workers can run."""
    raw.flushdb()
    rng = random.Random(seed)
    slots, known = start(fleet, raw, 256, 4, shards=shards), Shards({"chaos": shards})
    ids = list[str]()
    while len(ids) < WAITED:
        count = rng.choice([1, 5, 20]) if ids else 600
        fresh = [f"w{len(ids) + n}" for n in range(count)]
        seconds = rng.uniform(0.1, 0.7)
        for queue, jobs in groupby(sorted(fresh, key=partial(known.home, "chaos")), key=partial(known.home, "chaos")):
            options = [JobOptions(id=one, retention=600) for one in jobs]
            client.enqueue(queue, [new_job("harmless", (seconds,), {}, one) for one in options])
        ids += fresh
        time.sleep(0 if len(ids) == 600 else count / 600)
    runs = runs_of(raw, ids, shards)
    waits, longest = [run.started - run.due for run in runs], longest_wait(runs, slots)
    share = Counter(run.pid for run in runs)
    print(
        f"{len(runs)} jobs, {[share[pid] for pid in slots]} of them in the workers with {[*slots.values()]} slots; "
        f"a job waited {max(waits):.2f} s at most, and {longest * 1000:.1f} ms at most while a slot was free"
    )
    assert max(waits) > LONGEST  # there were times without a free slot
    assert longest <= LONGEST
