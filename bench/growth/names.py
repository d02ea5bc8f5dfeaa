"""Very many names of queues, as with a queue for each customer: one of a hundred has a job, the others are empty."""

from __future__ import annotations

import threading
import time
from typing import Final

from bench.figures import Figures, percentile
from bench.scale import Scale
from bench.server import Server
from bench.server import server as started
from bench.watch import watch
from evsched.client.new_job import JobOptions, new_job
from evsched.keys import QUEUES, schedule
from evsched.store.client_calls import New

_PIPELINED: Final = 5_000
_EVERY: Final = 0.02
"""Seconds between two due jobs."""

_SECONDS: Final = 5.0


def _remember(where: Server, count: int) -> None:
    """Write so many names into the set of all queues, and a job for a far time into one of a hundred."""
    for first in range(0, count, _PIPELINED):
        names = [f"customer-{n}" for n in range(first, min(first + _PIPELINED, count))]
        where.redis.sadd(QUEUES, *names)
        pipe = where.redis.pipeline(transaction=False)
        for name in names[::100]:
            pipe.zadd(schedule(name), {'{"task":"no_op"}': 4e9})
        pipe.execute()


def _add_names(where: Server, count: int) -> None:
    """Schedule a far job in each of so many new queues at once, and remove it."""
    client = where.client()
    for first in range(0, count, _PIPELINED):
        pipe = client.pipeline(transaction=False)
        for n in range(first, min(first + _PIPELINED, count)):
            pipe.zadd(schedule(f"new-{n}"), {"x": 4e9})
            pipe.zrem(schedule(f"new-{n}"), "x")
        pipe.execute()
    client.close()


def named(count: int, scale: Scale) -> Figures:
    """Measure what idleness costs with so many names, and the jobs of another queue beside a fifth as many new ones."""
    with started() as where:
        _remember(where, count)
        with where.fleet() as (dispatcher, worker):
            idle = watch(where, [dispatcher.pid, worker.pid], scale.idle)
            payload, jobs = new_job("lateness", (), {}, JobOptions()).payload, int(_SECONDS / _EVERY)
            begin = time.time() + 1
            ids = [f"n-{i}" for i in range(jobs)]
            where.fill("default", [New(one, payload, due=begin + i * _EVERY) for i, one in enumerate(ids)])
            adding = threading.Timer(begin + 0.5 - time.time(), _add_names, (where, count // 5))
            adding.start()
            for one in ids:
                where.ended("default", one)
            adding.join()
            late = [values[0] for values in where.fields("default", ids, "result")]
    return {
        "idle: commands/s sent": idle["commands/s sent"],
        "idle: CPU %": idle["CPU %"],
        "idle: CPU % of Redis": idle["CPU % of Redis"],
        "beside new names: p50, ms": percentile(late, 0.5) * 1e3,
        "p99, ms": percentile(late, 0.99) * 1e3,
        "longest, ms": max(late) * 1e3,
    }
