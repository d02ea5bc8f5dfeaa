# /// script
# dependencies = ["rq==3.0.0", "redis[hiredis]==8.1.0"]
#
# [tool.bench]
# note = "SimpleWorker, which forks no process for each job; the default Worker is slower by far."
# ///
"""RQ: plain functions in the worker's own process, and a scheduler process that looks each second."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from redis import Redis
from rq import Queue

from bench.oracle import stamp

URL = os.environ["BENCH_REDIS"]
COMMANDS = [["rq", "worker", "--with-scheduler", "--worker-class", "rq.worker.SimpleWorker", "--quiet", "--url", URL]]

_queue = Queue(connection=Redis.from_url(URL))


def job(number: int, padding: str = "") -> None:
    stamp(number)


def enqueue(number: int) -> None:
    _queue.enqueue("bench.schedulers.rq.job", number)


def enqueue_many(jobs: list[list[int]]) -> None:
    _queue.enqueue_many([Queue.prepare_data("bench.schedulers.rq.job", tuple(one)) for one in jobs])


def schedule(due: float, *arguments: int | str) -> None:
    _queue.enqueue_at(datetime.fromtimestamp(due, UTC), "bench.schedulers.rq.job", *arguments)
