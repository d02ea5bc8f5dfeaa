"""The tasks that the benchmark runs."""

from __future__ import annotations

import asyncio
import os
import time
from functools import cache

from evsched import App, current_job

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
