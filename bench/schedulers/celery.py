# /// script
# dependencies = ["celery[redis]==5.7.0", "kombu==5.7.0", "redis[hiredis]==8.1.0"]
#
# [tool.bench]
# note = """
# its default pool, a process for each core besides the worker; prefetches 128, as advised for short tasks. The worker \
# fetches jobs with an ETA at once and holds all of them in its memory until they are due; if it dies, they come to \
# another worker after the visibility timeout, by default an hour."""
# ///
"""Celery: plain functions in a pool of processes, one for each core; the worker keeps scheduled jobs in its memory."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from celery import Celery

from bench.oracle import stamp

COMMANDS = [["celery", "--app", "bench.schedulers.celery", "worker", "--loglevel", "WARNING"]]

app = Celery(broker=os.environ["BENCH_REDIS"])
app.conf.worker_prefetch_multiplier = 128


@app.task
def job(number: int, padding: str = "") -> None:
    stamp(number)


def enqueue(number: int) -> None:
    job.delay(number)


def schedule(due: float, *arguments: int | str) -> None:
    job.apply_async(arguments, eta=datetime.fromtimestamp(due, UTC))
