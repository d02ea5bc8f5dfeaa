# /// script
# dependencies = ["procrastinate==3.10.0", "psycopg[binary,pool]==3.3.9"]
#
# [tool.bench]
# server = "PostgreSQL"
# note = """
# 32 asynchronous jobs at a time; hears of new jobs by LISTEN and looks for scheduled ones each 5 s, its defaults. \
# PostgreSQL has its defaults, with synchronous_commit=off."""
# ///
"""procrastinate: asynchronous tasks in a table of PostgreSQL; the worker hears of new jobs and looks each 5 s."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from procrastinate import App, PsycopgConnector

from bench.oracle import stamp

_WORDS = ["--concurrency", "32"]
COMMANDS = [
    ["procrastinate", "--app", "bench.schedulers.procrastinate.app", "--log-level", "warning", "worker", *_WORDS]
]

app = App(connector=PsycopgConnector(conninfo=os.environ["BENCH_POSTGRESQL"]))


@app.task(name="job")
async def job(number: int, padding: str = "") -> None:
    stamp(number)


@asynccontextmanager
async def connect() -> AsyncGenerator[None]:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        yield


def _later(due: float) -> datetime:
    return datetime.fromtimestamp(due, UTC)


async def enqueue(number: int) -> None:
    await job.defer_async(number=number)


async def enqueue_many(jobs: list[tuple[int]]) -> None:
    await job.batch_defer_async(*({"number": number} for (number,) in jobs))


async def schedule(due: float, number: int) -> None:
    await job.configure(schedule_at=_later(due)).defer_async(number=number)


async def schedule_many(due: float, jobs: list[tuple[int] | tuple[int, str]]) -> None:
    names = "number", "padding"
    some = [dict(zip(names, one, strict=False)) for one in jobs]
    await job.configure(schedule_at=_later(due)).batch_defer_async(*some)
