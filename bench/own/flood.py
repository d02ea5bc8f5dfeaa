"""A foreign producer schedules jobs far ahead without pause: what dispatchers send, and how late due jobs start."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from bench.crowd import crowd
from bench.figures import Figures, Table, percentile
from bench.server import Server, server
from evsched.client.new_job import JobOptions, new_job
from evsched.store.client_calls import New

_SECONDS: Final = 5.0
_EVERY: Final = 0.02
"""Seconds between two due jobs. Every other one was scheduled long before; the rest are due when they are scheduled."""

_SKIPPED: Final = 10
"""The last jobs, which do not count: the producer may end before it has scheduled them."""


def _produce(where: Server, rate: float, pipelined: int, begin: float) -> int:
    """Schedule jobs far ahead at a rate, and now and then one that is due; return how many were far ahead."""
    key, payload = "evsched:{default}:schedule", new_job("lateness", (), {}, JobOptions()).payload
    sent, number, start = 0, 1, time.time()
    while (now := time.time()) < begin + _SECONDS:
        if now >= begin + number * _EVERY:
            where.redis.hset(f"evsched:{{default}}:job:f-{number}", "payload", payload)
            where.redis.zadd(key, {f"f-{number}": time.time()})
            number += 2
        if sent >= (now - start) * rate:
            time.sleep(min(pipelined / rate, 0.001) if rate else 0.001)
            continue
        pipe = where.redis.pipeline(transaction=False)
        for i in range(pipelined):
            pipe.execute_command("ZADD", key, 4e9 + sent + i, f"far-{(sent + i) % 5000}")  # no event if nothing changes
        pipe.execute()
        sent += pipelined
    return sent


def _run(count: int, rate: float, pipelined: int) -> Figures:
    with server() as where, crowd(where, count) as group, where.evsched("worker", "bench.tasks:app"):
        where.until(lambda: bool(where.redis.exists("evsched:{default}:leases")))
        group.counts()
        time.sleep(3)
        payload = new_job("lateness", (), {}, JobOptions()).payload
        begin, jobs = time.time() + 1, int(_SECONDS / _EVERY)
        where.fill("default", [New(f"f-{i}", payload, due=begin + i * _EVERY) for i in range(0, jobs, 2)])
        before, start = group.counts(), time.monotonic()
        sent = _produce(where, rate, pipelined, begin)
        seconds = time.monotonic() - start
        scripts, others, cpu = (after - then for after, then in zip(group.counts(), before, strict=True))
        ids = [f"f-{i}" for i in range(jobs - _SKIPPED)]
        for job_id in ids:
            where.ended("default", job_id)
        late = [values[0] for values in where.fields("default", ids, "result")]
    share = seconds * count
    return {
        "far ZADD/s": sent / seconds,
        "script calls/s each": scripts / share,
        "other commands/s each": others / share,
        "CPU % each": cpu / share * 100,
        "due p99, ms": percentile(late[::2], 0.99) * 1e3,
        "due when scheduled p99, ms": percentile(late[1::2], 0.99) * 1e3,
    }


def table() -> Table:
    """Return the table: no flood, one ZADD at a time, and pipelined ones; each with 1, 4 and 50 dispatchers."""
    floods = {"no flood": (0.0, 0), "2,000/s, one at a time": (2_000.0, 1), "50,000/s, 500 at a time": (50_000.0, 500)}
    rows = {
        f"{flood}, {count} dispatchers": partial(_run, count, *rate)
        for count in (1, 4, 50)
        for flood, rate in floods.items()
    }
    return Table("A foreign client schedules far jobs without pause", rows)
