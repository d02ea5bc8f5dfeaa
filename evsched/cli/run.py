"""The commands that run: dispatcher, worker, dev, demo."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from msgspec.structs import replace

from evsched.cli.root import Queues, Url, UsageError, settings
from evsched.config import Config
from evsched.telemetry import log

Module = Annotated[str, Parameter(name="MODULE:APP", help="Where the app is, such as tasks:app.")]
MetricsPort = Annotated[
    int | None, Parameter(help="Serve /metrics, /healthz and /readyz on this port, 0 = any free one; else nowhere.")
]
MetricsHost = Annotated[str | None, Parameter(help="The address to serve them on; 127.0.0.1.")]
RequireRedis = Annotated[
    bool | None, Parameter(negative="", help="Exit when Redis is absent at the start, instead of waiting for it.")
]
LogJobs = Annotated[
    bool | None, Parameter(negative="", help="Log the start and the end of each job, at INFO: two lines a job.")
]
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
Level = Annotated[str, Parameter(help=f"One of {', '.join(_LEVELS)}.")]
_DEFAULT = Config().url


def dispatcher(
    *,
    queue: Queues = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    url: Url = None,
    require_redis: RequireRedis = None,
    log_level: Level = "INFO",
) -> None:
    """Move due jobs on, and put back what dead workers held. Run any number of them."""
    from evsched.process.service import run_dispatcher

    _log(log_level)
    found = settings(
        url, queues=_queues(queue), metrics_port=metrics_port, metrics_host=metrics_host, require_redis=require_redis
    )
    run_dispatcher(found)


def worker(
    module: Module,
    /,
    *,
    queue: Queues = None,
    concurrency: Annotated[int | None, Parameter(help="Jobs that run at one time, 1 to 999; 256.")] = None,
    process_pool: Annotated[
        int | None, Parameter(help="Processes for tasks on processes; the processors' number.")
    ] = None,
    burst: Annotated[bool, Parameter(negative="", help="Run what is due, dispatching too, and end.")] = False,
    processes: Annotated[str | None, Parameter(help="Worker processes: 4, or MIN:MAX such as 2:8.")] = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    metrics_targets: Annotated[
        Path | None, Parameter(help="With --processes: the file that names their ports to Prometheus.")
    ] = None,
    url: Url = None,
    require_redis: RequireRedis = None,
    log_level: Level = "INFO",
    log_jobs: LogJobs = None,
) -> int:
    """Take jobs and run them. Run any number of them."""
    from evsched.process.locate_app import find_app
    from evsched.process.service import run_worker, run_workers
    from evsched.process.supervisor import read_span

    found = settings(
        url,
        queues=_queues(queue),
        concurrency=concurrency,
        process_pool=process_pool,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        require_redis=require_redis,
        log_jobs=log_jobs,
    )
    if processes is None and metrics_targets is not None:
        raise UsageError("--metrics-targets names the ports of many: give --processes too")
    if metrics_targets is not None and found.metrics_port is None:
        raise UsageError("--metrics-targets names ports: give the first of them with --metrics-port")
    if processes is not None and burst:
        raise UsageError("--burst runs in one process: leave --processes out")
    _log(log_level)
    if processes is not None:
        command = ["worker", module, "--log-level", log_level]  # all else is in the settings
        return run_workers(found, read_span(processes), command, metrics_targets)
    app = find_app(module)
    if url is None and "EVSCHED_URL" not in os.environ:
        found = replace(found, url=app.url)
    run_worker(found, app, burst=burst)
    return 0


def dev(
    module: Module,
    /,
    *,
    queue: Queues = None,
    metrics_port: MetricsPort = None,
    metrics_host: MetricsHost = None,
    url: Url = None,
    require_redis: RequireRedis = None,
    log_level: Level = "INFO",
    log_jobs: LogJobs = None,
) -> None:
    """Run a dispatcher and a worker in one process; with a private Redis when none is named."""
    from evsched.process.locate_app import find_app
    from evsched.process.service import run_dev
    from evsched.transport.embedded import EmbeddedRedis

    found = settings(
        url,
        queues=_queues(queue),
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        require_redis=require_redis,
        log_jobs=log_jobs,
    )
    _log(log_level)
    app = find_app(module)
    if url is not None or "EVSCHED_URL" in os.environ:
        run_dev(found, app)
    elif app.url != _DEFAULT:
        run_dev(replace(found, url=app.url), app)
    else:
        with EmbeddedRedis() as server:
            print(f"private Redis: for another terminal, export EVSCHED_URL='{server.url}'", flush=True)
            run_dev(replace(found, url=server.url), app)


def demo(
    *,
    jobs: Annotated[int, Parameter(help="How many.")] = 200,
    seconds: Annotated[float, Parameter(help="Over how long they fall due.")] = 4.0,
    idle: Annotated[float, Parameter(help="For how long the idle fleet is watched afterwards.")] = 20.0,
    url: Url = None,
) -> int:
    """Show the main job: real jobs through three doors, run on time by a dispatcher and a worker process."""
    from evsched.demo import run_demo
    from evsched.transport.embedded import EmbeddedRedis

    if url is not None or "EVSCHED_URL" in os.environ:
        return run_demo(settings(url).url, jobs, seconds, idle)
    with EmbeddedRedis() as server:
        return run_demo(server.url, jobs, seconds, idle)


def _queues(names: list[str] | None) -> tuple[str, ...] | None:
    return tuple(names) if names else None


def _log(level: str) -> None:
    if level.upper() not in _LEVELS:
        raise UsageError(f"--log-level {level}: one of {', '.join(_LEVELS)}")
    log.configure(level.upper())
