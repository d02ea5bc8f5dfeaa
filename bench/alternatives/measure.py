"""Measure the designs: what they cost, how exact they are, and what a dispatcher's absence loses."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from bench.alternatives.client import Design
from bench.alternatives.designs import DESIGNS
from bench.comparison import lateness, sparse_dues
from bench.figures import Failed, Figures, Table
from bench.processes import CHECKOUT, cpu
from bench.scale import Scale
from bench.server import Server, server

_FAR: Final = 1e6
"""Seconds until the jobs are due that only wait."""

_LATE: Final = 20.0
"""Seconds for which the benchmark waits for late jobs."""

_AWAY: Final = 100
"""Jobs that become due while no dispatcher runs."""


class _Trial:
    """A server with one design on it, and the only worker, which notes when jobs become ready."""

    def __init__(self, where: Server, design: Design, name: str) -> None:
        self.where = where
        self.arrivals = Counter[str]()
        self._design, self._name = design, name
        where.redis.config_set("notify-keyspace-events", design.events)

    def schedule(self, prefix: str, dues: list[float]) -> None:
        pipe = self.where.redis.pipeline(transaction=False)
        for n, due in enumerate(dues):
            self._design.schedule(pipe, due, f"{prefix}-{n}")
        pipe.execute()

    def collect(self, count: int, end: float) -> dict[str, float]:
        """Fetch ready jobs until so many have come, or until this Unix second; return when each came."""
        came = dict[str, float]()
        while len(came) < count and time.time() < end:
            reply: Any = self.where.redis.blmpop(1.0, 1, "ready", direction="LEFT", count=256)
            now = time.time()
            if reply:
                jobs = [job.decode() for job in reply[1]]
                came |= dict.fromkeys(jobs, now)
                self.arrivals.update(jobs)
                pipe = self.where.redis.pipeline(transaction=False)
                self._design.finish(pipe, jobs)
                pipe.execute()
        return came

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


def _sparse(trial: _Trial, group: _Group, count: int) -> Figures:
    dues = sparse_dues(count, time.time() + 1)
    trial.schedule("s", dues)
    sent = group.sent()
    came = trial.collect(count, dues[-1] + _LATE)
    if len(came) < count:
        raise Failed(f"{len(came)} of {count} sparse jobs came")
    late = lateness([came[f"s-{n}"] - due for n, due in enumerate(dues)])
    figures: dict[str, float | None] = {f"sparse: {column}": value for column, value in late.items()}
    return {**figures, "sparse: sent/job": (group.sent() - sent) / count}


def _instant(trial: _Trial, group: _Group, count: int) -> Figures:
    due = time.time() + 2 + count / 10_000
    trial.schedule("i", [due] * count)
    time.sleep(0.5)
    used, redis = group.cpu(), cpu(trial.where.pid)
    came = trial.collect(count, due + _LATE)
    used, redis = group.cpu() - used, cpu(trial.where.pid) - redis
    if len(came) < count:
        raise Failed(f"{len(came)} of {count} jobs of one instant came")
    return {
        "instant: last, s": max(came.values()) - due,
        "instant: CPU µs/job": used / count * 1e6,
        "instant: Redis µs/job": redis / count * 1e6,
    }


def _away(trial: _Trial, dispatchers: int) -> Figures:
    """Let jobs become due while no dispatcher runs; count those that come when they run again."""
    due = time.time() + 0.3
    trial.schedule("a", [due] * _AWAY)
    time.sleep(2)
    with trial.dispatchers(dispatchers):
        came = trial.collect(_AWAY, time.time() + 5)
    return {f"lost of {_AWAY} due while away": _AWAY - len(came)}


def figures(name: str, dispatchers: int, scale: Scale) -> Figures:
    """Measure one design with so many dispatchers. Far jobs wait all the time."""
    with server() as where:
        trial = _Trial(where, DESIGNS[name], name)
        measured = dict(_memory(trial, scale.stored))
        with trial.dispatchers(dispatchers) as group:
            measured |= _idle(group, scale.idle / 3)
            measured |= _sparse(trial, group, scale.sparse)
            measured |= _instant(trial, group, scale.instant)
        measured |= _away(trial, dispatchers)
        return measured | {"came twice": sum(times > 1 for times in trial.arrivals.values())}


def table(scale: Scale) -> Table:
    """Return the table of all designs, with one dispatcher and with four."""
    rows = {f"{name}, {count}": partial(figures, name, count, scale) for name in DESIGNS for count in (1, 4)}
    return Table("Designs of a dispatcher, by the number of dispatchers", rows, scale.rounds)
