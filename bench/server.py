"""A Redis server of a benchmark's own, and what it says of itself."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import redis

from bench.figures import Failed
from bench.processes import Child, running
from evsched.client.client import Client
from evsched.demo import sent_commands
from evsched.store.client_calls import New
from evsched.transport.call import folder, script
from evsched.transport.embedded import EmbeddedRedis

_ACCOUNTING: Final = 1.5
"""Seconds after which Redis has counted the buffers of all clients again; it does so about once a second."""


class Server:
    """A server with the redis.conf that evsched ships, on loopback, and a plain redis-py client."""

    def __init__(self, server: EmbeddedRedis) -> None:
        self.url = f"redis://127.0.0.1:{server.port}/0"
        self.pid = server.pid
        self.redis: Any = self.client()

    def client(self) -> Any:
        """Return a plain redis-py client with connections of its own."""
        return redis.Redis.from_url(self.url, protocol=2, driver_info=None)

    def memory(self) -> int:
        """Return the bytes that Redis uses, without the buffers of its clients and of the file that it appends to."""
        time.sleep(_ACCOUNTING)
        used: dict[str, int] = self.redis.info("memory")
        return used["used_memory"] - used["mem_clients_normal"] - used["mem_aof_buffer"]

    def rest(self) -> None:
        """Wait until Redis does not rewrite the file that it appends to, as it does after very many writes."""

        def resting() -> bool:
            state: dict[str, int] = self.redis.info("persistence")
            return not (state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])

        self.until(resting)

    def executed(self) -> int:
        """Return how many commands Redis has executed, those inside scripts included."""
        stats: dict[str, dict[str, int]] = self.redis.info("commandstats")
        return sum(one["calls"] for name, one in stats.items() if name != "cmdstat_info")

    def sent(self, seconds: float) -> int:
        """Count for so many seconds the commands that clients send."""
        return len(sent_commands(self.redis, seconds))

    def sent_by_name(self, seconds: float) -> Counter[str]:
        """Count the same by the names of commands, and those of scripts by their verbs."""
        words = [command.split() for command in sent_commands(self.redis, seconds)]
        return Counter(verb(sha[0]) if name.upper() == "EVALSHA" else name.upper() for name, *sha in words)

    @contextmanager
    def evsched(self, *words: str, environment: Mapping[str, str] | None = None) -> Generator[Child]:
        """Run `evsched` with these words, and these variables besides our own."""
        with evsched(self.url, *words, environment=environment) as child:
            yield child

    @contextmanager
    def fleet(self, *options: str) -> Generator[tuple[Child, Child]]:
        """Run a dispatcher and a worker with these options, and wait until the worker serves."""
        with (
            self.evsched("dispatcher") as dispatcher,
            self.evsched("worker", "bench.tasks:app", *options) as worker,
        ):
            self.until(lambda: bool(self.redis.exists("evsched:{default}:leases")))
            time.sleep(1)
            yield dispatcher, worker

    def fill(self, queue: str, jobs: list[New]) -> None:
        """Enqueue jobs for evsched."""
        self.fill_all([(queue, jobs)])

    def fill_all(self, batches: Iterable[tuple[str, list[New]]]) -> None:
        """Enqueue batches of jobs for evsched, each in its queue."""

        async def run() -> None:
            client = Client(self.url)
            for queue, batch in batches:
                await client.enqueue(queue, batch)
            await client.close()

        asyncio.run(run())

    def fill_backlog(self, queue: str, jobs: list[New]) -> None:
        """Enqueue jobs for evsched that are due, and let a dispatcher move them to the backlog."""
        self.fill(queue, jobs)
        with self.evsched("dispatcher"):
            self.until(lambda: not self.redis.exists(f"evsched:{{{queue}}}:schedule"))

    def until(self, condition: Callable[[], bool], limit: float = 120.0) -> None:
        """Wait for a condition, looking every 20 ms."""
        until(condition, limit)

    def ended(self, queue: str, job_id: str) -> None:
        """Wait until the record of evsched's job says that it has ended."""
        self.until(lambda: bool(self.redis.hexists(f"evsched:{{{queue}}}:job:{job_id}", "finished")))

    def fields(self, queue: str, ids: list[str], *names: str) -> list[list[float]]:
        """Read fields of many records of evsched's jobs as numbers."""
        pipe = self.redis.pipeline(transaction=False)
        for job_id in ids:
            pipe.hmget(f"evsched:{{{queue}}}:job:{job_id}", *names)
        return [[float(value) for value in values] for values in pipe.execute()]


def until(condition: Callable[[], bool], limit: float = 120.0) -> None:
    """Wait for a condition, looking every 20 ms."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"a condition of the benchmark was not met within {limit:g} s")
        time.sleep(0.02)


def verb(sha: str) -> str:
    """Return the verb of the script with this SHA; nothing if it is not one of evsched's."""
    return next((file.stem for file in folder().glob("[a-z]*.lua") if script(file.stem).sha == sha), "")


@contextmanager
def evsched(url: str, *words: str, environment: Mapping[str, str] | None = None) -> Generator[Child]:
    """Run `evsched` with these words on the Redis of this URL, with these variables besides our own."""
    command = [str(Path(sys.executable).with_name("evsched")), *words, "--url", url, "--log-level", "ERROR"]
    with running(command, environment or {}) as child:
        yield child


@contextmanager
def server(**settings: str) -> Generator[Server]:
    """Start a server with these settings besides those of redis.conf, and end it."""
    with EmbeddedRedis(port=0, **settings) as embedded:
        yield Server(embedded)
