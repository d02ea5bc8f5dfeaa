"""Recurrences under kill -9 of everything: each planned time has exactly one job, or is counted as missed."""

from __future__ import annotations

import random
import time

import pytest

from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.recurrence.recurrence import Declared
from evsched.store.store import Store
from tests.chaos.conftest import Fleet

SECONDS = 60


@pytest.mark.timeout(180)
def test_a_job_every_second_for_a_minute_while_all_processes_are_killed(fleet: Fleet, client: SyncClient) -> None:
    short = {"EVSCHED_LEASE": "3", "EVSCHED_TEST_HEARTBEAT": "1"}

    children = [fleet.start("dispatcher", **short) for _ in range(2)]
    children += [fleet.start("worker", "tests.chaos.app:app", **short) for _ in range(2)]
    payload = new_job("occurrence", (), {}, JobOptions(retention=600)).payload
    declared = Declared(name="s", rule="every 1", payload=payload, overlap="allow", misfire="skip")
    client.send(Store("chaos").declare(declared))
    rng, began = random.Random(3), time.time()
    while time.time() < began + SECONDS:
        time.sleep(2)
        victim = rng.randrange(4)
        children[victim].kill()
        children[victim].wait()
        words = ("dispatcher",) if victim < 2 else ("worker", "tests.chaos.app:app")
        children[victim] = fleet.start(*words, **short)
    client.send(Store("chaos").hold("s", True))
    stopped = time.time()
    time.sleep(8)  # what dead workers held is requeued and run
    record = client.send(Store("chaos").recurrence("s"))
    missed = int(record.get("missed", 0))
    attempts = [(job, attempt) for what, job, attempt, *_ in fleet.lines() if what == "start"]
    planned = sorted({float(job.removeprefix("s@")) for job, _ in attempts})
    assert len(set(attempts)) == len(attempts), "a run was begun twice"
    firsts = [job for job, attempt in attempts if attempt == 1]
    assert len(set(firsts)) == len(firsts), "a planned time had two jobs"
    span = range(int(planned[0]), int(planned[-1]) + 1)
    gaps = [at for at in span if at not in planned]
    print(
        f"{len(planned)} of {len(span)} occurrences ran, {missed} missed, "
        f"{len(attempts) - len(planned)} ran again; gaps {gaps}"
    )
    assert len(span) >= SECONDS - 8
    assert planned[-1] <= stopped
    assert len(gaps) <= missed
