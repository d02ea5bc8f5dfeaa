"""A batch in three queues of a cluster, whose workers, dispatchers and primaries are killed again and again: it ends
once, with exact counts, soon after its last job.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from evsched import App
from evsched.store.batch_calls import BatchRecord
from tests.chaos.app import batch_ended, member
from tests.chaos.conftest import Fleet
from tests.chaos.test_failover import wait_until_replicated
from tests.support.cluster import Cluster, queue_on

JOBS = int(os.environ.get("CHAOS_BATCH_JOBS", "3000"))
KILLS = int(os.environ.get("CHAOS_BATCH_KILLS", "200"))
EVERY = 10
"""One kill in so many is that of a primary: a failover takes some seconds."""
SECONDS = 1.2
"""Of a job: so that jobs run until the last kill."""
SHORT = {"EVSCHED_LEASE": "2", "EVSCHED_TEST_HEARTBEAT": "0.5"}
WORKER = ("worker", "tests.chaos.app:app", "--concurrency", "5")
SOON = 30.0
"""Seconds from the last end to the callback, at most, on a machine that runs a dozen processes on two cores."""
AGAIN = 60.0
"""Seconds after which ends are carried again, to a server that has lost its last writes."""


@pytest.mark.timeout(1500)
def test_batch_ends_once_whatever_is_killed(tmp_path: Path) -> None:
    with Cluster(replicas=3) as cluster:
        queues = [queue_on(cluster, node, "batch") for node in cluster.nodes[:3]]
        fleet = Fleet(cluster.url, tmp_path / "oracle")
        settings = {**SHORT, "EVSCHED_QUEUES": ",".join(queues)}
        try:
            asyncio.run(_produce(cluster.url, queues))
            for queue in queues:
                wait_until_replicated(cluster, queue, replicas=1)
            began = time.time()
            last_kill = _kill_again_and_again(cluster, fleet, queues, settings)
            ended = _wait(cluster.url, queues[0], time.monotonic() + 600)
            time.sleep(AGAIN + 10)  # ends and callbacks are carried again, and change nothing
            end, calls = _ends(fleet)
        finally:
            fleet.stop()
    assert calls, "no callback has run"
    print(f"{JOBS} jobs, {KILLS} kills in {last_kill - began:.0f} s, {ended}")
    print(f"{len(fleet.lines())} ends of runs; the last job ended {end - last_kill:.1f} s after the last kill")
    print(f"the callback ran {calls[0][1] - end:.2f} s after the last end")
    assert (ended.state, ended.total, ended.done, ended.dead, ended.cancelled) == ("done", JOBS, JOBS, 0, 0)
    assert [what for what, _ in calls] == [f"done:{JOBS}:{JOBS}"]
    assert calls[0][1] - end < SOON + AGAIN


async def _produce(url: str, queues: list[str]) -> None:
    app = App(url=url)
    async with app.batch("b", queue=queues[0], on_done=batch_ended.using(queue=queues[1])) as batch:
        for number, queue in enumerate(queues):
            rows = [(SECONDS, n % 5 == 0) for n in range(number, JOBS, 3)]
            await batch.add_many(member.using(queue=queue), rows)
    await app.close()


def _kill_again_and_again(cluster: Cluster, fleet: Fleet, queues: list[str], settings: dict[str, str]) -> float:
    """Kill workers, dispatchers and primaries, and start them again; return when the last one was killed."""
    rng, commands = random.Random(11), [("dispatcher",), ("dispatcher",), WORKER, WORKER, WORKER]
    running: list[subprocess.Popen[bytes]] = [fleet.start(*words, **settings) for words in commands]
    for number in range(KILLS):
        if number % EVERY == EVERY - 1:
            queue = rng.choice(queues)
            old = cluster.primary(queue)
            os.kill(old.pid, signal.SIGKILL)
            cluster.wait_for_failover(old, queue)
            old.kill()
            old.start()
            cluster.wait_for_replicas()
        else:
            time.sleep(rng.uniform(0.1, 1.2))
            at = rng.randrange(len(commands))
            running[at].kill()
            running[at].wait()
            running[at] = fleet.start(*commands[at], **settings)
    return time.time()


def _wait(url: str, home: str, until: float) -> BatchRecord:
    while True:
        found = asyncio.run(_status(url, home))
        if found.finished is not None:
            return found
        assert time.monotonic() < until, f"the batch does not end: {found}"
        time.sleep(0.5)


async def _status(url: str, home: str) -> BatchRecord:
    app = App(url=url)
    try:
        return await app.known_batch("b", queue=home).status()
    finally:
        await app.close()


def _ends(fleet: Fleet) -> tuple[float, list[tuple[str, float]]]:
    """Return when the last job of the batch ended first, and the callbacks that have run."""
    first, calls = dict[str, float](), list[tuple[str, float]]()
    for what, job, _, _, at in fleet.lines():
        if what == "end":
            first.setdefault(job, at)
        else:
            calls.append((what, at))
    return max(first.values()), calls
