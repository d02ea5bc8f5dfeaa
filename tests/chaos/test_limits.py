"""A concurrency limit under kill -9 is never exceeded and never stuck below its value."""

from __future__ import annotations

import time

import pytest

from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.store.store import Store
from tests.chaos.conftest import Fleet

LIMIT, JOBS = 5, 600
LEASE = 15.0
"""Seconds within which a dead worker's jobs are requeued."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "limits",
    [{"concurrency": LIMIT}, {"concurrency:task:work": LIMIT, "concurrency:*": LIMIT - 1}],
    ids=["queue", "task"],
)
def test_concurrency_limit_holds_over_three_workers_when_one_is_killed(
    fleet: Fleet, client: SyncClient, limits: dict[str, float]
) -> None:
    fleet.start("dispatcher")
    workers = [fleet.start("worker", "tests.chaos.app:app", "--concurrency", "10") for _ in range(3)]
    client.send(Store("chaos").limit(limits))
    options = [JobOptions(id=f"k{n}", group="abc"[n % 3]) for n in range(JOBS)]
    client.enqueue("chaos", [new_job("work", (0.2,), {}, option) for option in options])
    end = time.monotonic() + 10
    # The victim is a worker that holds some of the five.
    while len(held := [pid for what, _, _, pid, _ in fleet.lines() if what == "start"]) < 40:
        assert time.monotonic() < end
        time.sleep(0.05)
    victim = next(worker for worker in workers if worker.pid == held[-1])
    victim.kill()
    killed = time.time()
    victim.wait()
    end = time.monotonic() + 150
    while len({job for what, job, *_ in fleet.lines() if what == "end"}) < JOBS:
        assert time.monotonic() < end, "jobs were lost"
        time.sleep(0.2)

    # A run that was cut short in its first instants gives its attempt back, so two processes may run the same attempt.
    runs: dict[tuple[str, int, int], list[float]] = {}
    for what, job, attempt, pid, at in fleet.lines():
        moments = runs.setdefault((job, attempt, pid), [])
        moments.append(at)
        assert what == ("start" if len(moments) == 1 else "end")
    steps = list[tuple[float, int]]()
    cut = 0
    for (_, _, pid), moments in runs.items():
        if len(moments) == 1:
            assert pid == victim.pid
            moments.append(killed)
            cut += 1
        steps += [(moments[0], 1), (moments[1], -1)]
    steps.sort()
    level, most, below, since = 0, 0, 0.0, steps[0][0]
    last_start = max(moments[0] for moments in runs.values())
    for at, change in steps:
        if at > last_start:
            break
        # What the dead worker held counts until the janitor has requeued it.
        if level < LIMIT and not killed <= since < killed + LEASE:
            below = max(below, at - since)
        level += change
        if change < 0 and level == LIMIT - 1:
            since = at
        most = max(most, level)
    print(f"at most {most} at once; {cut} runs were cut short; longest time below {LIMIT}: {below * 1e3:.0f} ms")
    assert most == LIMIT
    assert cut
    assert below < 1.0
