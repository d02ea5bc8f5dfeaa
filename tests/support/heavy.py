"""Tasks for processes, which import them by the name of this module."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Any

from msgspec import Struct

from evsched import App, EndedJob, GiveUp, Retry, RetryLater, Snooze, current_job

app = App()


@app.task(on="process")
def double(number: int) -> int:
    return 2 * number


@app.task(on="process")
def describe(ended: EndedJob) -> str:
    return f"{ended.id} of {ended.task} is {ended.outcome}: {ended.result}"


@app.task(on="process")
def pid() -> int:
    return os.getpid()


@app.task(on="process", retry=Retry(attempts=1))
def spin(path: str) -> None:
    """Write the id of the process to a file, and keep a core busy for up to a minute."""
    with open(path, "w") as file:  # noqa: PTH123
        file.write(f"{os.getpid()}\n")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        pass


@app.task(on="process", retry=Retry(attempts=2, interval=0.01, jitter=0))
def steer(how: str) -> int:
    job = current_job()
    if how == "later" and job.attempt == 1:
        raise RetryLater(0.01, "not yet")
    if how == "never":
        raise GiveUp("the account is closed")
    if how == "fail":
        raise ValueError("no luck")
    if how == "snooze":
        raise Snooze(1.0, "\ud800")
    if how == "die":
        os._exit(3)
    return job.attempt


@app.task(on="process")
def odd_result(which: str) -> Any:
    """Return a value that JSON cannot hold."""
    deep: list[Any] = []
    for _ in range(100_000 if which == "deep" else 0):
        deep = [deep]
    odd = {"nan": float("nan"), "nested": {"a": [1, (float("-inf"),)]}, "object": object(), "surrogate": "\ud800"}
    return odd.get(which, deep)


@app.task(retry=Retry(attempts=2, interval=60))
async def interrupt() -> None:
    """Raise KeyboardInterrupt in the event loop, as a task that a handler created may do."""

    def raise_it() -> None:
        raise KeyboardInterrupt

    asyncio.get_running_loop().call_soon(raise_it)
    await asyncio.Event().wait()


@app.task(on="process")
def wait_for(path: str) -> int:
    """Wait until nobody holds the lock of a file."""
    with open(path) as file:  # noqa: PTH123
        fcntl.flock(file, fcntl.LOCK_SH)
    return current_job().attempt


@app.task(retry=Retry(attempts=5, interval=0, jitter=0))
async def die_here() -> None:
    """End the process that runs it, unless it is the process of the tests."""
    os._exit(9) if os.environ.get("PYTEST_PROCESS") != str(os.getpid()) else None


@app.task
async def where() -> tuple[int, int]:
    current_job().progress(1, 2)
    return os.getpid(), current_job().attempt


@app.task(on="process")
def read_tags() -> tuple[str, ...]:
    return current_job().tags


@app.task(on="process")
def write_to_sockets() -> None:
    """Write a frame that holds no value to each socket of the process, and do not return."""
    for number in range(3, 256):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, (1).to_bytes(8, "big") + b"\xc1")
    threading.Event().wait(60)


class Fatal(Struct):
    """Ends the process that makes one of it, unless that is the process of the tests."""

    def __post_init__(self) -> None:
        os._exit(9) if os.environ.get("PYTEST_PROCESS") != str(os.getpid()) else None


@app.task(on="process", retry=Retry(attempts=2, interval=0, jitter=0))
def accept(fatal: Fatal) -> None:
    """Begins in no process."""


@app.task(on="process", retry=Retry(attempts=1))
def climb(gate: str, fail: bool = False) -> None:
    """Report progress often, wait until a pipe is closed, report progress once more."""
    job = current_job()
    for n in range(1000):
        job.progress(n, 1000, "on the way")
    with open(gate) as opened:  # noqa: PTH123
        opened.read()
    job.progress(1000, 1000, "the top")
    if fail:
        raise ValueError("the way down")


@app.task(timeout=0.5, retry=Retry(attempts=2, interval=60))
async def hang(path: str) -> None:
    await _hang(path)


@app.task(retry=Retry(attempts=2))
async def hang_without_limit(path: str) -> None:
    await _hang(path)


@app.task(retry=Retry(attempts=2))
def hang_in_thread(_: str) -> None:
    job = current_job()
    job.progress(1)
    while not job.cancelled:
        threading.Event().wait(0.01)


@app.task(on="process", retry=Retry(attempts=2))
def hang_in_process(_: str) -> None:
    current_job().progress(1)
    threading.Event().wait(60)


async def _hang(path: str) -> None:
    """Write down how it is stopped."""
    file = Path(path)
    file.write_text(f"began {os.getpid()}")
    current_job().progress(1)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.to_thread(time.monotonic)  # a handler may still await when it cleans up
        file.write_text(f"cancelled: {current_job().stopped}")
        raise


@app.task(timeout=0.2, retry=Retry(attempts=2, interval=60))
async def do_not_yield() -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


@app.task
async def snooze_once() -> int:
    if current_job().due == current_job().planned:
        raise Snooze(0.01, "not yet")
    return current_job().attempt


@app.task
async def speak() -> None:
    sys.stdout.write("printed\n")
    sys.stderr.write("to stderr\n")
    logging.getLogger("app").warning("logged")
