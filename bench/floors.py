"""What no scheduler of this design can beat: parts of evsched alone, on the same jobs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from bench.alternatives.event_script import MOVE
from bench.figures import Figures
from bench.processes import CHECKOUT, cpu
from bench.scale import Scale
from bench.server import Server, server
from bench.tasks import due_jobs
from evsched.config import Config
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_CONFIG: Final = Config()


def bare(scale: Scale) -> Figures:
    """Measure the loop of bench/bare.py, which fetches, decodes, awaits a no-op and completes."""
    with server() as where:
        where.fill_backlog("bare", due_jobs(scale.jobs, "b-"))
        command = [sys.executable, "-m", "bench.bare", where.url, "bare", str(scale.jobs)]
        before = cpu(where.pid)
        ended = subprocess.run(command, capture_output=True, check=True, text=True, cwd=CHECKOUT)
        return _figures(scale, float(ended.stdout), cpu(where.pid) - before)


def dispatch_script(scale: Scale) -> Figures:
    """Measure lua/dispatch.lua alone: from the schedule to the backlog."""

    async def run(url: str) -> None:
        sender, store = BatchingSender(url), Store("default")
        while not (await sender.send(store.dispatch(limit=_CONFIG.batch, cap=_CONFIG.payload_cap))).sleep:
            pass
        await sender.close()

    with server() as where:
        where.fill("default", due_jobs(scale.jobs, "d-"))
        return _timed(where, scale, lambda: asyncio.run(run(where.url)))


def plain_script(scale: Scale) -> Figures:
    """Measure the shortest script that moves ids from a sorted set to a list."""
    with server() as where:
        ids = [f"p-{n}" for n in range(scale.jobs)]
        for at in range(0, scale.jobs, 1000):
            where.redis.zadd("schedule", dict.fromkeys(ids[at : at + 1000], 1.0))
        move: Any = where.redis.register_script(MOVE)

        def run() -> None:
            while move(keys=["schedule", "ready"], args=[_CONFIG.batch]):
                pass

        return _timed(where, scale, run)


def _timed(where: Server, scale: Scale, run: Callable[[], None]) -> Figures:
    used, began = cpu(where.pid), time.monotonic()
    run()
    return _figures(scale, time.monotonic() - began, cpu(where.pid) - used)


def _figures(scale: Scale, seconds: float, used: float) -> Figures:
    return {"jobs/s": scale.jobs / seconds, "Redis µs/job": used / scale.jobs * 1e6}


def rows(scale: Scale) -> dict[str, Callable[[], Figures]]:
    """Return the rows that stand below the schedulers' in the table of throughput."""
    return {
        "bare loop over evsched's scripts": partial(bare, scale),
        "evsched's dispatch script alone": partial(dispatch_script, scale),
        "shortest script, sorted set to list": partial(plain_script, scale),
    }
