# /// script
# dependencies = ["streaq==7.2.0", "coredis==6.9.0"]
# ///
"""streaq: asynchronous tasks, ready jobs in a stream, scheduled ones looked for each half second."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from streaq import Worker

from bench.oracle import stamp

COMMANDS = [["streaq", "run", "bench.schedulers.streaq:worker"]]
logging.disable(logging.INFO)

worker = Worker(redis_url=os.environ["BENCH_REDIS"], concurrency=32)


@worker.task
async def job(number: int, padding: str = "") -> None:
    stamp(number)


@asynccontextmanager
async def connect() -> AsyncGenerator[None]:
    async with worker:
        yield


async def enqueue(number: int) -> None:
    await job.enqueue(number)


async def enqueue_many(jobs: list[list[int]]) -> None:
    await worker.enqueue_many([job.enqueue(*one) for one in jobs])


async def schedule(due: float, *arguments: int | str) -> None:
    await job.enqueue(*arguments).start(schedule=datetime.fromtimestamp(due, UTC))
