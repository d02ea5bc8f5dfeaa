# /// script
# dependencies = ["saq[redis,hiredis]==0.26.4", "redis==7.4.1", "hiredis==3.5.0", "typing-extensions==4.16.0"]
# ///
"""SAQ: asynchronous tasks, ready jobs by BLMOVE, scheduled ones looked for each second."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue

from bench.oracle import stamp

COMMANDS = [["saq", "bench.schedulers.saq.settings", "--quiet"]]

_queue = Queue.from_url(os.environ["BENCH_REDIS"])


async def job(ctx: dict[str, Any], *, number: int, padding: str = "") -> None:
    stamp(number)


settings = {"queue": _queue, "functions": [job], "concurrency": 32}


@asynccontextmanager
async def connect() -> AsyncGenerator[None]:
    await _queue.connect()
    yield
    await _queue.disconnect()


async def enqueue(number: int) -> None:
    await _queue.enqueue("job", number=number)


async def schedule(due: float, number: int, padding: str = "") -> None:
    await _queue.enqueue("job", number=number, padding=padding, scheduled=due)
