"""Handlers with steps, loops over rows and waits, for each kind of handler. They write to a file what they do."""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from evsched import App, Retry, current_job
from evsched.steps import SignalTimeout, resumable, step, wait_for

app = App()

AGAIN = Retry(attempts=50, interval=0.01, jitter=0)


def note(path: str, text: object) -> None:
    with open(path, "a") as file:  # noqa: PTH123
        file.write(f"{text}\n")


def notes(path: str | Path) -> list[str]:
    return Path(path).read_text().split()


def fetch(path: str, number: int) -> list[int]:
    note(path, f"fetch{number}")
    return [number, number + 1]


async def fetch_later(path: str, number: int) -> list[int]:
    return fetch(path, number)


def fail_once(path: str, name: str) -> None:
    """Fail, unless it was called before."""
    first = name not in notes(path)
    note(path, name)
    if first:
        raise RuntimeError(name)


@app.task(retry=AGAIN)
async def steps(path: str) -> int:
    first = await step("one", fetch, path, 1)
    fail_once(path, "between")
    second = await step("two", fetch_later, path, number=first[1])
    fail_once(path, "after")
    return sum(first + second)


def steps_sync(path: str) -> int:
    first = step.sync("one", fetch, path, 1)
    fail_once(path, "between")
    second = step.sync("two", fetch, path, number=first[1])
    fail_once(path, "after")
    return sum(first + second)


@app.task(retry=AGAIN)
def steps_in_thread(path: str) -> int:
    return steps_sync(path)


@app.task(retry=AGAIN, on="process")
def steps_in_process(path: str) -> int:
    return steps_sync(path)


async def approve(path: str, timeout: float | None = 60.0) -> Any:
    await step("one", fetch, path, 1)
    note(path, "waits")
    return await wait_for("approved", timeout)


@app.task(retry=AGAIN)
async def approval(path: str, timeout: float | None = 60.0) -> Any:
    return await approve(path, timeout)


@app.task(retry=AGAIN)
async def approval_or_not(path: str, timeout: float) -> Any:
    return [await wait_for("approved", timeout, default="nobody"), await wait_for("paid", 0, default=None)]


@app.task(retry=AGAIN)
def approval_in_thread(path: str, timeout: float | None = 60.0) -> Any:
    step.sync("one", fetch, path, 1)
    note(path, "waits")
    try:
        return wait_for.sync("approved", timeout)
    except SignalTimeout as error:
        return str(error)


@app.task(retry=AGAIN, on="process")
def approval_in_process(path: str, timeout: float | None = 60.0) -> Any:
    step.sync("one", fetch, path, 1)
    note(path, "waits")
    return wait_for.sync("approved", timeout)


def count_from(path: str, last: int, after: int | None) -> Generator[int]:
    note(path, f"after:{after}")
    yield from range(0 if after is None else after + 1, last)


def handle(path: str, row: int, pause: float) -> None:
    note(path, row)
    current_job().progress(row)
    time.sleep(pause)  # noqa: TID251 - a row takes that long


@app.task(retry=AGAIN, timeout=None)
async def rows(path: str, last: int, pause: float = 0.0) -> int:
    done = 0
    async for row in resumable(partial(count_from, path, last), key=lambda row: row):
        note(path, row)
        current_job().progress(row)
        await anyio.sleep(pause)  # noqa: TID251 - likewise
        done += 1
    return done


@app.task(retry=AGAIN, timeout=None)
def rows_in_thread(path: str, last: int, pause: float = 0.0) -> None:
    for row in resumable.sync(range(last), key=lambda row: row):
        handle(path, row, pause)


@app.task(retry=AGAIN, timeout=None, on="process")
def rows_in_process(path: str, last: int, pause: float = 0.0) -> None:
    for row in resumable.sync(range(last), key=lambda row: row, every=0.1):
        handle(path, row, pause)
