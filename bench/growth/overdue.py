"""An outage ends with very many jobs overdue: how soon they run, and how long other clients of Redis wait meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from bench.figures import Figures, Table, percentile
from bench.processes import cpu
from bench.scale import sizes
from bench.server import Server, server, verb
from bench.tasks import batches

_SLOW: Final = 1000
"""Redis logs calls that take more microseconds than this."""

_LONG: Final = 5000
"""The most microseconds that a script should take."""


@contextmanager
def _pings(where: Server) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.growth.pings", where.url]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.communicate()


def _measured(child: subprocess.Popen[str]) -> list[float]:
    """Return the times that bench.growth.pings has measured since it was last asked."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return [float(word) for word in child.stdout.readline().split()]


def _slow_scripts(where: Server) -> dict[str, list[int]]:
    """Return the microseconds of the slow calls of each script."""
    found = defaultdict[str, list[int]](list)
    entries: list[dict[str, Any]] = where.redis.slowlog_get(1_000_000)
    for entry in entries:
        words = entry["command"].split()
        found[verb(words[1].decode()) if len(words) > 1 else ""].append(entry["duration"])
    return {name: took for name, took in found.items() if name}


def _prepare(where: Server, count: int) -> None:
    where.fill_all(batches(count, "o-"))
    where.rest()
    where.redis.config_set("slowlog-max-len", 1_000_000)
    where.redis.config_set("slowlog-log-slower-than", _SLOW)
    where.redis.slowlog_reset()


def _drain(where: Server) -> tuple[float, float]:
    """Run a dispatcher and a worker; return when the first job started and when the last ended, from their launch."""
    key = "evsched:{default}:"
    launched = time.monotonic()
    with where.evsched("dispatcher"), where.evsched("worker", "bench.tasks:app"):
        where.until(lambda: bool(where.redis.exists(key + "ready")))
        where.until(lambda: bool(where.redis.keys(key + "processing:*")))
        first = time.monotonic() - launched
        while where.redis.exists(key + "schedule", key + "backlog", key + "ready"):
            time.sleep(0.02)
        where.until(lambda: not where.redis.keys(key + "processing:*"))
        return first, time.monotonic() - launched


def _run(count: int) -> Figures:
    with server() as where:
        _prepare(where, count)
        with _pings(where) as child:
            _measured(child)
            before = cpu(where.pid)
            first, last = _drain(where)
            pings = _measured(child)
            used = cpu(where.pid) - before
        slow = _slow_scripts(where)
    alone = pings[1::2]  # without the waits for a core
    return {
        "first start, s": first,
        "drained after, s": last,
        "jobs/s": count / (last - first),
        "Redis µs/job": used / count * 1e6,
        "PING p99, ms": percentile(alone, 0.99),
        "PING max, ms": max(alone),
        f"scripts over {_LONG / 1e3:g} ms": sum(one > _LONG for took in slow.values() for one in took),
        **{f"slowest {name}, ms": max(took) / 1e3 for name, took in sorted(slow.items())},
    }


def table(count: int) -> Table:
    """Return the table of no-op jobs drained by one dispatcher and one worker: so many, and a tenth of them."""
    rows = {f"{jobs:,} jobs": partial(_run, jobs) for jobs in sizes(count // 10, count, 2)}
    return Table("Jobs overdue after an outage", rows, note="Seconds count from the launch of both processes.")
