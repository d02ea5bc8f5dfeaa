"""A batch of very many jobs beside the same jobs alone: what it costs Redis, and how long people wait for it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

from bench.figures import Failed, Figures, Table
from bench.processes import cpu
from bench.scale import Scale
from bench.server import Server, server, verb
from evsched import App

_ID: Final = "import-2030-a"
"""With a number behind it, as long as a random id of a job."""
_PART: Final = 10_000
"""Jobs that one call of the program enqueues."""
_SLOW: Final = 5_000
"""Microseconds that no script should take."""
_AWAY: Final = 864_000.0
"""Seconds until the jobs are due that are not to run."""
_LIMIT: Final = 3600.0
"""Seconds within which all must have been done."""


async def _enqueue(url: str, count: int, delay: float, *, batch: bool) -> None:
    app = App(url=url)

    @app.task
    async def noop() -> None: ...

    task = noop.using(delay=delay)
    if batch:
        async with app.batch(_ID) as made:
            for first in range(0, count, _PART):
                await made.add_many(task, [()] * min(_PART, count - first))
    else:
        for first in range(0, count, _PART):
            await task.enqueue_many([()] * min(_PART, count - first))
    await app.close()


def _watch(where: Server) -> None:
    where.redis.config_set("slowlog-max-len", 100_000)
    where.redis.config_set("slowlog-log-slower-than", _SLOW)
    where.redis.slowlog_reset()


def _slow(where: Server, what: str) -> Figures:
    """Return how many scripts took longer than 5 ms, and the longest call of each."""
    longest, count, entries = dict[str, float](), 0, where.redis.slowlog_get(100_000)
    for entry in entries:
        words = entry["command"].decode(errors="replace").split()
        if words[0].upper() in ("EVAL", "EVALSHA"):  # the commands that a script makes have entries too
            name, count = verb(words[1]) or "a new script", count + 1
            longest[name] = max(longest.get(name, 0.0), entry["duration"] / 1e3)
    where.redis.slowlog_reset()
    return {
        f"scripts over 5 ms, {what}": count,
        **{f"longest {name}, ms, {what}": took for name, took in sorted(longest.items())},
    }


def _stored(count: int, *, batch: bool) -> Figures:
    """Enqueue jobs that do not run. Then show the batch, and cancel a part of it."""
    with server() as where:
        _watch(where)
        before, used, began = where.memory(), cpu(where.pid), time.monotonic()
        asyncio.run(_enqueue(where.url, count, _AWAY, batch=batch))
        took, used = time.monotonic() - began, cpu(where.pid) - used
        figures = {
            "enqueued/s": count / took,
            "Redis µs/job": used / count * 1e6,
            "bytes/job": (where.memory() - before) / count,
            **_slow(where, "enqueued"),
        }
        return {**figures, **_looked_at(where), **_cancelled(where, count)} if batch else figures


def _looked_at(where: Server) -> Figures:
    began = time.monotonic()
    _command(where, "show")
    return {"show, s": time.monotonic() - began}


def _command(where: Server, word: str) -> None:
    command = [str(Path(sys.executable).with_name("evsched")), "batches", word, _ID]
    subprocess.run(command, env={**os.environ, "EVSCHED_URL": where.url}, capture_output=True, check=True)


def _cancelled(where: Server, count: int) -> Figures:
    where.rest()
    where.redis.slowlog_reset()
    used, began = cpu(where.pid), time.monotonic()
    with where.evsched("dispatcher"):
        _command(where, "cancel")
        where.until(lambda: where.redis.hexists(f"evsched:{{default}}:batch:{_ID}", "finished"), _LIMIT)
    took = time.monotonic() - began
    if where.redis.hget(f"evsched:{{default}}:batch:{_ID}", "cancelled") != str(count).encode():
        raise Failed("not all jobs of the batch were cancelled")
    used = cpu(where.pid) - used
    return {"cancelled/s": count / took, "Redis µs/job, cancelled": used / count * 1e6, **_slow(where, "cancelled")}


def _run(count: int, *, batch: bool) -> Figures:
    """Run jobs by one worker, and have their ends counted."""
    with server() as where:
        asyncio.run(_enqueue(where.url, count, 0.0, batch=batch))
        where.rest()
        _watch(where)
        key = "evsched:{default}:"
        used, began = cpu(where.pid), time.monotonic()
        with where.fleet():
            where.until(lambda: not where.redis.exists(key + "schedule", key + "backlog", key + "ready"), _LIMIT)
            where.until(lambda: not where.redis.keys(key + "processing:*"))
            ended = time.monotonic()
            if batch:
                where.until(lambda: where.redis.hexists(f"{key}batch:{_ID}", "finished"))
            counted, used = time.monotonic() - ended, cpu(where.pid) - used
        more: Figures = {"counted after, s": counted} if batch else {}
        return {
            "run/s": count / (ended - began),
            "Redis µs/job, run": used / count * 1e6,
            **more,
            **_slow(where, "run"),
        }


def tables(scale: Scale) -> dict[str, Table]:
    """Return the tables by their names."""
    many, run = scale.batch, scale.batch // 10
    stored = {
        f"{many:,} jobs alone": partial(_stored, many, batch=False),
        f"{many:,} jobs of a batch": partial(_stored, many, batch=True),
    }
    ran = {
        f"{run:,} jobs alone": partial(_run, run, batch=False),
        f"{run:,} jobs of a batch": partial(_run, run, batch=True),
    }
    return {
        "batch": Table("Jobs that are enqueued, and cancelled", stored),
        "batch-run": Table("No-op jobs that one worker runs", ran, scale.rounds),
    }
