"""10,000 requests that are due at one time, to an endpoint that fails for one of twenty: each is handled once."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Generator
from typing import Any
from urllib.request import urlopen

import pytest

from tests.chaos.conftest import Fleet

JOBS = 10_000
PROCESSES = os.environ.get("EVSCHED_TEST_PROCESSES", "1")
ROOT = "evsched:{targets}:"


@pytest.fixture
def port() -> Generator[int]:
    """The port of an endpoint that records the requests it receives."""
    with subprocess.Popen([sys.executable, "-m", "tests.chaos.receiver"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        yield int(child.stdout.readline())
        child.kill()


def schedule(raw: Any, port: int, due: float) -> None:
    kwargs = {"url": f"http://127.0.0.1:{port}/orders", "json": {"total": 7}, "timeout": 2}
    payload = json.dumps({"task": "evsched.http", "kwargs": kwargs, "retention": 600})
    for first in range(0, JOBS, 1000):
        ids = [f"order-{n}" for n in range(first, first + 1000)]
        with raw.pipeline(transaction=False) as pipe:
            for job_id in ids:
                pipe.hset(f"{ROOT}job:{job_id}", "payload", payload)
            pipe.zadd(f"{ROOT}schedule", dict.fromkeys(ids, due))
            pipe.execute()


def test_each_of_many_requests_is_handled_once(fleet: Fleet, raw: Any, port: int) -> None:
    flags = ("--http-host", f"127.0.0.1:{port}", "--http-network", "127.0.0.0/8", "--processes", PROCESSES)
    fleet.start("dispatcher")
    fleet.start("worker", "evsched.targets:app", *flags)
    until = time.monotonic() + 60
    while raw.zcard(f"{ROOT}leases") < int(PROCESSES):
        assert time.monotonic() < until
        time.sleep(0.05)
    due = math.ceil(time.time() + 5)
    schedule(raw, port, due)
    assert time.time() < due, "they were scheduled in time"
    until = time.monotonic() + 200
    outcome: list[bytes | None] = []
    while len(outcome) < JOBS or not all(outcome):
        assert time.monotonic() < until, f"{outcome.count(b'done')} of {len(outcome)} are done"
        time.sleep(1)
        with raw.pipeline(transaction=False) as pipe:
            for n in range(JOBS):
                pipe.hget(f"{ROOT}job:order-{n}", "outcome")
            outcome = pipe.execute()
    dead = [n for n, found in enumerate(outcome) if found != b"done"]
    assert not dead, raw.hget(f"{ROOT}job:order-{dead[0]}", "reason")
    with urlopen(f"http://127.0.0.1:{port}/report") as response:
        report = json.load(response)
    first = sorted(arrivals[0] - due for arrivals in report["arrivals"].values())
    tries = sum(map(len, report["arrivals"].values()))
    last = max(arrivals[-1] - due for arrivals in report["arrivals"].values())
    least, half, most, end = (first[min(JOBS - 1, JOBS * part // 100)] for part in (0, 50, 99, 100))
    print(
        f"\n{JOBS} requests by {PROCESSES} worker processes: the first arrived {least:.3f} s after the due time, "
        f"half by {half:.2f} s, 99 % by {most:.2f} s, the last at {end:.2f} s; {JOBS / (end - least):.0f}/s. "
        f"{tries - JOBS} further attempts, the last at {last:.2f} s."
    )
    assert set(report["handled"].values()) == {1}
    assert len(report["handled"]) == JOBS
    assert tries > JOBS, "some of them failed"
    assert first[0] > 0, "none came early"
