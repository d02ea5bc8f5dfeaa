"""The app of the scenes: handlers that write down what they do."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Final

from evsched import App, EndedJob, GiveUp, Retry, Snooze, current_job
from evsched.jobs.job import Message
from tests.crash_points.scenes import OCCURRENCES, QUEUE, RECURS, SHARDS
from tests.crash_points.testimony import note, noted

queue: Final = os.environ.get(QUEUE, "crash")
app = App(queue=queue, shards=int(os.environ.get(SHARDS, "0")))


@app.task
async def hook(ended: EndedJob) -> None:
    note(f"hook:{ended.outcome}:{ended.id}")


_FAST = Retry(attempts=4, interval=0.05, factor=1, jitter=0)


@app.task(retry=_FAST, on_done=hook, on_dead=hook)
async def work(seconds: float = 0.0) -> str:
    note("start")
    await asyncio.sleep(seconds)
    note("end")
    return "worked"


@app.task(retry=Retry(attempts=1), on_done=hook, on_dead=hook)
async def work_once() -> None:
    note("start")
    await asyncio.sleep(0.1)
    note("end")


@app.task(retry=_FAST)
def work_in_thread() -> None:
    note("start")
    note("end")


@app.task(retry=_FAST, on="process")
def work_in_process() -> None:
    note("start")
    note("end")


@app.task(retry=_FAST, on_done=hook, on_dead=hook)
async def fail_at_first() -> None:
    note("start")
    if current_job().attempt == 1:
        raise ValueError("the first attempt fails")
    note("end")


@app.task(retry=_FAST)
async def snooze_at_first() -> None:
    note("start")
    if not noted("snooze"):
        note("snooze")
        raise Snooze(0.1)
    note("end")


@app.task(retry=_FAST, on_dead=hook)
async def give_up() -> None:
    note("start")
    raise GiveUp("it is to die")


@app.task(retry=_FAST)
async def send(stream: str) -> Message:
    note("start")
    return Message("stream", stream, current_job().id.encode())


@app.task(retry=_FAST)
async def report() -> None:
    note("start")
    current_job().progress(1, 2)
    await asyncio.sleep(0.05)
    note("end")


@app.task(retry=_FAST, on_done=hook)
async def die_at_first() -> None:
    note("start")
    if not noted("killed"):
        note("killed")
        os.kill(os.getpid(), signal.SIGKILL)
    note("end")


@app.task(retry=_FAST)
async def die_and_be_revived() -> None:
    note("start")
    if not noted("dies"):
        note("dies")
        raise GiveUp("it is to be revived")
    note("end")


@app.task(retry=_FAST)
async def tick() -> None:
    note("start")
    note("end")


if RECURS in os.environ:
    app.recurring(every=1, overlap="wait", count=OCCURRENCES)(tick)
    app.limit(group="g", concurrency=1)
