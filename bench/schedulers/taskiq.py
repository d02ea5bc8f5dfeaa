# /// script
# dependencies = ["taskiq==0.13.0", "taskiq-redis==1.2.4", "redis[hiredis]==8.1.0"]
#
# [tool.bench]
# note = "its scheduler reads the schedules each second (by default each minute) and sends at whole seconds."
# ///
"""taskiq: asynchronous tasks, ready jobs in a stream, and a scheduler process that reads the schedules again."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from taskiq import TaskiqScheduler
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from bench.oracle import stamp

URL = os.environ["BENCH_REDIS"]
LIMITS = ["--max-async-tasks", "32", "--max-prefetch", "32"]
QUIET = ["--log-level", "WARNING"]
COMMANDS = [
    ["taskiq", "worker", "bench.schedulers.taskiq:broker", "--workers", "1", *LIMITS, *QUIET],
    ["taskiq", "scheduler", "bench.schedulers.taskiq:scheduler", "--update-interval", "1", *QUIET],
]

broker = RedisStreamBroker(url=URL)
_source = ListRedisScheduleSource(url=URL)
scheduler = TaskiqScheduler(broker, [_source])


@broker.task
async def job(number: int, padding: str = "") -> None:
    stamp(number)


@asynccontextmanager
async def connect() -> AsyncGenerator[None]:
    await broker.startup()
    await _source.startup()
    yield
    await _source.shutdown()
    await broker.shutdown()


async def enqueue(number: int) -> None:
    await job.kiq(number)


async def schedule(due: float, *arguments: int | str) -> None:
    await job.schedule_by_time(_source, datetime.fromtimestamp(due, UTC), *arguments)
