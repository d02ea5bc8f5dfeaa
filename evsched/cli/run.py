"""The commands that run: dispatcher, worker, dev, demo."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

from cyclopts import Parameter

from evsched import log
from evsched.cli.root import Queues, Url, settings
from evsched.config import Config

Module = Annotated[str, Parameter(name="MODULE:APP", help="Where the app is, such as tasks:app.")]
Level = Annotated[str, Parameter(help="DEBUG, INFO, WARNING, ERROR or CRITICAL.")]
_DEFAULT = Config().url


def dispatcher(*, queue: Queues = None, url: Url = None, log_level: Level = "INFO") -> None:
    """Move due jobs on, and put back what dead workers held. Run any number of them."""
    from evsched.service import run_dispatcher

    log.configure(log_level.upper())
    asyncio.run(run_dispatcher(settings(url, queues=_queues(queue))))


def worker(
    module: Module,
    /,
    *,
    queue: Queues = None,
    concurrency: Annotated[int | None, Parameter(help="Jobs that run at one time, 1 to 999; 256.")] = None,
    pool: Annotated[int | None, Parameter(help="Processes for tasks on processes; the processors' number.")] = None,
    burst: Annotated[bool, Parameter(negative="", help="Run what is due, dispatching too, and end.")] = False,
    url: Url = None,
    log_level: Level = "INFO",
) -> None:
    """Take jobs and run them. Run any number of them."""
    from evsched.service import find_app, run_worker

    found = settings(url, queues=_queues(queue), concurrency=concurrency, pool=pool)
    log.configure(log_level.upper())
    app = find_app(module)
    if url is None and "EVSCHED_URL" not in os.environ:
        found = settings(app.url, queues=_queues(queue), concurrency=concurrency, pool=pool)
    asyncio.run(run_worker(found, app, burst=burst))


def dev(module: Module, /, *, queue: Queues = None, url: Url = None, log_level: Level = "INFO") -> None:
    """Run a dispatcher and a worker in one process; with a private Redis when none is named."""
    from evsched.embedded import EmbeddedRedis
    from evsched.service import find_app, run_dev

    found = settings(url, queues=_queues(queue))
    log.configure(log_level.upper())
    app = find_app(module)
    if url is not None or "EVSCHED_URL" in os.environ:
        asyncio.run(run_dev(found, app))
    elif app.url != _DEFAULT:
        asyncio.run(run_dev(settings(app.url, queues=_queues(queue)), app))
    else:
        with EmbeddedRedis() as server:
            print(f"private Redis: for another terminal, export EVSCHED_URL='{server.url}'", flush=True)
            asyncio.run(run_dev(settings(server.url, queues=_queues(queue)), app))


def demo(
    *,
    jobs: Annotated[int, Parameter(help="How many.")] = 200,
    seconds: Annotated[float, Parameter(help="Over how long they fall due.")] = 4.0,
    idle: Annotated[float, Parameter(help="For how long the idle fleet is watched afterwards.")] = 20.0,
    url: Url = None,
) -> int:
    """Show the main job: real jobs through three doors, run on time by a dispatcher and a worker process."""
    from evsched.demo import run_demo
    from evsched.embedded import EmbeddedRedis

    if url is not None or "EVSCHED_URL" in os.environ:
        return run_demo(settings(url).url, jobs, seconds, idle)
    with EmbeddedRedis() as server:
        return run_demo(server.url, jobs, seconds, idle)


def _queues(names: list[str] | None) -> tuple[str, ...] | None:
    return tuple(names) if names else None
