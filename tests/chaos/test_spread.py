"""The workers of a queue share its jobs: no job waits while a slot is free in any worker."""

from __future__ import annotations

import random
import threading
import time
from bisect import bisect, insort
from collections import Counter
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from evsched import keys
from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.shards import Shards
from tests.chaos.conftest import Fleet

COMPUTED = 100
JOBS, MANY = 3000, 600
"""How many come in all, and faster than the workers can run them."""
LONGEST = 0.05
"""Seconds that a job may wait while a slot is free for it."""


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


class Delays(threading.Thread):
    """Notes for how long processes were kept from running, because others had the processors."""

    def __init__(self, *pids: int) -> None:
        super().__init__(daemon=True)
        self._files = [Path(f"/proc/{pid}/schedstat") for pid in pids]
        self._ended = threading.Event()
        self._samples = list[tuple[float, float]]()

    def run(self) -> None:
        while not self._ended.wait(0.01):
            delayed = sum(int(file.read_text().split()[1]) for file in self._files)
            self._samples.append((time.time(), delayed / 1e9))

    def end(self) -> None:
        self._ended.set()
        self.join()

    def between(self, since: float, until: float) -> float:
        """Return the seconds of all of them together."""
        first = bisect(self._samples, (since,)) - 1
        last = bisect(self._samples, (until,))
        return self._samples[min(last, len(self._samples) - 1)][1] - self._samples[max(first, 0)][1]


def waits_beside_slots(runs: list[Run], slots: dict[int, int]) -> list[tuple[float, float]]:
    """Return since when and until when jobs were among the next while slots were free.

    If n slots are free, the n jobs that have waited longest are the next. The others wait for slots: while many jobs
    wait, some slot is always on its way from a job that has ended to one that starts, but never the same one.
    """
    changes = [(run.due, 0, n) for n, run in enumerate(runs)]
    changes += [(run.started, 1, n) for n, run in enumerate(runs)] + [
        (run.finished, 2, n) for n, run in enumerate(runs)
    ]
    waiting, since = list[tuple[float, int]](), dict[int, float]()
    free, waits = sum(slots.values()), list[tuple[float, float]]()
    for at, change, n in sorted(changes):
        if change == 0:
            insort(waiting, (runs[n].due, n))
        elif change == 1:
            waiting.remove((runs[n].due, n))
        free += (0, -1, 1)[change]
        following = {job for _, job in waiting[:free]}
        waits += [(since.pop(job), at) for job in since.keys() - following]
        since.update(dict.fromkeys(following - since.keys(), at))
    return waits


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
    """First more jobs than the workers can run, then fewer.

    They do not come all at once, and they last long: to begin 256 jobs, a worker takes longer than `LONGEST`, and the
    scene has to leave some of two cores to Redis, the dispatcher and the client. For the same reason the time is
    subtracted for which other processes kept these from running.
    """
    raw.flushdb()
    rng = random.Random(seed)
    slots, known = start(fleet, raw, 256, 4, shards=shards), Shards({"chaos": shards})
    for queue in known.all_of("chaos"):  # so that the dispatcher has found each
        client.enqueue(queue, [new_job("harmless", (), {}, JobOptions(id="first", retention=600))])
    until = time.monotonic() + 30
    while any(raw.hget(keys.job(queue, "first"), "outcome") != b"done" for queue in known.all_of("chaos")):
        assert time.monotonic() < until
        time.sleep(0.05)
    delays = Delays(raw.info("server")["process_id"], *(child.pid for child in fleet.children))
    delays.start()
    ids = list[str]()
    while len(ids) < JOBS:
        count = rng.choice([1, 5, 20])
        fresh = [f"w{len(ids) + n}" for n in range(count)]
        seconds = rng.uniform(0.2, 1.4)
        for queue, jobs in groupby(sorted(fresh, key=partial(known.home, "chaos")), key=partial(known.home, "chaos")):
            options = [JobOptions(id=one, retention=600) for one in jobs]
            client.enqueue(queue, [new_job("harmless", (seconds,), {}, one) for one in options])
        ids += fresh
        time.sleep(count / (1000 if len(ids) < MANY else 250))
    runs = runs_of(raw, ids, shards)
    delays.end()
    waits, beside = [run.started - run.due for run in runs], waits_beside_slots(runs, slots)
    longest = max(until - since for since, until in beside)
    least = max(until - since - delays.between(since, until) for since, until in beside)
    share = Counter(run.pid for run in runs)
    print(
        f"{len(runs)} jobs, {[share[pid] for pid in slots]} of them in the workers with {[*slots.values()]} slots; "
        f"a job waited {max(waits):.2f} s at most, and {longest * 1000:.1f} ms at most while a slot was free for it, "
        f"{least * 1000:.1f} ms without the time for which the processes were kept from running"
    )
    assert max(waits) > LONGEST  # there were times without a free slot
    assert least <= LONGEST
