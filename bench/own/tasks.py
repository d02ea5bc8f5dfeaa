"""The tasks that evsched runs here, and their jobs."""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache

from evsched import App, current_job
from evsched.client.new_job import JobOptions, new_job
from evsched.store.clients import New

app = App()


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


@cache
def _oracle() -> int:
    return os.open(os.environ["EVSCHED_TEST_ORACLE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def due_jobs(count: int, prefix: str, task: str = "noop", due: float = 1.0) -> list[New]:
    """Return jobs that are all due at the same time."""
    payload = new_job(task, (), {}, JobOptions()).payload
    return [New(f"{prefix}{i}", payload, due=due) for i in range(count)]
