"""10,000 of 100,000 jobs are changed by a filter while workers run, and are killed: exactly those, and nothing else."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Any, Self

import pytest

from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.client.sweep import Filter, Swept
from evsched.transport.embedded import EmbeddedRedis
from tests.chaos.conftest import Fleet
from tests.support.examine import examine, problems
from tests.support.patience import PATIENCE
from tests.support.plain import plain_client

JOBS, EVERY = 100_000, 10
"""Every tenth job is of the group that is changed."""

BUSY = 2_000
"""Jobs that are due meanwhile, so that workers run while others are changed."""

FAR = 2e9
SHORT = {"EVSCHED_LEASE": "2", "EVSCHED_TEST_HEARTBEAT": "0.5"}
ROOT = "evsched:{chaos}:"
OURS = Filter(group="ours")


class Killer:
    """Kills a worker as often as once a second if jobs end meanwhile, and starts another."""

    def __init__(self, fleet: Fleet) -> None:
        self.kills = 0
        self._fleet, self._rng, self._end = fleet, random.Random(11), Event()
        self._workers = [self._start() for _ in range(2)]
        self._thread = Thread(target=self._run)

    def _start(self) -> Any:
        return self._fleet.start("worker", "tests.chaos.app:app", "--concurrency", "20", **SHORT)

    def _run(self) -> None:
        ended = 0
        while not self._end.wait(self._rng.uniform(0.5, 1.0)):
            if (now := len(_done(self._fleet))) == ended:
                continue
            ended, victim = now, self._rng.randrange(2)
            self._workers[victim].kill()
            self._workers[victim].wait()
            self._workers[victim] = self._start()
            self.kills += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def far(n: int) -> Any:
    return new_job(
        "harmless", (), {}, JobOptions(id=f"far{n}", due=FAR + n, group="ours" if n % EVERY == 0 else "others")
    )


def schedule(raw: Any) -> dict[str, float]:
    return {job.decode(): due for job, due in raw.zscan_iter(f"{ROOT}schedule", count=1000) if job.startswith(b"far")}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
def test_a_tenth_of_the_scheduled_jobs_is_changed_and_nothing_else(
    fleet: Fleet, client: SyncClient, server: EmbeddedRedis, verb: str
) -> None:
    """Also jobs of the group that are due: each is changed, or runs, and is counted accordingly."""
    raw = plain_client(server.url)
    client.enqueue("chaos", [far(n) for n in range(JOBS)])
    before = schedule(raw)
    assert len(before) == JOBS
    fleet.start("dispatcher", **SHORT)
    names = {"ours": [f"o{n}" for n in range(BUSY)], "others": [f"t{n}" for n in range(BUSY)]}
    client.enqueue(
        "chaos",
        [
            new_job("harmless", (0.01,), {}, JobOptions(id=job, group=group, due=client.now() + n / 200))
            for group, jobs in names.items()
            for n, job in enumerate(jobs)
        ],
    )
    with Killer(fleet) as killer:
        _wait(lambda: len(_done(fleet)) > 50)
        begun = time.monotonic()
        swept = (
            client.cancel_matching("chaos", OURS)
            if verb == "cancel"
            else client.reschedule_matching("chaos", OURS, FAR + JOBS)
        )
        lasted, changed = time.monotonic() - begun, time.time()
        after = schedule(raw)
        tenth = {f"far{n}" for n in range(0, JOBS, EVERY)}
        if verb == "cancel":
            assert after == {job: due for job, due in before.items() if job not in tenth}
        else:
            assert after == {**before, **dict.fromkeys(tenth, FAR + JOBS)}
        moved = swept.changed - len(tenth)
        gone = [job for job in names["ours"] if verb == "cancel" and not raw.exists(f"{ROOT}job:{job}")]
        later = {job.decode() for job in raw.zrangebyscore(f"{ROOT}schedule", FAR + JOBS, FAR + JOBS)} & {
            *names["ours"]
        }
        assert moved == (len(gone) if verb == "cancel" else len(later))
        assert 0 < moved < BUSY
        unchanged = {*names["others"]} | {*names["ours"]} - {*gone} - later
        _wait(lambda: unchanged <= _done(fleet))
    # A run that was killed before may have returned its job to those that wait.
    started = {job for what, job, _, _, at in fleet.lines() if what == "start" and (at > changed or job in tenth)}
    assert not started & ({*gone} | later | tenth)
    _wait(lambda: not raw.exists(f"{ROOT}ready", f"{ROOT}backlog") and not raw.keys(f"{ROOT}processing:*"))
    assert raw.zcard(f"{ROOT}dead") == 0
    _audit_finds_nothing(server)
    print(f"{verb}: {swept} in {lasted:.1f} s, {killer.kills} kills, {moved} of the jobs that were due")
    raw.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("verb", ["revive", "drop"])
def test_a_tenth_of_the_dead_jobs_is_changed_and_nothing_else(
    fleet: Fleet, client: SyncClient, server: EmbeddedRedis, verb: str
) -> None:
    raw = plain_client(server.url)
    died = client.now()
    client.enqueue("chaos", [far(n) for n in range(JOBS)])
    pipe = raw.pipeline(transaction=False)
    for n in range(JOBS):
        reason = "ConnectionError: refused" if n % EVERY == 0 else "ValueError: no luck"
        pipe.hset(f"{ROOT}job:far{n}", mapping={"reason": reason, "outcome": "dead", "finished": f"{died:.6f}"})
        pipe.zadd(f"{ROOT}dead", {f"far{n}": died})
        if n % 5000 == 4999:
            pipe.execute()
    raw.delete(f"{ROOT}schedule")
    fleet.start("dispatcher", **SHORT)
    with Killer(fleet) as killer:
        connection = Filter(reason="connectionerror")
        tenth = {f"far{n}" for n in range(0, JOBS, EVERY)}
        client.enqueue("chaos", [new_job("harmless", (0.01,), {}, JobOptions(id=f"t{n}")) for n in range(BUSY)])
        swept = (
            client.revive_matching("chaos", connection)
            if verb == "revive"
            else client.drop_matching("chaos", connection)
        )
        assert swept == Swept(len(tenth), len(tenth))
        left = {job.decode() for job, _ in raw.zscan_iter(f"{ROOT}dead", count=1000)}
        assert left == {f"far{n}" for n in range(JOBS)} - tenth
        expected = {f"t{n}" for n in range(BUSY)} | (tenth if verb == "revive" else set[str]())
        _wait(lambda: expected <= _done(fleet))
    assert {job for what, job, *_ in fleet.lines() if what == "start"} == expected
    _wait(lambda: not raw.keys(f"{ROOT}processing:*"))
    assert raw.zcard(f"{ROOT}dead") == JOBS - len(tenth)
    _audit_finds_nothing(server)
    print(f"{verb}: {swept}, {killer.kills} kills")
    raw.close()


def _done(fleet: Fleet) -> set[str]:
    return {job for what, job, *_ in fleet.lines() if what == "end"}


def _wait(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 3 * PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.3)


def _audit_finds_nothing(server: EmbeddedRedis) -> None:
    checks = {"eviction", "persistence"}  # about the settings of a server that is made for tests
    found = [finding for finding in problems(asyncio.run(examine(server.url))) if finding.check not in checks]
    assert found == []
