"""What metrics cost: jobs/s with and without them, and lateness while they are scraped."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Final

from bench.figures import Figures, Table
from bench.server import Server, server
from bench.sparse import lateness, sparse_dues
from bench.tasks import due_jobs
from evsched.client.new_job import JobOptions, new_job
from evsched.store.client_calls import New

_DISPATCHER, _WORKER = 9471, 9472
_OPTION: Final = "--metrics-port"
_PAIRS: Final = 5
_SPARSE: Final = 300


@contextmanager
def _scraped(every: float, *ports: int) -> Generator[list[int]]:
    """Scrape ports from a thread; yield the sizes of the pages."""
    stop, sizes = threading.Event(), list[int]()

    def scrape() -> None:
        while not stop.wait(every):
            for port in ports:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                        sizes.append(len(page.read()))
                except OSError:
                    pass  # it is starting, or has ended

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield sizes
    finally:
        stop.set()
        thread.join()


def _rate(count: int, *options: str) -> float:
    """Return the no-op jobs/s of one worker process with these options, all jobs being in the backlog before."""
    with server() as where:
        where.fill_backlog("ours", due_jobs(count, "ours-"))
        with where.evsched("worker", "bench.tasks:app", "--queue", "ours", *options):
            where.until(lambda: not where.redis.exists("evsched:{ours}:backlog", "evsched:{ours}:ready"))
            ids = [f"ours-{i}" for i in range(count)]
            where.ended("ours", ids[-1])
            time.sleep(0.2)
            times = where.fields("ours", ids, "started", "finished")
    return count / (max(end for _, end in times) - min(start for start, _ in times))


def _throughput(count: int) -> Figures:
    plain = _rate(count)
    with _scraped(1.0, _WORKER):
        measured = _rate(count, _OPTION, str(_WORKER))
    return {"jobs/s without": plain, "jobs/s with": measured, "change, %": (measured / plain - 1) * 100}


def _late(where: Server) -> Figures:
    payload = new_job("lateness", (), {}, JobOptions()).payload
    dues = sparse_dues(_SPARSE, time.time() + 0.5)
    jobs = [New(f"s-{time.time_ns()}-{n}", payload, due=due) for n, due in enumerate(dues)]
    where.fill("default", jobs)
    where.ended("default", jobs[-1].id)
    time.sleep(0.2)
    return lateness([values[0] for values in where.fields("default", [job.id for job in jobs], "result")])


def _sparse(every: float | None) -> Figures:
    ports = [str(_DISPATCHER), str(_WORKER)]
    with (
        server() as where,
        where.evsched("dispatcher", _OPTION, ports[0]),
        where.evsched("worker", "bench.tasks:app", _OPTION, ports[1]),
    ):
        where.until(lambda: bool(where.redis.exists("evsched:{default}:leases")))
        time.sleep(1)
        if every is None:
            return _late(where)
        with _scraped(every, _DISPATCHER, _WORKER) as sizes:
            figures = _late(where)
    return {**figures, "pages": len(sizes), "longest page, bytes": max(sizes)}


def tables(count: int) -> dict[str, Table]:
    """Return the tables: rates of so many jobs, and lateness."""
    rates = {"metrics scraped each second": partial(_throughput, count)}
    late = {"not scraped": partial(_sparse, None), "4 scrapes/s of both": partial(_sparse, 0.25)}
    return {
        "metrics": Table("The price of metrics: rates in pairs", rates, _PAIRS),
        "scrapes": Table("The price of metrics: lateness of sparse jobs", late, 3),
    }
