"""evsched on a server of its own, with as many queues and workers as a row of a table has, and the oracle."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager

from bench.figures import Failed, Figures
from bench.oracle import VARIABLE, Oracle, oracle
from bench.processes import Child, cpu
from bench.server import Server, server
from bench.sparse import LATE, sparse_dues, started
from bench.tasks import stamped_job


class Stage:
    """The server, the oracle and the queues. Jobs have numbers from 1 on, and note in the oracle when they run."""

    def __init__(self, where: Server, cells: Oracle, queues: int) -> None:
        self.where = where
        self.oracle = cells
        self.queues = ["default", *(f"q{n}" for n in range(1, queues))]
        self._next = 1

    @contextmanager
    def workers(self, count: int = 1, *options: str) -> Generator[list[Child]]:
        """Run workers that serve all queues, and wait until they do."""
        words = ["worker", "bench.tasks:app", *options]
        words += [word for queue in self.queues for word in ("--queue", queue)]
        environment = {VARIABLE: str(self.oracle.path)}
        with ExitStack() as stack:
            children = [stack.enter_context(self.where.evsched(*words, environment=environment)) for _ in range(count)]
            self.where.until(lambda: self._serving(count, children))
            yield children

    def _serving(self, count: int, children: list[Child]) -> bool:
        for child in children:
            child.check()
        pipe = self.where.redis.pipeline(transaction=False)
        for queue in self.queues:
            pipe.zcard(f"evsched:{{{queue}}}:leases")
        return min(pipe.execute()) >= count

    def schedule(self, dues: Sequence[float], priority: int | None = None, **keywords: float) -> int:
        """Schedule a job for each of these times, in the queues in turn; return the number of the first job."""
        first, queues = self._next, len(self.queues)
        self._next += len(dues)
        jobs = [stamped_job(number, due, priority, **keywords) for number, due in enumerate(dues, first)]
        self.where.fill_all((queue, jobs[n::queues]) for n, queue in enumerate(self.queues) if jobs[n::queues])
        return first

    def warm_up(self) -> None:
        """Run a job in each queue: afterwards the processes have done all that they do once."""
        first = self.schedule([0.0] * len(self.queues))
        if len(self.oracle.wait(first, len(self.queues), LATE)) < len(self.queues):
            raise Failed(f"not all queues ran a job within {LATE:g} s")

    def sparse(self, count: int, priority: int | None = None) -> Figures:
        """Measure the lateness of jobs that are due one by one."""
        dues = sparse_dues(count, self.soon(count))
        return started(self.oracle, dues, self.schedule(dues, priority))

    def burst(self, count: int, pids: list[int]) -> Figures:
        """Measure jobs that are due at the same instant: the last start, and what they cost these processes."""
        due = self.soon(count)
        first = self.schedule([due] * count)
        if time.time() > due:
            raise Failed("the jobs were due before all were scheduled")
        used, redis = cpu(*pids), cpu(self.where.pid)
        times = self.oracle.wait(first, count, due - time.time() + LATE)
        used, redis = cpu(*pids) - used, cpu(self.where.pid) - redis
        if len(times) < count:
            raise Failed(f"{len(times):,} of {count:,} jobs ran within {LATE:g} s")
        return {
            "last start, s": max(times) - due,
            "CPU µs/job": used / count * 1e6,
            "Redis µs/job": redis / count * 1e6,
        }

    def soon(self, jobs: int) -> float:
        """Return a time at which so many jobs should have been scheduled."""
        return time.time() + 2 + jobs / 2_000 + len(self.queues) / 50


@contextmanager
def stage(jobs: int, queues: int = 1) -> Generator[Stage]:
    """Start a server, with an oracle for so many jobs and those of a warm-up; end it."""
    with server() as where, oracle(jobs + queues + 1) as cells:
        yield Stage(where, cells, queues)
