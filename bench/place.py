"""Where the benchmark runs: a private Redis, and dispatchers and workers as processes of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import redis

from evsched.client.client import Client
from evsched.store.clients import New
from evsched.transport.embedded import EmbeddedRedis


class Place:
    """A server, a plain redis-py client, and a way to run evsched's processes."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self.url = server.url
        self.pid = server.pid
        self.redis: Any = redis.Redis.from_url(server.url, protocol=2, driver_info=None)

    @contextmanager
    def process(self, *words: str) -> Generator[subprocess.Popen[bytes]]:
        """Run `evsched` with these words, and end it."""
        environment = {**os.environ, "EVSCHED_URL": self.url}
        command = [sys.executable, "-m", "evsched", *words, "--log-level", "ERROR"]
        child = subprocess.Popen(command, env=environment)
        try:
            yield child
        finally:
            child.terminate()
            child.wait(30)

    def until(self, condition: Callable[[], bool], limit: float = 120.0) -> None:
        """Wait for a condition, looking every 20 ms."""
        end = time.monotonic() + limit
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"a condition of the benchmark was not met within {limit:g} s")
            time.sleep(0.02)

    def ended(self, queue: str, job_id: str) -> None:
        """Wait until a job's record says that it has ended."""
        self.until(lambda: bool(self.redis.hexists(f"evsched:{{{queue}}}:job:{job_id}", "finished")))

    def fields(self, queue: str, ids: list[str], *names: str) -> list[list[float]]:
        """Read fields of many records as numbers."""
        pipe = self.redis.pipeline(transaction=False)
        for job_id in ids:
            pipe.hmget(f"evsched:{{{queue}}}:job:{job_id}", *names)
        return [[float(value) for value in values] for values in pipe.execute()]


def fill(where: Place, queue: str, jobs: list[New]) -> None:
    """Enqueue jobs."""

    async def run() -> None:
        client = Client(where.url)
        await client.enqueue(queue, jobs)
        await client.close()

    asyncio.run(run())


@contextmanager
def place() -> Generator[Place]:
    """Start a server, yield the place, end it."""
    with EmbeddedRedis() as server:
        yield Place(server)


def cpu(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def percentile(values: list[float], share: float) -> float:
    """Return the value below which that share of the values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]
