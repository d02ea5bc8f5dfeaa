"""Measure the designs: what they cost, how exact they are, and what a dispatcher's absence loses."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import Any, Final

from bench.alternatives.client import Design
from bench.alternatives.designs import DESIGNS
from bench.figures import Failed, Figures, Table, percentile
from bench.processes import CHECKOUT, cpu
from bench.scale import Scale
from bench.server import Server, server
from bench.sparse import sparse_dues

_FAR: Final = 1e6
"""Seconds until the jobs are due that only wait."""

_LATE: Final = 20.0
"""Seconds for which the benchmark waits for late jobs."""

_WRITES: Final = 500
"""Jobs that another client schedules each second, where it says that the schedule is written to."""

_AWAY: Final = 100
"""Jobs that become due while no dispatcher runs."""


class _Trial:
    """A server with one design on it, and the only worker, which notes when jobs become ready."""

    def __init__(self, where: Server, design: Design, name: str) -> None:
        self.where = where
        self.arrivals = Counter[str]()
        self.missing = 0
        self._design, self._name = design, name
        where.redis.config_set("notify-keyspace-events", design.events)

    def schedule(self, prefix: str, dues: list[float]) -> None:
        pipe = self.where.redis.pipeline(transaction=False)
        for n, due in enumerate(dues):
            self._design.schedule(pipe, due, f"{prefix}-{n}")
        pipe.execute()

    def collect(self, prefix: str, dues: list[float], patience: float = _LATE) -> list[float]:
        """Fetch ready jobs until all of these have come, or some seconds after the last was due; return their lateness.

        Those that do not come are counted as missing.
        """
        came, end = dict[str, float](), dues[-1] + patience
        left = {f"{prefix}-{n}" for n in range(len(dues))}
        while left and time.time() < end:
            reply: Any = self.where.redis.blmpop(1.0, 1, "ready", direction="LEFT", count=256)
            now = time.time()
            if reply:
                jobs = [job.decode() for job in reply[1]]
                came |= dict.fromkeys(jobs, now)
                left.difference_update(jobs)
                self.arrivals.update(jobs)
                pipe = self.where.redis.pipeline(transaction=False)
                self._design.finish(pipe, jobs)
                pipe.execute()
        self.missing += len(left)
        return [came[job] - due for n, due in enumerate(dues) if (job := f"{prefix}-{n}") in came]

    @contextmanager
    def written_to(self) -> Generator[None]:
        """Let another client schedule far jobs, one at a time."""
        stop, client = Event(), self.where.client()

        def write() -> None:
            number, start = 0, time.monotonic()
            while not stop.wait(max(0.0, start + number / _WRITES - time.monotonic())):
                self._design.schedule(client, time.time() + _FAR, f"written-{number}")
                number += 1

        thread = Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            client.close()

    @contextmanager
    def dispatchers(self, count: int) -> Generator[_Group]:
        """Run dispatchers, and wait until they work."""
        command = [sys.executable, "-m", "bench.alternatives", self._name, self.where.url]
        group = _Group([_spawn(command) for _ in range(count)])
        try:
            group.sent()  # they have started
            time.sleep(0.5)  # and have subscribed
            yield group
        finally:
            group.close()


def _spawn(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT)


class _Group:
    """The dispatchers' processes."""

    def __init__(self, children: list[subprocess.Popen[str]]) -> None:
        self._children = children

    def sent(self) -> int:
        """Return how many commands they have sent."""
        total = 0
        for child in self._children:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("\n")
            child.stdin.flush()
            total += int(child.stdout.readline() or 0)
        return total

    def cpu(self) -> float:
        return cpu(*(child.pid for child in self._children))

    def close(self) -> None:
        for child in self._children:
            child.communicate()


def _memory(trial: _Trial, count: int) -> Figures:
    before, now = trial.where.memory(), time.time()
    trial.schedule("far", [now + _FAR + n for n in range(count)])
    return {"bytes/job": (trial.where.memory() - before) / count}


def _idle(group: _Group, seconds: float) -> Figures:
    sent, used = group.sent(), group.cpu()
    time.sleep(seconds)
    return {"idle: sent/s": (group.sent() - sent) / seconds, "idle: CPU %": (group.cpu() - used) / seconds * 100}


def _sparse(trial: _Trial, group: _Group, count: int, prefix: str) -> Figures:
    sent, dues = group.sent(), sparse_dues(count, time.time() + 1)
    trial.schedule(prefix, dues)
    late = trial.collect(prefix, dues)
    return {
        f"{prefix}: p50, ms": percentile(late, 0.5) * 1e3,
        f"{prefix}: p99, ms": percentile(late, 0.99) * 1e3,
        f"{prefix}: sent/job": (group.sent() - sent) / count,
    }


def _instant(trial: _Trial, group: _Group, count: int) -> Figures:
    due = time.time() + 2 + count / 10_000
    trial.schedule("instant", [due] * count)
    time.sleep(0.5)
    if time.time() > due:
        raise Failed("the jobs were due before all were scheduled")
    used, redis = group.cpu(), cpu(trial.where.pid)
    late = trial.collect("instant", [due] * count)
    used, redis = group.cpu() - used, cpu(trial.where.pid) - redis
    return {
        "instant: last, s": max(late, default=None),
        "instant: CPU µs/job": used / count * 1e6,
        "instant: Redis µs/job": redis / count * 1e6,
    }


def _away(trial: _Trial, dispatchers: int) -> int:
    """Let jobs become due while no dispatcher runs; count those that do not come when they run again."""
    dues = [time.time() + 0.3] * _AWAY
    trial.schedule("away", dues)
    time.sleep(2)
    with trial.dispatchers(dispatchers):
        return _AWAY - len(trial.collect("away", dues, patience=8.0))


def figures(name: str, dispatchers: int, scale: Scale) -> Figures:
    """Measure one design with so many dispatchers. Far jobs wait all the time."""
    with server() as where:
        trial = _Trial(where, DESIGNS[name], name)
        measured = dict(_memory(trial, scale.stored))
        with trial.dispatchers(dispatchers) as group:
            measured |= _idle(group, scale.idle / 2)  # by default, the longest sleep of a dispatcher
            measured |= _sparse(trial, group, scale.sparse, "sparse")
            with trial.written_to():
                measured |= _sparse(trial, group, scale.sparse, "written to")
            measured |= _instant(trial, group, scale.instant)
            measured[f"over {_LATE:g} s late"] = trial.missing
        measured[f"lost of {_AWAY}"] = _away(trial, dispatchers)
        return measured | {"came twice": sum(times > 1 for times in trial.arrivals.values())}


_NOTE: Final = (
    f"Written to: sparse jobs while another client schedules {_WRITES} far jobs a second, one at a time. Lost: of "
    f"{_AWAY} jobs that become due while no dispatcher runs. Sent: by the dispatchers; commands inside scripts do not "
    "count. Lateness: of the jobs that came."
)


def table(scale: Scale) -> Table:
    """Return the table of all designs, with one dispatcher and with four."""
    rows = {f"{name} ({count})": partial(figures, name, count, scale) for name in DESIGNS for count in (1, 4)}
    return Table("Designs of a dispatcher (number of dispatchers)", rows, scale.rounds, _NOTE)
