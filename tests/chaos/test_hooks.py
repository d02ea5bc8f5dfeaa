"""kill -9 at the ends of runs: each job that ends has called its hook, and called it once."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter, defaultdict
from threading import Event, Thread
from typing import Any

import pytest

from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.diagnostics.audit import Audit
from evsched.diagnostics.finding import Finding
from evsched.store.client_calls import New
from evsched.transport.senders import BatchingSender
from tests.chaos.conftest import Fleet
from tests.support.inline import enqueue_half_inline

SHORT = {"EVSCHED_LEASE": "1.5", "EVSCHED_TEST_HEARTBEAT": "0.3"}
KILLS = 50
WORKERS = 4
BATCH = 1000


class Producer(Thread):
    """Keeps a batch of jobs waiting until it is stopped; half of them fail."""

    def __init__(self, url: str, raw: Any, seed: int) -> None:
        super().__init__(daemon=True)
        self.ids = list[str]()
        self._client = SyncClient(url)
        self._raw = raw
        self._rng = random.Random(seed)
        self._stopping = Event()

    def run(self) -> None:
        while not self._stopping.wait(0.1):
            if self._raw.zcard("evsched:{chaos}:schedule") + self._raw.zcard("evsched:{chaos}:backlog") < BATCH:
                self._schedule()

    def _schedule(self) -> None:
        ids = [f"e{n}" for n in range(len(self.ids), len(self.ids) + BATCH)]
        jobs = list[New]()
        for job_id in ids:
            arguments = self._rng.uniform(0, 0.2), self._rng.random() < 0.5
            jobs.append(new_job("end", arguments, {}, JobOptions(id=job_id, retention=3600)))
        self.ids += enqueue_half_inline(self._client, self._raw, "chaos", jobs)

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._client.close()


@pytest.fixture(autouse=True)
def the_server_is_empty(raw: Any) -> None:
    raw.flushdb()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(4))
def test_fifty_kills_at_the_ends_of_runs(fleet: Fleet, raw: Any, seed: int) -> None:
    """Four seeds: two hundred kills, or more until one came between the end of a handler and its write."""
    rng = random.Random(seed)
    children = [fleet.start("dispatcher", **SHORT) for _ in range(2)]
    workers = [start_worker(fleet) for _ in range(WORKERS)]
    producer = Producer(fleet.url, raw, seed)
    producer.start()
    killed = 0
    while killed < KILLS or (killed < 5 * KILLS and not ended_again(fleet)):
        victim = rng.randrange(WORKERS)
        # In the instant after the handler has ended; the worker writes the end within a millisecond.
        wait_for_an_end(fleet, workers[victim].pid)
        time.sleep(rng.choice([0, 0, 0.0005, 0.001, 0.002]))
        workers[victim].kill()
        workers[victim].wait()
        workers[victim] = start_worker(fleet)
        killed += 1
        if killed % 10 == 0:  # a dispatcher too
            children[0].kill()
            children[0].wait()
            children[0] = fleet.start("dispatcher", **SHORT)
    producer.stop()
    wait_until_idle(raw)

    told = defaultdict[str, set[str]](set)
    outcomes = Counter[str]()
    for what, job, *_ in fleet.lines():
        if what != "end":
            outcome, _, ended = what.partition(":")
            told[ended].add(job)
            assert job.startswith(f"{ended}.{outcome}.")
    for job in producer.ids:
        outcome = raw.hget(f"evsched:{{chaos}}:job:{job}", "outcome")
        outcomes[outcome.decode()] += 1
        (hooked,) = told.pop(job)
        assert hooked.startswith(f"{job}.{outcome.decode()}.")
    assert not told
    assert findings(fleet.url) == []
    again = ended_again(fleet)
    print(f"{killed} kills; {dict(outcomes)}; {again} runs had ended and were run again, as their end was not written")
    assert again


def ended_again(fleet: Fleet) -> int:
    """Return how many runs had ended when their worker was killed, and were run again."""
    ends = Counter(job for what, job, *_ in fleet.lines() if what == "end")
    return sum(count - 1 for count in ends.values())


def start_worker(fleet: Fleet) -> Any:
    return fleet.start("worker", "tests.chaos.app:app", "--concurrency", "10", **SHORT)


def wait_for_an_end(fleet: Fleet, pid: int) -> None:
    """Wait until a handler of this worker has just ended."""
    until, read = time.monotonic() + 100, fleet.oracle.stat().st_size
    needle = f" {pid} ".encode()
    with fleet.oracle.open("rb") as file:
        file.seek(read)
        while time.monotonic() < until:
            if any(line.startswith(b"end ") and needle in line for line in file.readlines()):
                return
    raise AssertionError("no handler of this worker ends")


def wait_until_idle(raw: Any) -> None:
    """Wait until every job, including those of hooks, has ended."""
    until = time.monotonic() + 120
    while any(
        key.rpartition(b":")[2] in (b"schedule", b"backlog", b"ready") or b":processing:" in key
        for key in raw.keys("evsched:{chaos}:*")
        if b":job:" not in key
    ):
        assert time.monotonic() < until, "jobs were lost, or hang"
        time.sleep(0.2)


def findings(url: str) -> list[Finding]:
    async def audit() -> list[Finding]:
        sender = BatchingSender(url)
        try:
            return await Audit(sender, ["chaos"]).run()
        finally:
            await sender.close()

    return asyncio.run(audit())
