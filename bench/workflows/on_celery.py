"""The programs on Celery, with Redis as broker and result backend: `python -m bench.workflows.on_celery NAME`.

BENCH_CAREFUL=1: with the settings that Celery's documentation advises for jobs that must not be lost.
"""

from __future__ import annotations

import os
import sys
import time

from celery import Celery, chain, chord

from bench.workflows.runs import note

REDIS = os.environ["BENCH_REDIS"]

app = Celery("bench.workflows.on_celery", broker=REDIS, backend=REDIS)
app.conf.worker_concurrency = 2
if os.environ.get("BENCH_CAREFUL"):
    app.conf.task_acks_late = True
    app.conf.task_reject_on_worker_lost = True
    app.conf.worker_prefetch_multiplier = 1
    app.conf.broker_transport_options = {"visibility_timeout": 10}


@app.task
def row(number: int) -> int:
    note(f"job {number}")
    time.sleep(0.01)
    note(f"end {number}")
    return number


@app.task
def summary(numbers: list[int]) -> None:
    note("callback")


@app.task
def total(numbers: list[int]) -> None:
    note(f"callback {sum(numbers)}")


@app.task
def fetch(number: int) -> int:
    note("job fetch")
    note("end fetch")
    return number


@app.task
def parse(number: int) -> int:
    note("job parse")
    time.sleep(2)
    note("end parse")
    return number


@app.task
def save(number: int) -> None:
    note("callback")


def start_import(count: int) -> None:
    chord([row.s(number) for number in range(count)])(summary.s())


def start_chord(count: int) -> None:
    chord([row.s(number) for number in range(count)])(total.s())


def start_chain(count: int) -> None:
    chain(fetch.s(count), parse.s(), save.s()).delay()


if __name__ == "__main__":
    {"import": start_import, "chord": start_chord, "chain": start_chain}[sys.argv[1]](int(sys.argv[2]))
