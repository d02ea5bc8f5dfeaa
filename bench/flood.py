"""A foreign producer schedules jobs far ahead without pause: what dispatchers send, and how late due jobs start."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from bench.place import Place, fill, percentile, place
from evsched.client.new_job import JobOptions, new_job
from evsched.store.clients import New

_SECONDS: Final = 5.0
_EVERY: Final = 0.05
"""Seconds between two due jobs. Every other one was scheduled long before; the rest are due when they are scheduled."""


class _Crowd:
    """A process of dispatchers, and the counts of what they have sent."""

    def __init__(self, where: Place, count: int) -> None:
        command = [sys.executable, "-m", "bench.crowd", where.url, str(count)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def counts(self) -> list[float]:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return [float(word) for word in self.child.stdout.readline().split()]


@contextmanager
def _crowd(where: Place, count: int) -> Generator[_Crowd]:
    crowd = _Crowd(where, count)
    try:
        yield crowd
    finally:
        crowd.child.communicate()


def _produce(where: Place, rate: float, pipelined: int, begin: float) -> int:
    """Schedule jobs far ahead at a rate, and now and then one that is due; return how many were far ahead."""
    key, payload = "evsched:{default}:schedule", new_job("lateness", (), {}, JobOptions()).payload
    sent, number = 0, 1
    while (now := time.time()) < begin + _SECONDS:
        if now >= begin + number * _EVERY:
            where.redis.hset(f"evsched:{{default}}:job:f-{number}", "payload", payload)
            where.redis.zadd(key, {f"f-{number}": time.time()})
            number += 2
        if sent >= (now - begin + 1) * rate:
            time.sleep(min(pipelined / rate, 0.001) if rate else 0.001)
            continue
        pipe = where.redis.pipeline(transaction=False)
        for i in range(pipelined):
            pipe.execute_command("ZADD", key, 4e9 + sent + i, f"far-{(sent + i) % 5000}")  # no event if nothing changes
        pipe.execute()
        sent += pipelined
    return sent


def _run(count: int, rate: float, pipelined: int) -> str:
    with place() as where, _crowd(where, count) as crowd, where.process("worker", "bench.tasks:app"):
        where.until(lambda: bool(where.redis.exists("evsched:{default}:leases")))
        crowd.counts()
        time.sleep(3)
        payload = new_job("lateness", (), {}, JobOptions()).payload
        begin, jobs = time.time() + 1, int(_SECONDS / _EVERY)
        fill(where, "default", [New(f"f-{i}", payload, due=begin + i * _EVERY) for i in range(0, jobs, 2)])
        before = crowd.counts()
        sent = _produce(where, rate, pipelined, begin)
        scripts, others, cpu = (after - then for after, then in zip(crowd.counts(), before, strict=True))
        last = (jobs - 2) // 2 * 2
        where.ended("default", f"f-{last}")
        late = [values[0] for values in where.fields("default", [f"f-{i}" for i in range(last)], "result")]
    seconds = _SECONDS + 1
    ahead, at_once = _late(late[::2]), _late(late[1::2])
    return (
        f"{sent / seconds:,.0f} far ZADD/s, {pipelined} at a time, {count} dispatchers: each "
        f"{scripts / seconds / count:.0f} script calls/s, {others / seconds / count:.0f} looks/s, "
        f"{cpu / seconds / count:.1%} CPU; due jobs {ahead}, those due when they are scheduled {at_once}"
    )


def _late(late: list[float]) -> str:
    return f"p50 {percentile(late, 0.5) * 1e3:.2f} ms, p99 {percentile(late, 0.99) * 1e3:.1f} ms late"


def flood() -> list[str]:
    """Measure no flood, one ZADD at a time, and pipelined ones; each with 1, 4 and 50 dispatchers."""
    floods = ((0.0, 0), (2_000.0, 1), (50_000.0, 500))
    return [_run(count, rate, pipelined) for count in (1, 4, 50) for rate, pipelined in floods]
