"""The jobs of the chaos tests. Each run writes a line to a file outside Redis: the oracle."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from evsched import App, Retry, current_job

app = App(queue="chaos")


def note(what: str) -> None:
    """Append a line; O_APPEND keeps lines of several processes whole."""
    job = current_job()
    line = f"{what} {job.id} {job.attempt} {os.getpid()} {time.time():.6f}\n"
    with open(os.environ["ORACLE"], "ab", buffering=0) as file:  # noqa: PTH123
        file.write(line.encode())


@app.task(retry=Retry(attempts=20))
async def work(seconds: float) -> None:
    note("start")
    await asyncio.sleep(seconds)
    note("end")


@app.task(retry=Retry(attempts=3))
async def suicide() -> None:
    note("start")
    os.kill(os.getpid(), 9)


@app.task
async def poison() -> None:
    """Kill the process that runs it, each time; as often as the default attempts allow."""
    note("start")
    os.kill(os.getpid(), 9)


@app.task
async def massacre() -> None:
    """Kill the whole worker each time, even from a process of its own."""
    note("start")
    parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes()
    if b"\0worker\0tests.chaos.app:app\0" in parent:
        os.kill(os.getppid(), 9)
    os.kill(os.getpid(), 9)


@app.task
async def harmless(seconds: float = 0.0) -> None:
    note("start")
    await asyncio.sleep(seconds)
    note("end")


@app.task
async def lateness() -> float:
    return current_job().lateness


@app.task(retry=Retry(attempts=20, interval=0.1, jitter=0))
async def occurrence() -> None:
    note("start")
