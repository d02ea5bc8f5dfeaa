"""evsched, with its defaults: a dispatcher and a worker."""

from __future__ import annotations

import os

from bench.oracle import stamp
from evsched import App

URL = os.environ["BENCH_REDIS"]
app = App(URL)


@app.task
async def job(number: int, padding: str = "") -> None:
    stamp(number)


OPTIONS = ["--url", URL, "--log-level", "WARNING"]
COMMANDS = [
    ["evsched", "worker", "bench.schedulers.evsched:app", *OPTIONS],
    ["evsched", "dispatcher", *OPTIONS],
]


async def enqueue(number: int) -> None:
    await job.enqueue(number)


async def enqueue_many(jobs: list[tuple[int] | tuple[int, str]]) -> None:
    await job.enqueue_many(jobs)


async def schedule(due: float, number: int) -> None:
    await job.using(due=due).enqueue(number)


async def schedule_many(due: float, jobs: list[tuple[int] | tuple[int, str]]) -> None:
    await job.using(due=due).enqueue_many(jobs)
