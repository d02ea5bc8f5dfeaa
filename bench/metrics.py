"""What metrics cost: jobs/s with and without them, and lateness while they are scraped."""

from __future__ import annotations

import statistics
import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager

from bench.place import percentile, place
from bench.speed import noop_rate, sparse_lateness

_PAIRS = 5
_DISPATCHER, _WORKER = 9471, 9472


@contextmanager
def scraped(every: float, *ports: int) -> Generator[list[int]]:
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


def metrics(count: int = 60_000) -> list[str]:
    """Alternate runs without metrics and with them, scraped each second; then sparse jobs, scraped or not."""
    ratios, plain = list[float](), list[float]()
    for _ in range(_PAIRS):
        plain.append(noop_rate(count))
        with scraped(1.0, _WORKER):
            ratios.append(noop_rate(count, "--metrics-port", str(_WORKER)) / plain[-1])
    quiet, busy, pages = list[float](), list[float](), list[int]()
    with (
        place() as where,
        where.process("dispatcher", "--metrics-port", str(_DISPATCHER)),
        where.process("worker", "bench.tasks:app", "--metrics-port", str(_WORKER)),
    ):
        where.until(lambda: bool(where.redis.exists("evsched:{default}:leases")))
        time.sleep(1)
        for n in range(3):
            quiet += sparse_lateness(where, 300, f"quiet{n}-")
            with scraped(0.25, _DISPATCHER, _WORKER) as sizes:
                busy += sparse_lateness(where, 300, f"busy{n}-")
            pages += sizes
    low, high = min(ratios), max(ratios)
    alone, beside = (percentile(values, 0.99) * 1e3 for values in (quiet, busy))
    rate = statistics.median(plain)
    cost = f"{statistics.median(ratios) - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%} in {_PAIRS} pairs)"
    size = f"{len(pages)} pages of at most {max(pages):,} bytes"
    return [
        f"jobs/s with metrics, scraped each second, against {rate:,.0f}/s without: {cost}",
        f"p99 lateness of sparse jobs: {alone:.2f} ms; with 4 scrapes a second of both: {beside:.2f} ms, {size}",
    ]
