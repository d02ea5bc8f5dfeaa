"""The jobs of the chaos tests. Each run writes a line to a file outside Redis: the oracle."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

from evsched import App, EndedBatch, EndedJob, GiveUp, Retry, current_job
from evsched.steps import resumable

app = App(queue="chaos", shards=int(os.environ.get("SHARDS", "0")))


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


def compute_for(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@app.task
async def compute(seconds: float) -> None:
    compute_for(seconds)


@app.task
def compute_in_thread(seconds: float) -> None:
    compute_for(seconds)


@app.task
async def lateness() -> float:
    return current_job().lateness


@app.task(retry=Retry(attempts=20, interval=0.1, jitter=0))
async def occurrence() -> None:
    note("start")


@app.task
async def ended(job: EndedJob) -> None:
    note(f"{job.outcome}:{job.id}")


@app.task(retry=Retry(attempts=20, interval=0.01, factor=1, jitter=0), on_done=ended, on_dead=ended)
async def end(seconds: float, dies: bool) -> None:
    """End at a moment that the test knows, and kills at."""
    await asyncio.sleep(seconds)
    note("end")
    if dies:
        raise GiveUp("it was to die")


@app.task(retry=Retry(attempts=20))
async def once() -> None:
    """Note the planned time, which each of the unique jobs has of its own: when it was enqueued."""
    note(f"start:{current_job().planned:.6f}")
    await asyncio.sleep(0.3)
    note(f"end:{current_job().planned:.6f}")


@app.task(retry=Retry(attempts=100, interval=0.01, factor=1, jitter=0), on_done=ended, on_dead=ended)
async def punctual(due: float, seconds: float, dies: bool) -> None:
    """Note if it starts before `due`, Unix seconds by the clock that Redis has too."""
    note("start" if time.time() >= due else "early")
    await asyncio.sleep(seconds)
    if dies:
        raise GiveUp("it was to die")


@app.task(retry=Retry(attempts=200, interval=0.1, jitter=0), timeout=None)
async def import_rows(count: int, pause: float) -> None:
    """Handle rows, each noted when it has been handled."""
    async for row in resumable(lambda after: range(0 if after is None else after + 1, count), key=lambda row: row):
        await asyncio.sleep(pause)
        note(f"row:{row}")


@app.task(retry=Retry(attempts=200, interval=0.2, factor=1, jitter=0))
async def member(seconds: float, fails: bool) -> None:
    """End at a moment that the test knows; if it `fails`, the first run does."""
    await asyncio.sleep(seconds)
    if fails and current_job().attempt == 1:
        raise ValueError("the first run fails")
    note("end")


def value_of(number: int, before: Sequence[int | list[int]]) -> int:
    """Return the result of a node, which depends on the results of all before it."""
    flat = [value for one in before for value in (one if isinstance(one, list) else [one])]
    return (31 * sum(flat) + number + 1) % 1_000_003


_OFTEN = Retry(attempts=200, interval=0.2, factor=1, jitter=0)


@app.task(retry=_OFTEN, retention=3600)
async def link(number: int, seconds: float, fails: bool, before: int = 0) -> int:
    """Run in a chain, behind the link whose result is `before`; if it `fails`, the first run does."""
    await member(seconds, fails)
    return value_of(number, [before])


@app.task(retry=_OFTEN, retention=3600)
async def node(number: int, seconds: float, fails: bool, **before: int | list[int]) -> int:
    """Run in a graph, behind the nodes whose results are `before`."""
    await member(seconds, fails)
    return value_of(number, list(before.values()))


@app.task(retry=_OFTEN, retention=3600)
async def fan(items: list[int]) -> list[int]:
    """Return what another node has a job for each of."""
    note("end")
    return items


@app.task(retry=_OFTEN, retention=3600)
async def item(seconds: float, number: int) -> int:
    """Run for one item, and fail once for some."""
    await member(seconds, number % 5 == 0)
    return value_of(number, [])


@app.task(retry=Retry(attempts=200, interval=0.1, jitter=0))
async def batch_ended(batch: EndedBatch) -> None:
    note(f"{batch.outcome}:{batch.total}:{batch.done}")
