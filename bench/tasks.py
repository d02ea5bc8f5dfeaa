"""The tasks that evsched runs here, and their jobs."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from functools import cache
from typing import Final

from bench.oracle import stamp
from evsched import App, current_job
from evsched.client.new_job import JobOptions, new_job
from evsched.store.client_calls import New

SHARDS: Final = "BENCH_SHARDS"
"""The environment variable with the number of shards of the app's queue."""

app = App(shards=int(os.environ.get(SHARDS, "0")))

_BATCH: Final = 50_000
"""Jobs of very many that are in our memory at once."""


@app.task
async def noop() -> None:
    """Do nothing: what remains is the scheduler's own cost."""


@app.task
async def lateness() -> float:
    """Return the seconds from the due to this handler, by Redis's clock."""
    return current_job().lateness


@app.task
async def note(name: str, seconds: float = 0.0) -> None:
    """Append the name and this host's time to the file that EVSCHED_TEST_ORACLE names, then sleep."""
    os.write(_oracle(), f"{name} {time.time():.6f}\n".encode())
    await asyncio.sleep(seconds)


@app.task
async def stamped(number: int, seconds: float = 0.0, busy: float = 0.0) -> None:
    """Note in the oracle of bench/oracle.py that this job runs now; then wait, then keep the processor busy."""
    stamp(number)
    if seconds:
        await asyncio.sleep(seconds)
    end = time.thread_time() + busy
    while time.thread_time() < end:
        pass


@cache
def _oracle() -> int:
    return os.open(os.environ["EVSCHED_TEST_ORACLE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def due_jobs(count: int, prefix: str, task: str = "noop", due: float = 1.0) -> list[New]:
    """Return jobs that are all due at the same time."""
    payload = new_job(task, (), {}, JobOptions()).payload
    return [New(f"{prefix}{i}", payload, due=due) for i in range(count)]


def batches(count: int, prefix: str, due: float = 1.0) -> Iterator[tuple[str, list[New]]]:
    """Yield very many jobs that do nothing, in batches for the default queue. Each is due 1 ms after the one before."""
    payload = new_job("noop", (), {}, JobOptions()).payload
    for first in range(0, count, _BATCH):
        numbers = range(first, min(first + _BATCH, count))
        yield "default", [New(f"{prefix}{n}", payload, due=due + n / 1000) for n in numbers]


def stamped_job(number: int, due: float, priority: int | None = None, **keywords: float) -> New:
    """Return a job that notes in the oracle when it runs."""
    return New(f"stamped-{number}", new_job("stamped", (number,), keywords, JobOptions()).payload, priority, due=due)
