"""Sparse jobs, which are due one by one: their due times, and how late they start."""

from __future__ import annotations

import random
import time
from typing import Final

from bench.figures import Failed, Figures, percentile
from bench.oracle import Oracle

LATE: Final = 60.0
"""Seconds after the due time for which the benchmark waits for jobs."""


def sparse_dues(count: int, begin: float) -> list[float]:
    """Return due times that are 10 to 50 ms apart, the same each time."""
    rng, dues = random.Random(1), list[float]()
    for _ in range(count):
        begin += rng.uniform(0.01, 0.05)
        dues.append(begin)
    return dues


def lateness(late: list[float]) -> Figures:
    """Return the figures of jobs' lateness in seconds."""
    p50, p99 = percentile(late, 0.5) * 1e3, percentile(late, 0.99) * 1e3
    return {"p50, ms": p50, "p99, ms": p99, "early": sum(one < 0 for one in late)}


def started(oracle: Oracle, dues: list[float], first: int = 1) -> Figures:
    """Wait until the jobs with these due times have started, and return the figures and the samples of their lateness.

    Raises:
        Failed: the first due time has passed, so the jobs may have been scheduled too late; or not all have run.
    """
    if time.time() > dues[0]:
        raise Failed("the first jobs were due before all were scheduled")
    times = oracle.wait(first, len(dues), dues[-1] - time.time() + LATE)
    if len(times) < len(dues):
        raise Failed(f"{len(times):,} of {len(dues):,} jobs ran within {LATE:g} s")
    late = [at - due for at, due in zip(times, dues, strict=True)]
    return {**lateness(late), "lateness, s": late}
