"""A scheduler under test: its server, its oracle, its processes, and the process that enqueues.

The server is Redis, or PostgreSQL for those that keep their jobs there.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Final

from bench.environments import header, producer, programs
from bench.figures import Failed
from bench.oracle import VARIABLE, Oracle, oracle
from bench.processes import CHECKOUT, Child, running
from bench.server import Server, server
from tests.support.postgres import Postgres, find_postgres

_FIRST: Final = 60.0
"""Seconds that the first job may take from the start of the processes."""

_SETTLE: Final = 2.0
"""Seconds from the first job's run until the processes are taken to have started."""

_PROBE: Final = 0
"""The number of the job that shows that the processes run. The others count from 1."""


class Contender:
    """One scheduler on a server of its own. Its jobs have numbers from 1 on."""

    def __init__(self, name: str, where: Server | Postgres, cells: Oracle, log: IO[str]) -> None:
        self._where = where
        self.server, self.server_pid = header(name).server, where.pid
        self.oracle = cells
        self._folder = programs(name)
        self._environment = {
            f"BENCH_{self.server.upper()}": where.url,
            VARIABLE: str(cells.path),
            "PYTHONPATH": str(CHECKOUT),
        }
        self._log = log
        program, *words = producer(name)
        self._producer = subprocess.Popen(
            [self._folder / program, *words],
            cwd=CHECKOUT,
            env={**os.environ, **self._environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    @property
    def where(self) -> Server:
        """Return its Redis.

        Raises:
            Failed: its jobs are elsewhere.
        """
        if isinstance(self._where, Postgres):
            raise Failed("its jobs are not in Redis")
        return self._where

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Send a request to the producer, and return its reply; see bench/produce.py."""
        pipes = self._producer
        assert pipes.stdin is not None
        assert pipes.stdout is not None
        try:
            pipes.stdin.write(json.dumps([verb, *arguments]) + "\n")
            pipes.stdin.flush()
        except BrokenPipeError:
            pass  # the reply, which there is none of, says more
        reply = pipes.stdout.readline()
        if not reply:
            self._log.seek(0)
            raise Failed(f"its producer ended: {self._log.read().strip().rpartition(chr(10))[2]}")
        return json.loads(reply)

    @contextmanager
    def started(self) -> Generator[list[Child]]:
        """Run the scheduler's processes."""
        with ExitStack() as stack:
            children = list[Child]()
            for program, *words in self.ask("commands"):
                command = [str(self._folder / program), *words]
                children.append(stack.enter_context(running(command, self._environment)))
            yield children

    @contextmanager
    def serving(self) -> Generator[list[Child]]:
        """Run the scheduler's processes, and wait until they have run a job."""
        with self.started() as children:
            self.ask("single", _PROBE, 1)
            end = time.monotonic() + _FIRST
            while not self.oracle.wait(_PROBE, 1, 1.0):
                for child in children:
                    child.check()
                if time.monotonic() > end:
                    raise Failed(f"no job ran within {_FIRST:g} s of the start")
            time.sleep(_SETTLE)
            yield children

    def close(self) -> None:
        """End the producer, which then sends nothing more to Redis."""
        self._producer.terminate()
        self._producer.wait()
        for pipe in (self._producer.stdin, self._producer.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def _postgres() -> Generator[Postgres]:
    folder = find_postgres()
    assert folder is not None, "programs() has looked"
    with Postgres(folder, durable=True) as where:
        yield where


@contextmanager
def contender(name: str, jobs: int) -> Generator[Contender]:
    """Start a server and the producer of a scheduler, with an oracle for so many jobs; end them all."""
    serve = _postgres() if header(name).server == "PostgreSQL" else server()
    with serve as where, oracle(jobs + 1) as cells, tempfile.TemporaryFile("w+") as log:
        one = Contender(name, where, cells, log)
        try:
            yield one
        finally:
            one.close()
