# /// script
# dependencies = ["dramatiq[redis]==2.2.1", "redis[hiredis]==8.1.0"]
# ///
"""Dramatiq: plain functions in eight threads; the worker fetches delayed jobs into its memory."""

from __future__ import annotations

import os
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.oracle import stamp

COMMANDS = [["dramatiq", "--processes", "1", "--threads", "8", "bench.schedulers.dramatiq"]]

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS"]))


@dramatiq.actor
def job(number: int, padding: str = "") -> None:
    stamp(number)


def enqueue(number: int) -> None:
    job.send(number)


def schedule(due: float, *arguments: int | str) -> None:
    job.send_with_options(args=arguments, delay=round((due - time.time()) * 1000))
