"""Several dispatchers in one process, whose commands are counted.

`crowd` starts the process, which is this module run as a program. There a line on stdin asks for the counts since the
start: calls of scripts, other commands, CPU seconds.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from bench.server import Server
from evsched.config import Config
from evsched.dispatcher.dispatcher import Dispatcher
from evsched.events import Events
from evsched.runtime.loops import Runtime
from evsched.transport.call import Call, T
from evsched.transport.senders import BatchingSender


class Crowd:
    """The process, as a benchmark sees it."""

    def __init__(self, where: Server, count: int) -> None:
        command = [sys.executable, "-m", "bench.crowd", where.url, str(count)]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.child.pid

    def counts(self) -> list[float]:
        """Return how many scripts and other commands the dispatchers have sent, and the CPU seconds that they used."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return [float(word) for word in self.child.stdout.readline().split()]


@contextmanager
def crowd(where: Server, count: int) -> Generator[Crowd]:
    """Run so many dispatchers."""
    started = Crowd(where, count)
    try:
        yield started
    finally:
        started.child.communicate()


class Counted(BatchingSender):
    """A sender that counts its commands: script calls, and others."""

    scripts = 0
    others = 0

    async def send(self, call: Call[T]) -> T:
        self._count([call])
        return await super().send(call)

    async def send_all(self, calls: Any) -> list[Any]:
        self._count(calls)
        return await super().send_all(calls)

    def _count(self, calls: list[Call[Any]]) -> None:
        scripts = sum(call.script is not None for call in calls)
        Counted.scripts += scripts
        Counted.others += len(calls) - scripts


async def run(url: str, count: int) -> None:
    """Run dispatchers until stdin ends."""
    config = Config(url=url)
    group = [Dispatcher(Runtime(config, Counted(url), Events().emit)) for _ in range(count)]
    for dispatcher in group:
        await dispatcher.find_queues()
    running = [asyncio.create_task(dispatcher.run()) for dispatcher in group]
    while await asyncio.to_thread(sys.stdin.readline):
        print(Counted.scripts, Counted.others, time.process_time(), flush=True)
    for task in running:
        task.cancel()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
