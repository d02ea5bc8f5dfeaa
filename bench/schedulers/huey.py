# /// script
# dependencies = ["huey==3.5.4", "redis[hiredis]==8.1.0"]
#
# [tool.bench]
# note = "loses the jobs that a killed worker held."
# ///
"""Huey: plain functions in one thread, and a scheduler thread that looks each second."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from huey import RedisHuey

from bench.oracle import stamp

COMMANDS = [["huey_consumer", "bench.schedulers.huey.huey", "--quiet"]]

huey = RedisHuey(url=os.environ["BENCH_REDIS"])


@huey.task()
def job(number: int, padding: str = "") -> None:
    stamp(number)


def enqueue(number: int) -> None:
    job(number)


def schedule(due: float, *arguments: int | str) -> None:
    job.schedule(args=arguments, eta=datetime.fromtimestamp(due, UTC))
