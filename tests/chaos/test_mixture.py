"""Kills, restarts of Redis and deploys, mixed: no job is lost, none starts early, each end calls its hook once.

`CHAOS_SECONDS=600` makes it last longer than a minute, `EVSCHED_SEED=N` repeats its choices.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from threading import Event, Thread

import pytest
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.errors import StoreDown
from evsched.store.client_calls import New
from evsched.transport.embedded import EmbeddedRedis
from tests.chaos.conftest import Fleet
from tests.chaos.test_hooks import findings, wait_until_idle
from tests.support.inline import id_of
from tests.support.plain import plain_client

SHORT = {"EVSCHED_LEASE": "3", "EVSCHED_TEST_HEARTBEAT": "0.5"}
SECONDS = int(os.environ.get("CHAOS_SECONDS", "60"))
BATCH = 10
"""Jobs that are enqueued together, each tenth of a second."""


class Producer(Thread):
    """Enqueues jobs, due now or within seconds, until it is stopped. Unconfirmed calls are sent again."""

    def __init__(self, url: str, rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.ids = list[str]()
        """Of the jobs that Redis confirmed."""
        self.unconfirmed = set[str]()
        """Of the inline jobs that it did not: a client that sends such a ZADD again may schedule the job twice."""
        self._client = SyncClient(url)
        self._raw = plain_client(url, retry=Retry(NoBackoff(), 0))  # it would send a ZADD again
        self._number = 0
        self._rng = rng
        self._stopping = Event()

    def run(self) -> None:
        while not self._stopping.wait(0.1):
            jobs = [self._job(f"p{self._number + n}") for n in range(BATCH)]
            self._number += BATCH
            self._enqueue(jobs[::2])
            self._schedule_inline(jobs[1::2])

    def _enqueue(self, jobs: Sequence[New]) -> None:
        while True:
            try:
                self._client.enqueue("chaos", jobs, on_conflict="keep")
                break
            except StoreDown:
                time.sleep(0.05)
        self.ids += [job.id for job in jobs]

    def _schedule_inline(self, jobs: Sequence[New]) -> None:
        ids = [id_of(job.payload) for job in jobs]
        try:
            self._raw.zadd("evsched:{chaos}:schedule", {job.payload: job.due for job in jobs})
            self.ids += ids
        except RedisError:
            self.unconfirmed.update(ids)

    def _job(self, job_id: str) -> New:
        due = time.time() + self._rng.choice([0.0, 0.0, self._rng.uniform(0, 5)])
        arguments = due, self._rng.uniform(0, 0.2), self._rng.random() < 0.1
        return new_job("punctual", arguments, {}, JobOptions(id=job_id, due=due, retention=7200))

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._client.close()
        self._raw.close()


class Services:
    """Two dispatchers and three workers, each of which is replaced when it was ended."""

    def __init__(self, fleet: Fleet, server: EmbeddedRedis, rng: random.Random) -> None:
        self._fleet = fleet
        self._server = server
        self._rng = rng
        commands = [("dispatcher",)] * 2 + [("worker", "tests.chaos.app:app", "--concurrency", "10")] * 3
        self._services = [(command, fleet.start(*command, **SHORT)) for command in commands]
        self.faults = Counter[str]()

    def harm(self) -> None:
        """Do one of the harms, chosen by its weight."""
        harms: list[Callable[[], None]] = [self.kill, self.kill, self.kill, self.stop, self.deploy, self.restart_redis]
        harm = self._rng.choice(harms)
        harm()
        self.faults[harm.__name__] += 1

    def kill(self) -> None:
        """Kill one process."""
        self._replace(self._rng.randrange(len(self._services)), signal.SIGKILL)

    def stop(self) -> None:
        """Stop one process for longer than its lease, then continue it."""
        _, child = self._rng.choice(self._services)
        child.send_signal(signal.SIGSTOP)
        time.sleep(self._rng.uniform(0.5, 5))
        child.send_signal(signal.SIGCONT)

    def deploy(self) -> None:
        """Replace all processes, one after the other."""
        for n in range(len(self._services)):
            assert self._replace(n, signal.SIGTERM) in (0, -signal.SIGTERM)  # which ends it while Python still starts

    def restart_redis(self) -> None:
        """Kill Redis or shut it down, and start it with the data on disk."""
        self._server.kill() if self._rng.random() < 0.5 else self._server.stop()
        time.sleep(self._rng.uniform(0, 1))
        self._server.start()

    def _replace(self, n: int, how: signal.Signals) -> int:
        command, child = self._services[n]
        child.send_signal(how)
        code = child.wait(60)
        self._services[n] = command, self._fleet.start(*command, **SHORT)
        return code


@pytest.fixture
def own() -> Generator[EmbeddedRedis]:
    """A server that loses nothing when it is killed. With `everysec` it postpones writes while the disk is busy."""
    with EmbeddedRedis(port=0, appendfsync="always") as server:
        yield server


@pytest.mark.timeout(SECONDS + 400)
def test_kills_restarts_and_deploys_lose_nothing(own: EmbeddedRedis, tmp_path: Path) -> None:
    seed = int(os.environ.get("EVSCHED_SEED") or secrets.randbelow(2**32))
    print(f"EVSCHED_SEED={seed}")  # shown when it fails
    rng, fleet = random.Random(seed), Fleet(own.url, tmp_path / "oracle")
    try:
        services, producer = Services(fleet, own, rng), Producer(own.url, random.Random(seed))
        producer.start()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(rng.uniform(0.2, 2))
            services.harm()
        producer.stop()
        raw = plain_client(own.url)
        wait_until_idle(raw)
        lines = fleet.lines()
        assert findings(own.url) == []
    finally:
        fleet.stop()
    starts, hooks = Counter[str](), defaultdict[str, set[str]](set)
    for what, job, *_ in lines:
        if what == "start":
            starts[job] += 1
        else:
            assert what != "early", job
            hooks[what.partition(":")[2]].add(job)
    assert starts.keys() - producer.unconfirmed == {*producer.ids}
    assert hooks.keys() == starts.keys()
    assert not {job: called for job, called in hooks.items() if len(called) > 1}
    again = sum(starts.values()) - len(starts)
    print(f"{SECONDS} s, {len(starts)} jobs, {dict(services.faults)}; {again} runs were cut short and made again")
    raw.close()
