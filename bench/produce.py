"""Enqueue jobs with one scheduler, in its own environment: `python -m bench.produce NAME`.

Each line on stdin is a request in JSON; the reply is a line on stdout: null when the scheduler cannot do it, else what
the request returned. Only the standard library is imported here, and the scheduler's file, which has some of:

    COMMANDS                        the commands of its processes, in the order in which they are started
    enqueue(number)                 enqueue one job, as a program does that has one
    enqueue_many(jobs)              enqueue many jobs by the call that the scheduler has for this
    schedule(due, number)           schedule one job for a time in Unix seconds
    schedule_many(due, jobs)        schedule many for the same time by one call
    connect()                       an asynchronous context in which the others are called

A job is its number, or its number and a text that does nothing but make the payload longer. Each function is plain or
asynchronous, as the scheduler's own API is.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, redirect_stdout
from inspect import isawaitable
from typing import Any

_TASKS = 100
"""How many tasks enqueue single jobs at the same time, where the API is asynchronous."""

_AT_ONCE = 1000
"""How many jobs are given to a call that takes many."""

Job = tuple[Any, ...]


async def _one_by_one(call: Callable[..., Any], jobs: Iterable[Job]) -> None:
    """Make a call for each job: in turn if it is plain, else from many tasks, which share the jobs."""
    left = iter(jobs)

    async def work() -> None:
        for job in left:
            if isawaitable(made := call(*job)):
                await made

    await asyncio.gather(*(work() for _ in range(_TASKS)))


async def _in_bulk(call: Callable[[list[Job]], Any], jobs: list[Job]) -> None:
    for at in range(0, len(jobs), _AT_ONCE):
        if isawaitable(made := call(jobs[at : at + _AT_ONCE])):
            await made


class Producer:
    """The requests, by the names of the methods. Jobs have the numbers from `first` on."""

    def __init__(self, module: Any) -> None:
        self._module = module

    async def commands(self) -> list[list[str]]:
        """Return the commands of the scheduler's processes."""
        return self._module.COMMANDS

    async def fill(self, first: int, count: int) -> float:
        """Enqueue jobs by the fastest call; return the seconds that it took."""
        took = await self.many(first, count)
        return await self.single(first, count) if took is None else took

    async def many(self, first: int, count: int) -> float | None:
        """Enqueue jobs by the call for many; return the seconds."""
        if not hasattr(self._module, "enqueue_many"):
            return None
        jobs: list[Job] = [(number,) for number in range(first, first + count)]
        began = time.monotonic()
        await _in_bulk(self._module.enqueue_many, jobs)
        return time.monotonic() - began

    async def single(self, first: int, count: int) -> float:
        """Enqueue jobs one by one; return the seconds."""
        began = time.monotonic()
        await _one_by_one(self._module.enqueue, ((number,) for number in range(first, first + count)))
        return time.monotonic() - began

    async def schedule(self, due: float, first: int, count: int, *padding: str) -> bool | None:
        """Schedule jobs for the same time."""
        numbers = range(first, first + count)
        if hasattr(self._module, "schedule_many"):
            await _in_bulk(lambda some: self._module.schedule_many(due, some), [(n, *padding) for n in numbers])
            return True
        return await self._schedule_each((due, n, *padding) for n in numbers)

    async def spread(self, dues: list[float], first: int) -> bool | None:
        """Schedule jobs, each for a time of its own."""
        return await self._schedule_each((due, number) for number, due in enumerate(dues, first))

    async def _schedule_each(self, jobs: Iterable[Job]) -> bool | None:
        if not hasattr(self._module, "schedule"):
            return None
        await _one_by_one(self._module.schedule, jobs)
        return True


@asynccontextmanager
async def _connected(module: Any) -> AsyncGenerator[None]:
    if not hasattr(module, "connect"):
        yield
        return
    async with module.connect():
        yield


async def main(name: str) -> None:
    """Answer requests until stdin ends."""
    replies = sys.stdout
    with redirect_stdout(sys.stderr):  # what a library prints is no reply
        module = importlib.import_module(f"bench.schedulers.{name}")
        producer = Producer(module)
        async with _connected(module):
            while line := await asyncio.to_thread(sys.stdin.readline):
                verb, *arguments = json.loads(line)
                print(json.dumps(await getattr(producer, verb)(*arguments)), file=replies, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
