"""Repeated kill -9: nothing is lost, and held jobs start on another worker within one lease."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.transport.embedded import EmbeddedRedis
from tests.chaos.conftest import Fleet
from tests.support.inline import enqueue_half_inline
from tests.support.plain import plain_client

LEASE = 15.0
"""The default, in seconds."""

KILLS = 20
JOBS = 2000


@pytest.mark.timeout(240)
def test_twenty_kills_lose_nothing(fleet: Fleet, client: SyncClient, raw: Any) -> None:
    fleet.start("dispatcher")
    workers = [fleet.start("worker", "tests.chaos.app:app", "--concurrency", "10") for _ in range(2)]
    jobs = [new_job("work", (0.2,), {}, JobOptions(id=f"k{n}", tags=(f"k{n}",))) for n in range(JOBS)]
    ids = enqueue_half_inline(client, raw, "chaos", jobs)
    killed: dict[int, float] = {}
    rng = random.Random(7)
    while len(killed) < KILLS:
        time.sleep(rng.uniform(0.5, 1.2))
        victim = rng.randrange(2)
        workers[victim].kill()
        killed[workers[victim].pid] = time.time()
        workers[victim].wait()
        workers[victim] = fleet.start("worker", "tests.chaos.app:app", "--concurrency", "10")
    end = time.monotonic() + 120
    while True:
        lines = fleet.lines()
        done = {job for what, job, *_ in lines if what == "end"}
        if len(done) == JOBS or time.monotonic() > end:
            break
        time.sleep(0.2)
    assert len(done) == JOBS, f"{JOBS - len(done)} lost"
    starts: dict[str, list[tuple[float, int, int]]] = defaultdict(list)
    for what, job, attempt, pid, at in lines:
        if what == "start":
            starts[job].append((at, attempt, pid))
    assert starts.keys() == {*ids}
    waits, twice = list[float](), 0
    for runs in starts.values():
        runs.sort()
        attempts = [attempt for _, attempt, _ in runs]
        assert attempts == sorted(attempts)
        for (at, attempt, pid), (again, newer, _) in pairwise(runs):
            # Attempts have no gaps, and two runs share one only if nobody could know that the first had begun.
            assert newer in (attempt, attempt + 1)
            if newer == attempt:
                assert killed[pid] - at < 0.5, "a run of some length was not counted"
                twice += 1
            waits.append(again - killed[pid])
    print(f"{len(waits)} runs were cut short and started again {min(waits):.1f} to {max(waits):.1f} s after the kill")
    print(f"{twice} of them were cut before they were known to have begun")
    assert waits
    assert max(waits) < LEASE + 0.5


@pytest.mark.timeout(240)
def test_a_job_that_kills_its_worker_ends_in_dead_after_its_attempts(fleet: Fleet, client: SyncClient) -> None:
    short = {"EVSCHED_LEASE": "2", "EVSCHED_TEST_HEARTBEAT": "0.5"}
    fleet.start("dispatcher", **short)
    client.enqueue("chaos", [new_job("suicide", (), {}, JobOptions(id="s"))])
    end, workers = time.monotonic() + 60, 0
    while (status := client.status("chaos", "s")) is None or status.place != "dead":
        assert time.monotonic() < end
        workers += 1
        worker = fleet.start("worker", "tests.chaos.app:app", **short)
        while worker.poll() is None:
            status = client.status("chaos", "s")
            if status is not None and status.place == "dead":
                break
            time.sleep(0.1)
            assert time.monotonic() < end
    # Nobody could know that the first two runs had begun. The third is isolated, so its worker survives.
    assert [attempt for what, _, attempt, *_ in fleet.lines() if what == "start"] == [1, 1, 1]
    assert workers == 3
    assert "attempt 3 of 3 (2 earlier runs are counted that may not have begun): its process died" in (
        status.reason or ""
    )


@pytest.mark.timeout(120)
def test_jobs_are_on_time_when_the_subscription_dies_at_their_zadd(fleet: Fleet, server: EmbeddedRedis) -> None:
    raw = plain_client(server.url)
    fleet.start("dispatcher", EVSCHED_TEST_SAFETY_CAP="60", EVSCHED_TEST_PROBE_INTERVAL="50")
    fleet.start("worker", "tests.chaos.app:app")
    time.sleep(2)
    late = list[float]()
    for n in range(50):
        pipe = raw.pipeline(transaction=False)
        pipe.client_kill_filter(_type="pubsub")
        seconds, micros = raw.time()
        sent = seconds + micros / 1e6
        pipe.zadd("evsched:{chaos}:schedule", {f'{{"task":"lateness","id":"c{n}","reply":true}}': sent})
        pipe.execute()
        assert raw.blpop(f"evsched:{{chaos}}:reply:c{n}", timeout=5), n
        late.append(float(raw.hget(f"evsched:{{chaos}}:job:c{n}", "result")))
        time.sleep(0.05)
    raw.close()
    print(f"lateness after a killed subscription: max {max(late) * 1e3:.0f} ms")
    assert max(late) < 0.5


@pytest.mark.timeout(180)
def test_a_stopped_worker_completes_nothing_when_it_wakes(fleet: Fleet, client: SyncClient) -> None:
    short = {"EVSCHED_LEASE": "2", "EVSCHED_TEST_HEARTBEAT": "0.5"}
    fleet.start("dispatcher", **short)
    first = fleet.start("worker", "tests.chaos.app:app", **short)
    client.enqueue("chaos", [new_job("work", (1.0,), {}, JobOptions(id="w"))])
    until = time.monotonic() + 20
    while not fleet.lines():
        assert time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.3)  # the worker marks the run as begun
    first.send_signal(19)
    fleet.start("worker", "tests.chaos.app:app", **short)
    assert client.result("chaos", "w", 20) is None
    first.send_signal(18)
    time.sleep(2)
    status = client.status("chaos", "w")
    assert status is not None
    assert (status.place, status.attempt, status.outcome) == ("finished", 2, "done")
    ends = [(attempt, pid) for what, _, attempt, pid, _ in fleet.lines() if what == "end"]
    assert (2, first.pid) not in ends


@pytest.mark.timeout(120)
def test_none_of_ten_thousand_jobs_starts_early(fleet: Fleet, client: SyncClient, server: EmbeddedRedis) -> None:
    raw = plain_client(server.url)
    fleet.start("dispatcher")
    fleet.start("worker", "tests.chaos.app:app")
    rng, now = random.Random(3), client.now() + 2
    times = [now + rng.uniform(0, 20) for _ in range(10_000)]
    # An inline job keeps no record unless its payload has a retention.
    options = [JobOptions(id=f"e{n}", due=one, tags=(f"e{n}",), retention=300.0) for n, one in enumerate(times)]
    ids = enqueue_half_inline(client, raw, "chaos", [new_job("lateness", (), {}, one) for one in options])
    end = time.monotonic() + 60
    pipe = raw.pipeline(transaction=False)
    while (
        raw.zcard("evsched:{chaos}:schedule") + raw.zcard("evsched:{chaos}:backlog") + raw.llen("evsched:{chaos}:ready")
    ):
        assert time.monotonic() < end
        time.sleep(0.1)
    time.sleep(0.5)
    for job in ids:
        pipe.hmget(f"evsched:{{chaos}}:job:{job}", "due", "started", "result")
    late = list[float]()
    for due, started, result in pipe.execute():
        assert float(started) >= float(due)
        late.append(float(result))
    late.sort()
    raw.close()
    print(f"10,000 jobs: p50 {late[5000] * 1e3:.2f} ms, p99 {late[9900] * 1e3:.2f} ms, min {late[0] * 1e3:.3f} ms")
    assert late[0] >= 0
