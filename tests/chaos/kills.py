"""Kills of workers, dispatchers and primaries of a cluster, from the first job of a batch to the last."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence

from tests.chaos.conftest import Fleet
from tests.support.cluster import Cluster

EVERY = 10
"""One kill in so many is that of a primary: a failover takes some seconds."""
STILL = 120.0
"""Seconds without an end after which the test gives up."""
_SHORT = {"EVSCHED_LEASE": "2", "EVSCHED_TEST_HEARTBEAT": "0.5"}


class Killer:
    """Two dispatchers and three workers, which it starts again when it has killed them.

    The kills keep pace with the ends: number n is made when n in `kills` of the jobs have ended.
    """

    def __init__(self, cluster: Cluster, fleet: Fleet, queues: Sequence[str], slots: int) -> None:
        self._cluster = cluster
        self._fleet = fleet
        self._queues = queues
        self._settings = {**_SHORT, "EVSCHED_QUEUES": ",".join(queues)}
        worker = ("worker", "tests.chaos.app:app", "--concurrency", str(slots))
        self._commands = [("dispatcher",), ("dispatcher",), worker, worker, worker]
        self._running: list[subprocess.Popen[bytes]] = []
        self.killed: list[float] = []
        """When, Unix seconds."""

    def kill_until_all_have_ended(self, jobs: int, kills: int) -> None:
        """Start all, and kill again and again."""
        rng = random.Random(11)
        self._running = [self._fleet.start(*words, **self._settings) for words in self._commands]
        while len(self.killed) < kills:
            time.sleep(rng.uniform(0.1, 1.2))
            if self._wait_for_ends(jobs * len(self.killed) // kills) == jobs:
                break
            self.killed.append(time.time())
            if len(self.killed) % EVERY == 0:
                self._kill_primary(rng.choice(self._queues))
            else:
                self._kill_process(rng.randrange(len(self._commands)))
        self._wait_for_ends(jobs)

    def _wait_for_ends(self, count: int) -> int:
        """Wait until so many jobs have ended; return how many have."""
        ended, since = -1, time.monotonic()
        while True:
            now = len({job for what, job, *_ in self._fleet.lines() if what == "end"})
            if now > ended:
                ended, since = now, time.monotonic()
            if ended >= count:
                return ended
            assert time.monotonic() - since < STILL, f"{ended} jobs have ended, and no more do"
            time.sleep(0.05)

    def _kill_process(self, at: int) -> None:
        self._running[at].kill()
        self._running[at].wait()
        self._running[at] = self._fleet.start(*self._commands[at], **self._settings)

    def _kill_primary(self, queue: str) -> None:
        old = self._cluster.primary(queue)
        os.kill(old.pid, signal.SIGKILL)
        self._cluster.wait_for_failover(old, queue)
        old.kill()
        old.start()
        self._cluster.wait_for_replicas()
