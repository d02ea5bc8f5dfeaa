"""Several dispatchers in one process, whose commands are counted. The flood benchmark runs this.

A line on stdin asks for the counts since the start: calls of scripts, other commands, CPU seconds.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from evsched.config import Config
from evsched.dispatcher.dispatcher import Dispatcher
from evsched.events import Events
from evsched.runtime.runtime import Runtime
from evsched.transport.call import Call, T
from evsched.transport.senders import BatchingSender


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
    """Run until stdin ends."""
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
