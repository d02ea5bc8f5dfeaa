"""What it takes to schedule jobs while no process runs, and the memory that they wait in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final
from uuid import uuid4

from bench.figures import Figures
from bench.scaling.fleet import QUEUE, enqueue
from bench.scaling.site import site, total
from bench.tasks import noop
from evsched.client.client import Client
from evsched.client.new_job import JobOptions, new_job
from evsched.shards import Shards
from evsched.store.client_calls import New

_FAR: Final = 2e9
_FRAME: Final = len('{"task":"noop","args":[""]}')
_TASKS: Final = 100
"""How many asyncio tasks enqueue single jobs at the same time."""


def stored(count: int, shards: int, size: int, *, single: bool) -> Figures:
    """Schedule jobs with payloads of so many bytes for a far time."""
    counts = Shards({QUEUE: shards})
    payload = new_job(noop.name, ("x" * (size - _FRAME),), {}, JobOptions()).payload
    jobs = [New(uuid4().hex, payload, due=_FAR + n / 1000) for n in range(count)]
    with site() as where:
        enqueue(where, counts, [New(f"first-{n}", payload, due=_FAR) for n in range(100)])  # what is stored once
        memory, before = where.memory(), where.counts()
        if single:
            asyncio.run(_one_by_one(where.url, counts, jobs))
        else:
            enqueue(where, counts, jobs)
        done = total(where.since(before))
        where.nodes[0].rest()
        memory = where.memory() - memory
    return {
        "Redis µs/job": done.cpu / count * 1e6,
        "script calls/job": done.scripts / count,
        "bytes sent/job": done.sent / count,
        "memory, bytes/job": memory / count,
    }


async def _one_by_one(url: str, shards: Shards, jobs: Iterable[New]) -> None:
    client, left = Client(url, shards), iter(jobs)

    async def work() -> None:
        for job in left:
            await client.enqueue(QUEUE, [job])

    await asyncio.gather(*(work() for _ in range(_TASKS)))
    await client.close()
