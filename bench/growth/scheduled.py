"""Very many jobs wait for a far time: what each takes in memory, and what they cost the jobs that are due."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from bench.figures import Figures
from bench.scale import Scale
from bench.server import Server
from bench.stage import stage
from bench.tasks import batches
from evsched.client.new_job import JobOptions, new_job
from evsched.config import Config
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_FAR: Final = 2e9
"""Unix seconds: a due time that no benchmark lives to see."""

_CALLS: Final = 300
"""Calls of the dispatch script that are timed."""


def beside(count: int, scale: Scale) -> Figures:
    """Measure sparse jobs, and the dispatch script, beside so many scheduled jobs."""
    with stage(scale.sparse) as one:
        one.where.fill_all(batches(1, "first-", due=_FAR))  # what is stored once
        before = one.where.memory()
        one.where.fill_all(batches(count, "far-", due=_FAR))
        one.where.rest()
        memory = one.where.memory() - before
        with one.where.evsched("dispatcher"), one.workers():
            one.warm_up()
            late = one.sparse(scale.sparse)
        return {**late, "dispatch of one job, Redis µs": _dispatches(one.where), "memory, bytes/job": memory / count}


def _dispatches(where: Server) -> float:
    """Return the microseconds of Redis, by its own account, of the script call that dispatches one job."""
    key, payload = "evsched:{default}:", new_job("noop", (), {}, JobOptions()).payload
    config, store = Config(), Store("default")

    async def run() -> None:
        sender = BatchingSender(where.url)
        for n in range(_CALLS):
            where.redis.hset(f"{key}job:due-{n}", "payload", payload)
            where.redis.zadd(f"{key}schedule", {f"due-{n}": 1.0})
            await sender.send(store.dispatch(limit=config.batch, cap=config.payload_cap))
        await sender.close()

    before = _scripts(where)
    asyncio.run(run())
    calls, took = (after - then for after, then in zip(_scripts(where), before, strict=True))
    return took / calls


def _scripts(where: Server) -> tuple[int, int]:
    """Return how many calls of scripts Redis has executed, and in how many microseconds."""
    stats: dict[str, Any] = where.redis.info("commandstats")["cmdstat_evalsha"]
    return stats["calls"], stats["usec"]
