# /// script
# dependencies = ["arq==0.28.0", "redis[hiredis]==5.3.1"]
# ///
"""arq: asynchronous tasks, a sorted set that the worker polls each half second."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings

from bench.oracle import stamp

COMMANDS = [["arq", "bench.schedulers.arq.WorkerSettings"]]
logging.disable(logging.INFO)

_settings = RedisSettings.from_dsn(os.environ["BENCH_REDIS"])
_pool: ArqRedis


async def job(ctx: dict[str, Any], number: int, padding: str = "") -> None:
    stamp(number)


class WorkerSettings:
    functions = (job,)
    redis_settings = _settings
    max_jobs = 32


@asynccontextmanager
async def connect() -> AsyncGenerator[None]:
    global _pool
    _pool = await create_pool(_settings)
    yield
    await _pool.aclose()


async def enqueue(number: int) -> None:
    await _pool.enqueue_job("job", number)


async def schedule(due: float, *arguments: int | str) -> None:
    await _pool.enqueue_job("job", *arguments, _defer_until=datetime.fromtimestamp(due, UTC))
