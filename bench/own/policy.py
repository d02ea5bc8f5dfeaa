"""What policy does and costs: fair shares, weights, priorities, a rate. The order of starts is read from a file outside
Redis, the oracle, to which each job appends a line.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

from bench.figures import Figures, Table, percentile
from bench.server import Server, server
from evsched import Retry
from evsched.client.client import SyncClient
from evsched.client.new_job import JobOptions, new_job
from evsched.store.client_calls import New
from evsched.store.store import Store


class _Stage:
    """A place with a dispatcher, a worker with few slots, and the oracle."""

    def __init__(self, where: Server, oracle: Path) -> None:
        self.where = where
        self.client = SyncClient(where.url)
        self.store = Store("default")
        self._oracle = oracle

    def job(self, name: str, seconds: float, group: str | None = None, priority: int | None = None) -> New:
        payload = new_job("note", (name, seconds), {}, JobOptions(retention=0)).payload
        return New(name, payload, priority, group)

    def lines(self) -> list[tuple[str, float]]:
        """Return (name, moment) of each start so far."""
        rows = [line.split() for line in self._oracle.read_text().splitlines()]
        return [(name, float(at)) for name, at in rows]

    def until(self, count: int) -> list[tuple[str, float]]:
        """Wait until so many jobs have started and no job is processing."""
        self.where.until(lambda: len(self.lines()) >= count)
        self.where.until(lambda: not self.where.redis.keys("evsched:{default}:processing:*"))
        return self.lines()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Pause the queue, and resume it when all jobs that were scheduled meanwhile are in the backlog."""
        self.client.send(self.store.pause())
        yield
        self.where.until(lambda: not self.where.redis.exists("evsched:{default}:schedule"))
        self.client.send(self.store.resume())


@contextmanager
def _stage(slots: int = 4) -> Generator[_Stage]:
    with tempfile.TemporaryDirectory() as folder, server() as where:
        oracle = Path(folder) / "starts"
        oracle.touch()
        os.environ["EVSCHED_TEST_ORACLE"] = str(oracle)
        with where.fleet("--concurrency", str(slots)):
            stage = _Stage(where, oracle)
            yield stage
            stage.client.close()


def _fairness(grouped: bool) -> Figures:
    """After 3 s many of Alice's jobs still wait: on 4 slots they take 7.5 s."""
    with _stage() as stage:
        began = time.time()
        stage.where.fill("default", [stage.job(f"a{n}", 0.01, "alice" if grouped else None) for n in range(3000)])
        time.sleep(max(0.0, began + 3 - time.time()))
        asked = time.time()
        stage.where.fill("default", [stage.job(f"b{n}", 0.01, "bob" if grouped else None) for n in range(4)])
        lines = stage.until(3004)
    bob = max(at for name, at in lines if name.startswith("b")) - asked
    return {"Bob's last start after, s": bob, "all, s": lines[-1][1] - lines[0][1]}


def _shares() -> Figures:
    """Three groups of 1,000 with weights 1, 1, 2: the shares of any 400 starts in a row while all have jobs left."""
    with _stage() as stage:
        stage.client.send(stage.store.limit({"weight:c": 2.0}))
        with stage.paused():
            for group in "abc":
                stage.where.fill("default", [stage.job(f"{group}{n}", 0.001, group) for n in range(1000)])
        order = "".join(name[0] for name, _ in stage.until(3000))
    most = dict.fromkeys("abc", 0.0)
    for at in range(2000 - 400):  # afterwards c has no jobs left
        window = order[at : at + 400]
        for group, share in (("a", 0.25), ("b", 0.25), ("c", 0.5)):
            most[group] = max(most[group], abs(window.count(group) / 400 / share - 1))
    return {f"off by at most, % ({group})": off * 100 for group, off in most.items()}


def _priorities(count: int = 10_000) -> Figures:
    """Jobs of mixed priority that are all due: how many started before one of a higher priority."""
    with _stage() as stage:
        with stage.paused():
            stage.where.fill("default", [stage.job(f"{n % 10}-{n}", 0.0, None, n % 10) for n in range(count)])
        order = [int(name[0]) for name, _ in stage.until(count)]
    early, highest = 0, 0
    for priority in reversed(order):
        highest = max(highest, priority)
        early += priority < highest
    return {"started before one of a higher priority": early}


def _rate(per_second: float = 200.0, seconds: float = 10.0) -> Figures:
    """A rate over ten seconds after the first burst: starts, their evenness, and script calls for each job."""
    with _stage(slots=64) as stage:
        stage.client.send(stage.store.limit({"rate": per_second}))
        stage.where.fill("default", [stage.job(f"r{n}", 0.0) for n in range(int(per_second * (seconds + 4)))])
        time.sleep(1)
        calls = stage.where.redis.info("commandstats")["cmdstat_evalsha"]["calls"]
        before = len(stage.lines())
        time.sleep(seconds)
        calls = stage.where.redis.info("commandstats")["cmdstat_evalsha"]["calls"] - calls
        done = len(stage.lines()) - before
        moments = [at for _, at in stage.lines()]
    began = moments[0] + 1
    inside = [at for at in moments if began <= at < began + seconds]
    gaps = [later - earlier for earlier, later in pairwise(inside)]
    return {
        "starts/s": len(inside) / seconds,
        "gap p50, ms": percentile(gaps, 0.5) * 1e3,
        "gap max, ms": max(gaps) * 1e3,
        "script calls/job": calls / done,
    }


def _single_attempts(attempts: int, count: int = 5000) -> Figures:
    """Jobs that are all due: with a single attempt each begins only once its mark is written."""
    with _stage(slots=64) as stage:
        payload = new_job("note", ("n",), {}, JobOptions(retention=0, retry=Retry(attempts=attempts))).payload
        with stage.paused():
            stage.where.fill("default", [New(f"n{n}", payload) for n in range(count)])
        moments = [at for _, at in stage.until(count)]
    return {"starts/s": count / (moments[-1] - moments[0])}


def tables() -> dict[str, Table]:
    return {
        "fairness": Table(
            "Alice's 3,000 jobs of 10 ms on 4 slots, and 3 s later 4 of Bob's",
            {"without groups": partial(_fairness, False), "with groups": partial(_fairness, True)},
        ),
        "shares": Table("Shares of any 400 starts in a row", {"weights a 1, b 1, c 2": _shares}),
        "priorities": Table("Due jobs of ten priorities", {"10,000 jobs": _priorities}),
        "attempts": Table(
            "Due jobs, by the attempts that they have",
            {f"attempts={attempts}": partial(_single_attempts, attempts) for attempts in (5, 1)},
        ),
        "rate": Table("A rate, after its first burst", {"200/s for 10 s": _rate}),
    }
