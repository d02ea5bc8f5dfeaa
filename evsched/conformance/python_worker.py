"""The tasks of docs/conformance.md for our own worker: `evsched worker evsched.conformance.python_worker:app`."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from evsched.app import App
from evsched.codec import Codec
from evsched.jobs.current_job import CurrentJob, current_job
from evsched.jobs.steering import GiveUp, RetryLater

_keys = os.environ.get("CONFORMANCE_KEYS")
_codec = Codec(json.loads(_keys), write=os.environ["CONFORMANCE_KEY"]) if _keys else None

app = App(queue=os.environ.get("CONFORMANCE_QUEUE", "conformance"), codec=_codec)


def _note(what: str, job: CurrentJob) -> None:
    with open(os.environ["CONFORMANCE_LOG"], "a") as log:  # noqa: PTH123 - one write, which appends
        log.write(f"{what} {job.id} {job.attempt}\n")


@app.task
async def echo(value: Any) -> Any:
    return value


@app.task
async def call(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"args": args, "kwargs": kwargs}


@app.task
async def about() -> dict[str, Any]:
    job = current_job()
    return {"id": job.id, "attempt": job.attempt, "due": job.due, "meta": job.meta}


@app.task
async def text(length: int) -> str:
    return "x" * length


@app.task
async def fail(times: int, message: str) -> int:
    attempt = current_job().attempt
    if attempt <= times:
        raise ValueError(message)
    return attempt


@app.task
async def retry_later(seconds: float) -> int:
    attempt = current_job().attempt
    if attempt == 1:
        raise RetryLater(seconds)
    return attempt


@app.task
async def give_up(reason: str) -> None:
    raise GiveUp(reason)


@app.task
async def report(seconds: float) -> None:
    current_job().progress(1, 2, "half")
    await asyncio.sleep(seconds)


@app.task
async def work(seconds: float) -> int:
    job = current_job()
    _note("begin", job)
    try:
        if job.attempt == 1:
            await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        _note("stop", job)
        raise
    _note("end", job)
    return job.attempt


@app.task(name="exit")
async def exit_() -> None:
    _note("begin", current_job())
    os._exit(1)
