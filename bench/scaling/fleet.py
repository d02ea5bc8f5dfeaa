"""Dispatchers and workers of one queue, which may have shards, and what its jobs cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from bench.figures import Failed, Figures
from bench.oracle import VARIABLE, Oracle, oracle
from bench.processes import Child, cpu
from bench.scaling.site import Counts, Site, site, total
from bench.server import evsched, until
from bench.sparse import LATE, lateness, started
from bench.tasks import SHARDS, stamped_job
from evsched.client.client import Client
from evsched.client.new_job import JobOptions, new_job
from evsched.shards import NONE, Shards, shard
from evsched.store.client_calls import New

QUEUE: Final = "default"

BUSIEST: Final = "busiest node, µs/job"
"""The column of the main thread of the node that had most to do."""

_WARM: Final = 20
"""Jobs for each shard that run before anything is measured."""

_PATIENCE: Final = 1.5, 4.0, 10.0
"""Seconds that it may take to schedule jobs, at the first try and at the next ones; 10,000 of them one second more."""

_BEFORE: Final = 0.5
"""Seconds before the first job is due at which the count begins.

To read the CPU time of 50 workers takes a part of them.
"""

_FAR: Final = 2e9
"""Unix seconds: a due time that no benchmark lives to see."""

_PACE: Final = 0.005
"""Seconds between two groups of jobs that are enqueued for now."""


class Fleet:
    """The site, the processes and the oracle. Jobs have numbers from 1 on."""

    def __init__(self, where: Site, cells: Oracle, shards: int) -> None:
        self.site = where
        self.dispatchers: list[Child] = []
        self.workers: list[Child] = []
        self._oracle = cells
        self.shards = Shards({QUEUE: shards})
        self._next = 1

    def warm_up(self) -> None:
        """Run jobs in each shard: afterwards the processes have done all that they do once."""
        count = _WARM * len(self.shards.all_of(QUEUE))
        if len(self._oracle.wait(self._schedule([0.0] * count), count, LATE)) < count:
            raise Failed(f"the first {count} jobs did not run within {LATE:g} s")

    def at_rate(self, rate: float, seconds: float) -> Figures:
        """Measure jobs that were scheduled before, and are due one after the other."""
        offsets = [n / rate for n in range(round(rate * seconds))]
        first, begin = self._schedule_ahead(offsets)
        time.sleep(max(0.0, begin - _BEFORE - time.time()))
        with self.counting(len(offsets)) as figures:
            late = started(self._oracle, [begin + offset for offset in offsets], first)
        return {**figures, "busiest node, % of a core": figures[BUSIEST] * rate / 1e4, **late}

    def at_once(self, count: int, queues: Sequence[str] = ()) -> dict[str, float]:
        """Measure jobs that are due at the same instant, in these shards or in all: as fast as these processes can."""
        first, due = self._schedule_ahead([0.0] * count, queues)
        time.sleep(max(0.0, due - _BEFORE - time.time()))
        with self.counting(count) as figures:
            times = self._oracle.wait(first, count, LATE)
            if len(times) < count:
                raise Failed(f"{len(times):,} of {count:,} jobs ran within {LATE:g} s")
        seconds = max(times) - due
        return {
            **figures,
            "jobs/s here": count / seconds,
            "busiest node, % of a core": figures[BUSIEST] * count / seconds / 1e4,
            "jobs/s of a whole core, calculated": 1e6 / figures[BUSIEST],
        }

    def in_turn(self, count: int) -> dict[str, float]:
        """Measure the same in the shards of one node after the other, so that the others do not take its cores."""
        queues = [node.redis.keys("evsched:{*}:leases") for node in self.site.nodes]
        names = [[key.decode().split("{")[1].split("}")[0] for key in found] for found in queues]
        parts = [self.at_once(count // len(names), some) for some in names]
        return {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}

    def for_now(self, rate: float, seconds: float) -> Figures:
        """Measure jobs that a program enqueues one by one, due at once. What it takes to enqueue them counts too."""
        count = round(rate * seconds)
        first = self._next
        self._next += count
        with self.counting(count) as figures:
            dues = asyncio.run(self._enqueue(first, count, rate))
            times = self._oracle.wait(first, count, LATE)
        if len(times) < count:
            raise Failed(f"{len(times):,} of {count:,} jobs ran within {LATE:g} s")
        late = [at - due for at, due in zip(times, dues, strict=True)]
        return {**figures, "busiest node, % of a core": figures[BUSIEST] * rate / 1e4, **lateness(late)}

    @contextmanager
    def counting(self, jobs: int) -> Generator[dict[str, float]]:
        """Count what is done for so many jobs; at the end the dict has the figures of one job."""
        figures = dict[str, float]()
        groups = {"dispatcher": self.dispatchers, "worker": self.workers}
        used = {name: cpu(*(child.pid for child in group)) for name, group in groups.items()}
        before = self.site.counts()
        yield figures
        time.sleep(0.2)  # the last ends are written after their jobs ran
        figures.update(_per_job(self.site.since(before), jobs))
        for name, group in groups.items():
            figures[f"{name} µs/job"] = (cpu(*(child.pid for child in group)) - used[name]) / jobs * 1e6

    def _schedule_ahead(self, offsets: Sequence[float], queues: Sequence[str] = ()) -> tuple[int, float]:
        """Schedule jobs before the first is due; return its number, and the time from which the offsets count."""
        for patience in _PATIENCE:
            begin = time.time() + patience + len(offsets) / 10_000
            first = self._schedule([begin + offset for offset in offsets], queues)
            if time.time() < begin - _BEFORE:
                return first, begin
            self._oracle.wait(first, len(offsets), LATE)  # the machine was too busy
        raise Failed("the first jobs were due before all were scheduled")

    def _schedule(self, dues: Sequence[float], queues: Sequence[str] = ()) -> int:
        """Schedule jobs, in these shards in turn or in their homes; return the number of the first."""
        first = self._next
        self._next += len(dues)
        jobs = [stamped_job(number, due) for number, due in enumerate(dues, first)]
        for n, queue in enumerate(queues):
            enqueue(self.site, NONE, jobs[n :: len(queues)], queue)
        if not queues:
            enqueue(self.site, self.shards, jobs)
        return first

    async def _enqueue(self, first: int, count: int, rate: float) -> list[float]:
        """Enqueue jobs one by one at a rate; return when each was enqueued."""
        client, dues, begin = Client(self.site.url, self.shards), list[float](), time.time()
        async with asyncio.TaskGroup() as group:
            while len(dues) < count:
                await asyncio.sleep(_PACE)
                while len(dues) < min(count, (time.time() - begin) * rate):
                    job = stamped_job(first + len(dues), 0.0)
                    dues.append(time.time())
                    group.create_task(client.enqueue(QUEUE, [job]))
        await client.close()
        return dues


def counted(count: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{count} {what}{'s' * (count > 1)}"


def _per_job(nodes: Sequence[Counts], jobs: int) -> dict[str, float]:
    every = total(nodes)
    return {
        "Redis µs/job": every.cpu / jobs * 1e6,
        BUSIEST: max(node.main for node in nodes) / jobs * 1e6,
        "requests/job": every.requests / jobs,
        "script calls/job": every.scripts / jobs,
        "commands/job": every.executed / jobs,
        "bytes/job": every.sent / jobs,
    }


def enqueue(where: Site, shards: Shards, jobs: list[New], queue: str = QUEUE) -> None:
    """Put jobs on the schedule by the call for many."""

    async def run() -> None:
        client = Client(where.url, shards)
        await client.enqueue(queue, jobs)
        await client.close()

    asyncio.run(run())


@contextmanager
def fleet(
    jobs: int,
    *,
    shards: int = 0,
    primaries: int = 0,
    tls: bool = False,
    dispatchers: int = 1,
    workers: int = 1,
    divided: bool = False,
    idle: int = 0,
) -> Generator[Fleet]:
    """Start everything for so many jobs; end it.

    `divided`: each worker serves its part of the shards alone. `idle`: so many other queues have a job for a far time,
    and no worker.
    """
    warm = _WARM * (shards + 1)
    with site(primaries, tls=tls) as where, oracle(len(_PATIENCE) * jobs + warm + 1) as cells, ExitStack() as stack:
        made = Fleet(where, cells, shards)
        far = New("far", new_job("noop", (), {}, JobOptions()).payload, due=_FAR)
        where.nodes[0].fill_all((f"idle-{n}", [far]) for n in range(idle))
        environment = {VARIABLE: str(cells.path), SHARDS: str(shards)}
        for number in range(workers):
            queues = [f"--queue={shard(QUEUE, n)}" for n in range(number, shards, workers)] if divided else []
            words = ["worker", "bench.tasks:app", *queues]
            made.workers.append(stack.enter_context(evsched(where.url, *words, environment=environment)))
        made.dispatchers += [stack.enter_context(evsched(where.url, "dispatcher")) for _ in range(dispatchers)]
        leases = shards if divided else workers * (shards + 1)
        until(lambda: _serving(made, leases))
        made.warm_up()
        yield made


def _serving(made: Fleet, leases: int) -> bool:
    for child in (*made.workers, *made.dispatchers):
        child.check()
    return made.site.leases() >= leases
