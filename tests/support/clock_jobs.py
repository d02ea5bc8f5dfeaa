"""The jobs of the scenes in which clocks jump. Each run writes lines to a file outside Redis: the oracle."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import NamedTuple

from evsched import App, Retry, Snooze, current_job

app = App(queue="clocks")
FOLDER = Path(os.environ.get("CLOCK_SCENE", "."))


class Line(NamedTuple):
    """What a run has done, and when by the monotonic clock, which all processes of a machine share."""

    what: str
    id: str
    attempt: int
    pid: int
    due: float
    at: float
    wall: float
    """When by the clock of its host, in Unix seconds."""


def note(what: str) -> None:
    """Append a line; O_APPEND keeps lines of several processes whole."""
    job = current_job()
    line = f"{what} {job.id} {job.attempt} {os.getpid()} {job.due!r} {time.monotonic()!r} {time.time()!r}\n"
    with (FOLDER / "oracle").open("ab", buffering=0) as file:
        file.write(line.encode())


def read_lines(folder: Path) -> list[Line]:
    whole, _, _ = (folder / "oracle").read_text().rpartition("\n")  # the last line may be half written
    rows = [line.split() for line in whole.splitlines()]
    return [Line(what, job, int(attempt), int(pid), *map(float, times)) for what, job, attempt, pid, *times in rows]


@app.task
async def work() -> None:
    note("start")
    note("end")


@app.task(retry=Retry(attempts=1))
async def once() -> None:
    note("start")
    note("end")


@app.task(retry=Retry(attempts=2, interval=1, jitter=0))
async def fail_once() -> None:
    note("start")
    if current_job().attempt == 1:
        raise ValueError("the first attempt fails")
    note("end")


@app.task
async def snooze_once() -> None:
    note("start")
    if len([line for line in read_lines(FOLDER) if line.id == current_job().id]) == 1:
        raise Snooze(1.0)
    note("end")


@app.task(retry=Retry(attempts=3))
async def hold() -> None:
    """Run until the test opens the pipe."""
    note("start")
    await asyncio.to_thread(lambda: (FOLDER / "release").open().close())
    note("end")


@app.recurring(every=1, name="tick", overlap="allow")
@app.task(retry=Retry(attempts=3))
async def tick() -> None:
    note("start")
    note("end")
