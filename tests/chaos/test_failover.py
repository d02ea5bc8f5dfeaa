"""Failovers by real sentinels and in a real cluster, under load: nothing that was replicated is lost, and jobs are soon
on time again.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from tests.chaos.conftest import Fleet
from tests.support.cluster import Cluster
from tests.support.patience import PATIENCE
from tests.support.sentinels import Sentinels

ROUNDS = 6
JOBS = 1000
SPACE = 0.012
"""Seconds between two dues: the last is due long after the failover."""
SOON = 5.0
"""Seconds after the promotion within which jobs are on time again."""
ON_TIME = 0.25
"""Seconds that a job may be late by then, on a machine that runs a dozen processes on two cores."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [Sentinels, lambda: Cluster(replicas=6)], ids=["Sentinel", "cluster"])
def test_failovers_lose_nothing_that_was_replicated(tmp_path: Path, kind: Callable[[], Sentinels | Cluster]) -> None:
    with kind() as servers, closing(SyncClient(servers.url)) as client:
        fleet = Fleet(servers.url, tmp_path / "oracle")
        try:
            for words in (("dispatcher",), ("worker", "tests.chaos.app:app")) * 2:
                fleet.start(*words)
            _fail_over_again_and_again(servers, client, fleet)
        finally:
            fleet.stop()


def _fail_over_again_and_again(servers: Sentinels | Cluster, client: SyncClient, fleet: Fleet) -> None:
    again = 0
    for number in range(ROUNDS):
        wait_until_replicated(servers)  # the replicas of the round before
        jobs = [new_job("harmless", (), {}, JobOptions(id=f"f{number}-{n}", delay=1 + SPACE * n)) for n in range(JOBS)]
        dues = dict(zip((job.id for job in jobs), client.enqueue("chaos", jobs), strict=True))
        old = servers.primary("chaos")
        wait_until_replicated(servers)
        time.sleep(2)
        # A cluster tells nobody that a primary was replaced: those who wait at one that hangs time out first.
        frozen = number % 2 == 1 and isinstance(servers, Sentinels)
        os.kill(old.pid, signal.SIGSTOP if frozen else signal.SIGKILL)
        lost = time.time()
        servers.wait_for_failover(old, "chaos")
        promoted = time.time()
        starts = _wait_for(fleet, dues)
        again += sum(len(runs) - 1 for runs in starts.values())
        late = [starts[job][0] - due for job, due in dues.items() if due > promoted + SOON]
        first = min(at for runs in starts.values() for at in runs if at > promoted)
        print(
            f"{'frozen' if frozen else 'killed'}: promoted after {promoted - lost:.1f} s, first start "
            f"{first - promoted:.2f} s later; of {len(late)} jobs due {SOON:g} s later: "
            f"{1000 * statistics.median(late):.1f} ms late at the median, {1000 * max(late):.0f} ms at most"
        )
        assert min(starts[job][0] - due for job, due in dues.items()) >= 0, "a job was early"
        assert max(late) < ON_TIME
        if frozen:
            os.kill(old.pid, signal.SIGCONT)
        else:
            old.kill()
            old.start()
        servers.wait_for_replicas()
    print(f"{ROUNDS * JOBS} jobs, none lost; {again} ran again, because their ends were not replicated")


def wait_until_replicated(servers: Sentinels | Cluster, queue: str = "chaos", replicas: int = 2) -> None:
    """Wait until replicas of the primary of a queue have all writes. One that was a primary takes a while to follow."""
    client, until = servers.client(servers.primary(queue)), time.monotonic() + PATIENCE
    client.incr(f"written:{{{queue}}}")  # WAIT is about what its own connection has written
    while client.wait(replicas, 5000) < replicas:  # a cluster may give a primary a third
        assert time.monotonic() < until, "the replicas do not follow"


def _wait_for(fleet: Fleet, dues: dict[str, float]) -> dict[str, list[float]]:
    """Wait until each job has ended; return when each was started."""
    until = time.monotonic() + 60
    while True:
        lines = [line for line in fleet.lines() if line[1] in dues]
        missing = dues.keys() - {job for what, job, *_ in lines if what == "end"}
        if not missing:
            break
        assert time.monotonic() < until, f"{len(missing)} jobs are lost, such as {sorted(missing)[:3]}"
        time.sleep(0.2)
    starts: dict[str, list[float]] = {job: [] for job in dues}
    for what, job, _, _, at in lines:
        if what == "start":
            starts[job].append(at)
    return starts
