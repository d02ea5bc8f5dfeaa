"""How fast and how exact: no-op jobs beside the bare loop, and the lateness of sparse jobs."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time

from bench.place import Place, fill, percentile, place
from evsched.client.new_job import JobOptions, new_job
from evsched.store.clients import New

_RUNS = 3


def due_jobs(count: int, prefix: str, task: str = "noop", due: float = 1.0) -> list[New]:
    """Return jobs that are all due at the same time."""
    payload = new_job(task, (), {}, JobOptions()).payload
    return [New(f"{prefix}{i}", payload, due=due) for i in range(count)]


def fill_backlog(where: Place, queue: str, count: int) -> None:
    """Enqueue jobs that are due, and let a dispatcher move them to the backlog."""
    fill(where, queue, due_jobs(count, f"{queue}-"))
    with where.process("dispatcher"):
        where.until(lambda: not where.redis.exists(f"evsched:{{{queue}}}:schedule"))


def noop_rate(count: int, *flags: str) -> float:
    """Return the no-op jobs/s of one worker process with these flags."""
    with place() as where:
        fill_backlog(where, "ours", count)
        with where.process("worker", "bench.tasks:app", "--queue", "ours", *flags):
            where.until(lambda: not where.redis.exists("evsched:{ours}:backlog", "evsched:{ours}:ready"))
            ids = [f"ours-{i}" for i in range(count)]
            where.ended("ours", ids[-1])
            time.sleep(0.2)
            times = where.fields("ours", ids, "started", "finished")
    return count / (max(end for _, end in times) - min(start for start, _ in times))


def sparse_lateness(where: Place, count: int, prefix: str = "s-") -> list[float]:
    """Run sparse jobs, and return how late each was, in seconds. A dispatcher and a worker must be running."""
    now, jobs = time.time() + 0.5, list[New]()
    rng = random.Random(1)
    payload = new_job("lateness", (), {}, JobOptions()).payload
    for i in range(count):
        now += rng.uniform(0.01, 0.05)
        jobs.append(New(f"{prefix}{i}", payload, due=now))
    fill(where, "default", jobs)
    where.ended("default", jobs[-1].id)
    return [values[0] for values in where.fields("default", [job.id for job in jobs], "result")]


def throughput() -> list[str]:
    """No-op jobs/s of one worker process beside the bare loop over the same scripts."""
    count, ours, bares = 60_000, list[float](), list[float]()
    for _ in range(_RUNS):
        with place() as where:
            fill_backlog(where, "bare", count)
            command = [sys.executable, "-m", "bench.bare", where.url, "bare", str(count)]
            bares.append(count / float(subprocess.run(command, capture_output=True, check=True, text=True).stdout))
        ours.append(noop_rate(count))
    mine, bare = statistics.median(ours), statistics.median(bares)
    return [
        f"no-op jobs, one worker process: {mine:,.0f}/s",
        f"bare loop over the same scripts: {bare:,.0f}/s; ours is {mine / bare:.0%} of it",
    ]


def sparse(count: int = 500) -> list[str]:
    """Lateness from due to handler of sparse jobs; dispatcher and worker as processes of their own."""
    with place() as where, where.process("dispatcher"), where.process("worker", "bench.tasks:app"):
        where.until(lambda: bool(where.redis.exists("evsched:{default}:leases")))
        time.sleep(1)
        late = sparse_lateness(where, count)
    p50, p99 = percentile(late, 0.5) * 1e3, percentile(late, 0.99) * 1e3
    early = sum(value < 0 for value in late)
    return [f"{count} sparse jobs, due to handler: p50 {p50:.2f} ms, p99 {p99:.2f} ms, {early} early"]
