"""An outage ends with very many jobs overdue: how soon they run, and how long other clients of Redis wait meanwhile."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from bench.place import Place, cpu, fill, percentile, place
from bench.speed import due_jobs
from evsched.transport.scripts import folder, script

_SLOW: Final = 1000
"""Redis logs calls that take more microseconds than this."""

_LONG: Final = 5000
"""The most microseconds that a script should take."""

_PIECE: Final = 50_000
"""Jobs that are enqueued at once."""


@contextmanager
def _pings(where: Place) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.pings", where.url]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield child
    finally:
        child.communicate()


def _measured(child: subprocess.Popen[str]) -> list[float]:
    """Return the times that bench.pings has measured since it was last asked."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return [float(word) for word in child.stdout.readline().split()]


def _slow_scripts(where: Place) -> dict[str, list[int]]:
    """Return the microseconds of the slow calls of each script."""
    verbs = {script(file.stem).sha.encode(): file.stem for file in folder().glob("[a-z]*.lua")}
    found = defaultdict[str, list[int]](list)
    entries: list[dict[str, Any]] = where.redis.slowlog_get(1_000_000)
    for entry in entries:
        words = entry["command"].split()
        found[verbs.get(words[1], "") if len(words) > 1 else ""].append(entry["duration"])
    return {verb: took for verb, took in found.items() if verb}


def _prepare(where: Place, count: int) -> None:
    for first in range(0, count, _PIECE):
        fill(where, "default", due_jobs(_PIECE, f"o-{first}-"))
    where.redis.config_set("slowlog-max-len", 1_000_000)
    where.redis.config_set("slowlog-log-slower-than", _SLOW)
    where.redis.slowlog_reset()


def _drain(where: Place, count: int) -> tuple[float, float]:
    """Run a dispatcher and a worker; return when the first job started and when the last ended, from their launch."""
    key = "evsched:{default}:"
    launched = time.monotonic()
    with where.process("dispatcher"), where.process("worker", "bench.tasks:app"):
        where.until(lambda: bool(where.redis.exists(key + "ready")))
        where.until(lambda: bool(where.redis.keys(key + "processing:*")))
        first = time.monotonic() - launched
        while where.redis.exists(key + "schedule", key + "backlog", key + "ready"):
            time.sleep(0.02)
        where.until(lambda: not where.redis.keys(key + "processing:*"))
        return first, time.monotonic() - launched


def _summary(took: list[float]) -> str:
    p50, p99 = percentile(took, 0.5), percentile(took, 0.99)
    return f"p50 {p50:.2f} ms, p99 {p99:.1f} ms, max {max(took):.1f} ms"


def overdue(count: int = 100_000) -> list[str]:
    """Drain `count` overdue no-op jobs with one dispatcher and one worker. Seconds count from their launch."""
    with place() as where:
        _prepare(where, count)
        with _pings(where) as child:
            _measured(child)
            before = cpu(where.pid)
            first, last = _drain(where, count)
            pings = _measured(child)
            used = cpu(where.pid) - before
        slow = _slow_scripts(where)
    drained = f"drained after {last:.1f} s, {count / (last - first):,.0f} jobs/s"
    lines = [
        f"{count:,} overdue: first start after {first:.2f} s, {drained}; Redis {used / count * 1e6:.1f} us a job",
        f"  PINGs meanwhile: {_summary(pings[::2])}; without the waits for a core {_summary(pings[1::2])}",
    ]
    for verb, took in sorted(slow.items(), key=lambda item: -max(item[1])):
        long = sum(one > _LONG for one in took)
        p50 = percentile([one / 1e3 for one in took], 0.5)
        lines.append(
            f"  {verb}: {len(took):,} calls over {_SLOW / 1e3:g} ms, p50 of them {p50:.1f}, "
            f"{long:,} over {_LONG / 1e3:g} ms, the slowest {max(took) / 1e3:.1f} ms"
        )
    return lines
