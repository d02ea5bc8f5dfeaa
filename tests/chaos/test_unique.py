"""A thousand producers of one unique job, which are killed as the workers are: one job in each time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from tests.chaos.conftest import Fleet
from tests.support.patience import PATIENCE

WITHIN = 1.0
PROCESSES, EACH = 8, 125
KILLS = 60
SHORT = {"EVSCHED_LEASE": "2", "EVSCHED_TEST_HEARTBEAT": "0.5"}


def producers(fleet: Fleet) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.chaos.produce", str(EACH), str(WITHIN)]
    child = subprocess.Popen(command, env={**os.environ, "EVSCHED_URL": fleet.url, "ORACLE": str(fleet.oracle)})
    fleet.children.append(child)
    return child


def worker(fleet: Fleet) -> subprocess.Popen[bytes]:
    return fleet.start("worker", "tests.chaos.app:app", **SHORT)


@pytest.mark.timeout(900)
def test_a_thousand_producers_make_one_job_a_window_across_kills(fleet: Fleet) -> None:
    fleet.start("dispatcher", **SHORT)
    running = [(producers, producers(fleet)) for _ in range(PROCESSES)] + [(worker, worker(fleet)) for _ in range(2)]
    rng, seen = random.Random(7), 0
    for _ in range(KILLS):
        seen = fleet.wait_for_more(seen)
        time.sleep(rng.uniform(0.2, 0.6))
        victim = rng.randrange(len(running))
        start, child = running[victim]
        child.kill()
        child.wait()
        running[victim] = (start, start(fleet))
    for start, child in running:
        if start is producers:
            child.kill()
    lines, end = fleet.lines(), time.monotonic() + PATIENCE
    while _planned("start", lines) != _planned("end", lines) and time.monotonic() < end:
        time.sleep(0.2)
        lines = fleet.lines()
    jobs = _planned("end", lines)
    assert jobs == _planned("start", lines), "a job is lost"
    assert len({job for _, job, *_ in lines}) == 1
    gaps = [after - before for before, after in pairwise(sorted(jobs))]
    print(f"{KILLS} kills, {len(jobs)} jobs, {min(gaps):.6f} to {max(gaps):.3f} s apart")
    assert min(gaps) >= WITHIN - 2e-6  # as precise as the times are written
    assert len(jobs) >= 5


def _planned(what: str, lines: list[tuple[str, str, int, int, float]]) -> set[float]:
    return {float(line[0].removeprefix(what + ":")) for line in lines if line[0].startswith(what)}
