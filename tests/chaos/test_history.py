"""The history: workers and its writers are killed. Each end of a job is once in Redis, and once in the ledger."""

from __future__ import annotations

import random
import time
from collections import Counter

import psycopg
import pytest

from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from tests.chaos.conftest import Fleet

JOBS = 20_000
KILLS = 200
SPAN = 100.0
"""Seconds over which the jobs are due: about as long as the kills take."""

SHORT = {"EVSCHED_LEASE": "2", "EVSCHED_TEST_HEARTBEAT": "0.5"}


def written(url: str) -> Counter[tuple[str, str]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return Counter(connection.execute("SELECT id, outcome FROM evsched_run WHERE queue = 'chaos'").fetchall())


@pytest.mark.timeout(900)
def test_each_end_is_written_once_across_two_hundred_kills(fleet: Fleet, client: SyncClient, ledger_url: str) -> None:
    rng, begin = random.Random(7), time.monotonic()
    commands = [("worker", "tests.chaos.app:app", "--concurrency", "100")] * 3 + [("ledger", "history")] * 2
    client.limit("chaos", history=1_000_000)
    fleet.start("dispatcher", **SHORT)

    def start(which: int) -> None:
        running[which] = fleet.start(*commands[which], EVSCHED_LEDGER_URL=ledger_url, **SHORT)

    running = [fleet.start(*command, EVSCHED_LEDGER_URL=ledger_url, **SHORT) for command in commands]
    now = client.now("chaos")
    expected = Counter({(f"h{n}", "dead" if n % 10 == 0 else "done"): 1 for n in range(JOBS)})
    client.enqueue(
        "chaos",
        [
            new_job("end", (0.02, n % 10 == 0), {}, JobOptions(id=f"h{n}", due=now + rng.uniform(0, SPAN)))
            for n in range(JOBS)
        ],
    )
    killed = Counter[str]()
    while killed.total() < KILLS:
        time.sleep(rng.uniform(0.1, 0.9))
        victim = rng.randrange(len(commands))
        running[victim].kill()
        running[victim].wait()
        killed[commands[victim][0]] += 1
        start(victim)
    kills = time.monotonic() - begin
    # Each end enqueues a job of its own, by a hook.
    while (found := written(ledger_url)).total() < 2 * JOBS:
        assert time.monotonic() - begin < 600, f"{found.total()} ends; missing: {list(expected - found)[:9]}"
        time.sleep(0.5)
    took = time.monotonic() - begin
    assert {*found.values()} == {1}
    assert {end for end in found if "." not in end[0]} == {*expected}
    assert Counter((job.id, job.outcome) for job in client.history("chaos", limit=3 * JOBS)) == found
    runs = Counter(job for what, job, *_ in fleet.lines() if what == "end")
    print(f"{killed}, in {kills:.0f} s; all was written after {took:.0f} s")
    print(f"{sum(count > 1 for count in runs.values())} jobs ran more than once")
    assert len(runs) == JOBS
    assert killed["worker"] > 20 < killed["ledger"]
