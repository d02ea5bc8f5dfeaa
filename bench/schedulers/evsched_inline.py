# /// script
# [tool.bench]
# note = "jobs that a plain Redis client schedules by one ZADD each, without a record."
# ///
"""evsched with inline jobs: one plain ZADD for each, by redis-py."""

from __future__ import annotations

import json
import os

import redis

from bench.schedulers.evsched import COMMANDS as COMMANDS

_KEY = "evsched:{default}:schedule"
_client = redis.Redis.from_url(os.environ["BENCH_REDIS"], protocol=2)


def _member(*job: int | str) -> str:
    return json.dumps({"task": "job", "args": job}, separators=(",", ":"))


def enqueue(number: int) -> None:
    schedule(0, number)


def enqueue_many(jobs: list[list[int | str]]) -> None:
    schedule_many(0, jobs)


def schedule(due: float, number: int) -> None:
    _client.zadd(_KEY, {_member(number): due})


def schedule_many(due: float, jobs: list[list[int | str]]) -> None:
    _client.zadd(_KEY, {_member(*job): due for job in jobs})
