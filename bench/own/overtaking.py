"""A job of the highest priority becomes due while very many others wait: how many of them run before it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from typing import Final, NamedTuple

from bench.figures import Failed, Figures, Table
from bench.scale import Scale
from bench.server import Server
from bench.sparse import LATE
from bench.stage import Stage, stage

_HIGHEST: Final = 9
_EVERY: Final = 0.005
"""Seconds between two looks at what the worker has fetched."""

_SECONDS: Final = 0.03
"""From one due job of the highest priority to the next, on average."""

_SPARE: Final = 3.0
"""Seconds for which the waiting jobs last at least when all of the highest priority have run."""


class _Work(NamedTuple):
    """What the waiting jobs do, and on how many slots."""

    slots: int
    waits: float = 0.0
    """Seconds that a job waits."""
    busy: float = 0.0
    """Seconds for which a job keeps the processor busy."""

    def lasts(self, seconds: float) -> int:
        """Return a number of jobs that takes at least so long."""
        return int(seconds / (self.busy or self.waits / self.slots))


_WORKS: Final = {
    "jobs that compute for 1 ms, 256 slots": _Work(256, busy=0.001),
    "jobs that wait for 10 ms, 16 slots": _Work(16, waits=0.01),
}


@contextmanager
def _looked_at(where: Server) -> Generator[list[int]]:
    """Count again and again how many jobs the worker has fetched and not ended; yield the counts."""
    stop, client, counts = Event(), where.client(), list[int]()

    def look() -> None:
        workers: list[bytes] = client.zrange("evsched:{default}:leases", 0, -1)
        keys = [b"evsched:{default}:processing:" + worker for worker in workers]
        while not stop.wait(_EVERY):
            counts.append(sum(client.llen(key) for key in keys))

    thread = Thread(target=look)
    thread.start()
    try:
        yield counts
    finally:
        stop.set()
        thread.join()
        client.close()


def _crowded(one: Stage, work: _Work, seconds: float) -> tuple[int, int]:
    """Let a worker begin with jobs that last for so long; return the number of the first, and how many they are."""
    count = work.lasts(seconds)
    due = one.soon(count)
    first = one.schedule([due] * count, seconds=work.waits, busy=work.busy)
    if one.oracle.wait_for_one(first, count, due - time.time() + LATE) > count // 2:
        raise Failed("half of the waiting jobs ran before all were scheduled")
    return first, count


def _overtake(work: _Work, scale: Scale) -> Figures:
    urgent = max(2, scale.sparse // 3)
    seconds = 2 + urgent * _SECONDS + _SPARE
    with (
        stage(urgent + work.lasts(seconds)) as one,
        one.where.evsched("dispatcher"),
        one.workers(1, "--concurrency", str(work.slots)),
    ):
        one.warm_up()
        first, count = _crowded(one, work, seconds)
        began, before = time.monotonic(), len(one.oracle.times(first, count))
        with _looked_at(one.where) as counts:
            figures = one.sparse(urgent, _HIGHEST)
        if not one.where.redis.exists("evsched:{default}:backlog"):
            raise Failed("all waiting jobs had run before those of the highest priority")
        rate = (len(one.oracle.times(first, count)) - before) / (time.monotonic() - began)
    fetched = statistics.median(counts)
    return {
        "jobs/s": rate,
        "fetched jobs": fetched,
        "fetched jobs take, ms": fetched / rate * 1e3,
        **{f"priority {_HIGHEST}: {name}": value for name, value in figures.items()},
    }


def table(scale: Scale) -> Table:
    """Return the table."""
    rows = {name: partial(_overtake, work, scale) for name, work in _WORKS.items()}
    note = "Fetched jobs: those that the worker has fetched and that have not ended; the median of many looks."
    return Table(f"Sparse jobs of priority {_HIGHEST} while many of priority 5 wait", rows, scale.rounds, note)
