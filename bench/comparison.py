"""The same work for all schedulers: how fast, how exact, how frugal. Figures come from the oracle and from Redis."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from bench import floors
from bench.contender import Contender, contender
from bench.environments import title
from bench.figures import Failed, Figures, Table, rate
from bench.processes import Child, cpu
from bench.scale import Scale
from bench.sparse import LATE, sparse_dues, started
from bench.watch import watch

_PROBES: Final = 100
"""Jobs that are scheduled first, which shows how long scheduling takes."""

_FAR: Final = 2e9
"""Unix seconds: a due time that no benchmark lives to see."""

_MILLION: Final = 1_000_000
_PADDING: Final = "x" * 26
"""With a number of seven digits and this text the payload of evsched's job has 60 bytes."""


def throughput(name: str, scale: Scale) -> Figures:
    """Measure no-op jobs that are all enqueued before the processes start, from the first that runs to the last."""
    with contender(name, scale.jobs) as one:
        one.ask("fill", 1, scale.jobs)
        with one.started() as children:
            return drained(one, children, scale)


def drained(one: Contender, children: Sequence[Child], scale: Scale) -> Figures:
    """Measure jobs that processes run which have just been started, from the first job that runs to the last."""
    pids = [child.pid for child in children]
    begun = one.oracle.wait_for_one(1, scale.jobs, scale.limit)
    used, server = cpu(*pids), cpu(one.server_pid)
    times = one.oracle.wait(1, scale.jobs, scale.limit)
    used, server = cpu(*pids) - used, cpu(one.server_pid) - server
    for child in children:
        child.check()
    left = len(times) - begun
    return {
        "jobs/s": rate(times),
        "CPU µs/job": used / left * 1e6 if left else None,
        f"{one.server} µs/job": server / left * 1e6 if left else None,
    }


def dispatched(scale: Scale) -> Figures:
    """Measure evsched's no-op jobs when a dispatcher has moved them all before the worker starts."""
    with contender("evsched", scale.jobs) as one:
        one.ask("fill", 1, scale.jobs)
        with one.where.evsched("dispatcher"):
            one.where.until(lambda: not one.where.redis.exists("evsched:{default}:schedule"))
        with one.started() as children:
            return drained(one, children, scale)


_CANNOT: Final = "it cannot schedule jobs"


def _schedule(one: Contender, first: int, count: int) -> float:
    """Schedule jobs for one instant that is not too near; return it."""
    began = time.time()
    if one.ask("schedule", began + 1, first + count, _PROBES) is None:
        raise Failed(_CANNOT)
    now = time.time()
    due = now + 2 + 2 * (now - began) * count / _PROBES
    one.ask("schedule", due, first, count)
    if time.time() > due:
        raise Failed("the jobs were due before all were scheduled")
    return due


def instant(name: str, scale: Scale) -> Figures:
    """Measure when the first and the last of many jobs start that are due at the same instant."""
    with contender(name, scale.instant + _PROBES) as one, one.serving():
        due = _schedule(one, 1, scale.instant)
        times = one.oracle.wait(1, scale.instant, due - time.time() + LATE)
    if len(times) < scale.instant:
        raise Failed(f"{len(times):,} of {scale.instant:,} jobs ran within {LATE:g} s")
    early = sum(at < due for at in times)
    return {"first start, s": min(times) - due, "last start, s": max(times) - due, "early": early}


def sparse(name: str, scale: Scale) -> Figures:
    """Measure the lateness of jobs that are due one by one, from the due time to the handler."""
    with contender(name, scale.sparse) as one, one.serving():
        dues = sparse_dues(scale.sparse, time.time() + 2 + scale.sparse / 100)
        if one.ask("spread", dues, 1) is None:
            raise Failed(_CANNOT)
        return started(one.oracle, dues)


def idle(name: str, scale: Scale) -> Figures:
    """Measure what the processes and Redis do while there is no job."""
    with contender(name, 0) as one:
        redis = one.where
        with one.serving() as children:
            one.close()
            return watch(redis, [child.pid for child in children], scale.idle)


def memory(name: str, scale: Scale) -> Figures:
    """Measure the bytes of Redis for each job that is scheduled for a far time."""
    with contender(name, 0) as one:
        redis = one.where
        if one.ask("schedule", _FAR, _MILLION - 1, 1, _PADDING) is None:  # what is stored once
            raise Failed(_CANNOT)
        before = redis.memory()
        one.ask("schedule", _FAR, _MILLION, scale.stored, _PADDING)
        used = redis.memory() - before
    return {"bytes/job": used / scale.stored}


def enqueue(name: str, scale: Scale) -> Figures:
    """Measure enqueueing while nothing else runs: by the call for many jobs, and one by one."""
    with contender(name, 0) as one:
        one.ask("fill", 1, _PROBES)  # connections, imports
        count = scale.jobs // 4
        many = one.ask("many", 1 + _PROBES, count)
        single = one.ask("single", _MILLION, count)
    return {"many, jobs/s": many and count / many, "single, jobs/s": count / single}


_TITLES: Final[dict[str, tuple[str, Callable[[str, Scale], Figures]]]] = {
    "throughput": ("No-op jobs, one worker process", throughput),
    "instant": ("Jobs due at one instant", instant),
    "sparse": ("Sparse jobs: lateness from due to handler", sparse),
    "idle": ("Idle", idle),
    "memory": ("Memory of Redis for each scheduled job", memory),
    "enqueue": ("Enqueueing", enqueue),
}


_NOTES: Final = {
    "throughput": "All jobs are enqueued before the processes start. Counted from the first job that runs to the last.",
    "idle": "Sent: by clients. Executed: those inside scripts too.",
    "memory": "The payload of evsched's job has 60 bytes; the others get the same arguments.",
    "enqueue": "-: there is no call for many jobs. Single: from 100 tasks if the API is asynchronous, else in turn.",
}


def _missing(reason: str) -> Figures:
    raise Failed(reason)


def tables(names: Sequence[str], scale: Scale, missing: Mapping[str, str]) -> dict[str, Table]:
    """Return the tables that compare these schedulers. A row of one that is `missing` says why."""
    made = dict[str, Table]()
    for key, (heading, figures) in _TITLES.items():
        rows = {title(name): partial(figures, name, scale) for name in names}
        if key == "throughput" and "evsched" in names:
            rows |= {"evsched, jobs dispatched before": partial(dispatched, scale), **floors.rows(scale)}
        rows |= {title(name): partial(_missing, reason) for name, reason in missing.items()}
        made[key] = Table(heading, rows, scale.rounds, _NOTES.get(key, ""))
    return made
