"""Run the benchmark: `make bench`, or `python -m bench NAME ...` for some of it.

Absolute figures hold for this machine only; ratios and counts hold elsewhere. Each figure is the median of some runs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from functools import partial

from bench import flood, metrics, overdue, policy
from bench.place import Place, cpu, fill, percentile, place
from bench.speed import due_jobs, sparse, throughput
from bench.tasks import app, noop
from evsched import App, Retry
from evsched.client.new_job import JobOptions, new_job
from evsched.demo import count_commands
from evsched.recurrence.recurrence import Declared
from evsched.store.clients import New
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_RUNS = 3


def instant(count: int = 10_000) -> list[str]:
    """Measure how late the last of many jobs starts that are due in the same instant."""
    lasts = list[float]()
    for _ in range(_RUNS):
        with place() as where, where.process("dispatcher"), where.process("worker", "bench.tasks:app"):
            where.until(lambda: bool(where.redis.exists("evsched:{default}:leases")))
            time.sleep(1)
            due = time.time() + 2
            fill(where, "default", due_jobs(count, "i-", due=due))
            time.sleep(3)
            started = where.fields("default", [f"i-{i}" for i in range(count)], "started")
            where.until(lambda: not where.redis.exists("evsched:{default}:backlog"))
            lasts.append(max(start for (start,) in started) - due)
    return [f"{count:,} jobs due in one instant: last start after {statistics.median(lasts):.3f} s"]


def idle(seconds: float = 60.0) -> list[str]:
    """Measure what an idle fleet of one dispatcher and one worker costs."""
    with place() as where, where.process("dispatcher") as one, where.process("worker", "bench.tasks:app") as two:
        where.until(lambda: bool(where.redis.exists("evsched:{default}:leases")))
        time.sleep(8)
        before = cpu(one.pid) + cpu(two.pid)
        sent = count_commands(where.redis, seconds)
        used = cpu(one.pid) + cpu(two.pid) - before
    return [f"idle for {seconds:g} s: {sent / seconds:.3f} commands/s, {used / seconds:.3%} CPU"]


def enqueue() -> list[str]:
    """Measure enqueueing, 1,000 jobs in a round trip and single jobs from 100 tasks, while nothing else runs."""

    async def run(url: str) -> tuple[float, float]:
        other = App(url)
        other.tasks.update(app.tasks)
        app.move_to(url)
        later = noop.using(delay=3600)
        began = time.monotonic()
        await later.enqueue_many([()] * 100_000)
        many = 100_000 / (time.monotonic() - began)
        began = time.monotonic()

        async def some() -> None:
            for _ in range(300):
                await later.enqueue()

        await asyncio.gather(*(some() for _ in range(100)))
        single = 30_000 / (time.monotonic() - began)
        await app.close()
        return many, single

    results = list[tuple[float, float]]()
    for _ in range(_RUNS):
        with place() as where:
            results.append(asyncio.run(run(where.url)))
    many, single = (statistics.median(column) for column in zip(*results, strict=True))
    return [f"enqueue_many: {many:,.0f}/s; single enqueues from 100 tasks: {single:,.0f}/s"]


def memory(count: int = 100_000) -> list[str]:
    """Measure the bytes of Redis per scheduled job with a payload of 60 bytes: with a record, and inline."""
    lines = list[str]()
    for kind in ("record", "inline"):
        with place() as where:
            before = where.redis.info("memory")["used_memory"]
            if kind == "record":
                payload = b'{"task":"send_mail","args":["somebody-or-other@example.com"]}'[:60].ljust(60)
                fill(where, "m", [New(f"{i:024x}", payload, due=2e9 + i) for i in range(count)])
            else:
                pipe = where.redis.pipeline(transaction=False)
                for i in range(count):
                    member = f'{{"task":"send_mail","args":["somebody-{i:07d}@example.com"]}}'
                    pipe.zadd("evsched:{m}:schedule", {member.ljust(60): 2e9 + i})
                pipe.execute()
            used = where.redis.info("memory")["used_memory"] - before
            lines.append(f"{kind} {used / count:.0f}")
    return [f"bytes of Redis per scheduled job, 60-byte payload: {', '.join(lines)}"]


def recurrences(count: int = 10_000) -> list[str]:
    """Measure cron recurrences due in one minute, beside sparse jobs; and what 100,000 of them cost an idle fleet."""
    with place() as where, where.process("dispatcher"), where.process("worker", "bench.tasks:app"):
        where.until(lambda: bool(where.redis.exists("evsched:{default}:leases")))
        now = time.time()
        minute = (now + 50) // 60 * 60 + (60 if now % 60 > 20 else 0)
        rule = f"{int(minute // 60 % 60)} * * * *"
        noop_payload = new_job("noop", (), {}, JobOptions(retry=Retry(attempts=1))).payload
        late_payload = new_job("lateness", (), {}, JobOptions()).payload
        _declare(where, [Declared(name=f"r{n}", rule=rule, payload=noop_payload) for n in range(count)])
        dues = [minute - 20 + n * 0.1 for n in range(300)]
        fill(where, "default", [New(f"s-{n}", late_payload, due=due) for n, due in enumerate(dues)])
        where.ended("default", "s-299")
        ids = [f"r{n}@{int(minute)}" for n in range(count)]
        started = [start for (start,) in where.fields("default", ids, "started")]
        late = [values[0] for values in where.fields("default", [f"s-{n}" for n in range(300)], "result")]
        last = f"the last started {max(started) - minute:.3f} s after it"
        ahead = [value for value, due in zip(late, dues, strict=True) if due < minute]
        p99, before = percentile(late, 0.99) * 1e3, percentile(ahead, 0.99) * 1e3
        sparse = f"sparse jobs meanwhile p99 {p99:.1f} ms late, {before:.1f} before the minute"
        line = f"{count:,} recurrences due in one minute: {last}; {sparse}"
    with place() as where, where.process("dispatcher") as one, where.process("worker", "bench.tasks:app") as two:
        _declare(where, [Declared(name=f"r{n}", rule="0 0 1 1 *", payload=noop_payload) for n in range(100_000)])
        where.until(lambda: not where.redis.zcount("evsched:{default}:recurrences", 0, 0), 300)
        time.sleep(8)
        before = cpu(one.pid) + cpu(two.pid)
        sent = count_commands(where.redis, 30)
        used = cpu(one.pid) + cpu(two.pid) - before
    return [line, f"idle for 30 s with 100,000 recurrences: {sent / 30:.3f} commands/s, {used / 30:.3%} CPU"]


def _declare(where: Place, declared: list[Declared]) -> None:
    async def run() -> None:
        sender, store = BatchingSender(where.url), Store("default")
        for at in range(0, len(declared), 500):
            await sender.send_all([store.declare(one) for one in declared[at : at + 500]])
        await sender.close()

    asyncio.run(run())


_ALL: dict[str, Callable[[], list[str]]] = {
    "throughput": throughput,
    "sparse": sparse,
    "instant": instant,
    "enqueue": enqueue,
    "memory": memory,
    "flood": flood.flood,
    "overdue": overdue.overdue,
    "fairness": policy.fairness,
    "shares": policy.shares,
    "priorities": policy.priorities,
    "rate": policy.rate,
    "recurrences": recurrences,
    "idle": idle,
    "metrics": metrics.metrics,
}


def main() -> None:
    """Run what the command line names, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(_ALL)}; all if you name none")
    parser.add_argument("--jobs", type=int, default=100_000, help="how many jobs are overdue in `overdue`")
    arguments = parser.parse_args()
    benchmarks = _ALL | {"overdue": partial(overdue.overdue, arguments.jobs)}
    names = arguments.names or list(_ALL)
    unknown = [name for name in names if name not in _ALL]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}")
    for name in names:
        for line in benchmarks[name]():
            print(line, flush=True)


if __name__ == "__main__":
    main()
