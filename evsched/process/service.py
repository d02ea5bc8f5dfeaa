"""The services: what runs in one process, from its connection to Redis to its end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import structs

import evsched
from evsched import forks, shard_map
from evsched.app import App
from evsched.config import DEFAULT_QUEUE, Config
from evsched.diagnostics.acl import Role
from evsched.dispatcher.cluster import ClusterDispatcher
from evsched.dispatcher.dispatcher import Dispatcher
from evsched.dispatcher.janitor import Janitor
from evsched.errors import CannotStart, LoopEnded, StoreDown, StoreError, StoreRefused
from evsched.events import DispatcherStarted, DoctorStarted, Events, HandlersLeft, JobsPutBack, RedisFailed
from evsched.execution.precautions import AppSource
from evsched.process.app_shards import AppShards
from evsched.process.child_link import ChildLink
from evsched.process.doctor_watch import DoctorWatch, OnChanges
from evsched.process.first_check import check_layout, check_server, unsafe_settings
from evsched.process.inherited import LINK, METRICS, METRICS_TAKEN, announced, inherited, put_back
from evsched.runtime import collector
from evsched.runtime.loops import run_loops
from evsched.runtime.reconnect import Reconnect
from evsched.runtime.runtime import Runtime
from evsched.runtime.shutdown import Shutdown
from evsched.telemetry import log
from evsched.telemetry.process import Telemetry
from evsched.transport.call import read_scripts
from evsched.transport.connection import primary
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import Topology, topology
from evsched.worker.worker import Worker

_BURST_LOOK: Final = 0.2
"""Seconds between two checks whether a burst is done. It is not a service, so it may poll."""


class _Process:
    """What the loops of one process share."""

    def __init__(self, config: Config, events: Events, shutdown: Shutdown, link: socket.socket | None) -> None:
        self.runtime = Runtime(config, BatchingSender(config.url), events.emit)
        self.events = events
        self.shutdown = shutdown
        self.link = link
        """The link to the parent; None = there is no parent."""
        self.server = ""
        self.learned = False
        """Whether Redis has said how many shards queues have."""
        self.telemetry = Telemetry(
            self.runtime, events, evsched.__version__, inherited(METRICS), inherited(METRICS_TAKEN)
        )
        for queue, count in put_back().items():
            self.runtime.emit(JobsPutBack(queue=queue, count=count))

    def spread(self, queues: Sequence[str]) -> Runtime:
        """Return what its loops share, with these queues and their shards as those to serve."""
        return structs.replace(self.runtime, config=shard_map.spread(self.runtime, queues))

    async def wait_for_redis(self) -> None:
        """Wait until Redis answers, and find out which server it is.

        Raises:
            CannotStart: it refuses, or is too old; or it does not answer, and the settings require it at the start.
        """
        reconnect = Reconnect("the start", self.runtime.emit)
        while not self.server:
            async with reconnect:
                try:
                    server = await check_server(self.runtime.sender, self.runtime.config.url)
                except StoreDown as error:
                    if self.runtime.config.require_redis:
                        raise CannotStart(str(error)) from None
                    raise
                for found in await unsafe_settings(self.runtime.sender):
                    self.runtime.emit(found)
                try:
                    await check_layout(self.runtime.sender)
                except StoreError as error:  # the node that has it does not answer, or a right is missing
                    self.runtime.emit(RedisFailed(kind=error.kind))
                self.learned = await shard_map.learn(self.runtime)
                self.server = server


_ENDED: Final = ", which ends the worker: its jobs start again when its lease ends; restart the process"
"""The end of the message when a handler has ended the event loop that its worker runs in."""

_Work = Callable[[_Process], Awaitable[bool]]
"""Works until the process is asked to end; returns whether handlers still run in threads, which cannot be ended."""


def run_dispatcher(config: Config) -> None:
    """Run a dispatcher and a janitor until SIGTERM or SIGINT."""

    async def work(process: _Process) -> bool:
        await process.shutdown.request.run_until_made(_dispatch(process))
        return False

    _run(config, 0.0, work)


def run_worker(config: Config, app: App, *, burst: bool = False) -> None:
    """Run a worker until SIGTERM or SIGINT, then drain. `burst`: dispatch too, and end when nothing is due."""
    if burst:
        _run(config, config.shutdown_grace, lambda process: _both(process, app, burst=True))
    else:
        _run(config, config.shutdown_grace, lambda process: _work(process, app))


def run_dev(config: Config, app: App) -> None:
    """Run a dispatcher, a janitor and a worker in one process, until SIGTERM or SIGINT."""
    _run(config, config.shutdown_grace, lambda process: _both(process, app))


def run_doctor(config: Config, role: Role | None, interval: float, on_changes: OnChanges) -> None:
    """Examine Redis and its queues every `interval` seconds, until SIGTERM or SIGINT."""

    async def work(process: _Process) -> bool:
        watch = DoctorWatch(process.runtime, role, interval, on_changes)
        process.telemetry.of_doctor(config.queues[0] if config.queues else DEFAULT_QUEUE, watch.problem)
        process.runtime.emit(DoctorStarted(interval=interval))
        # Not by `run_loops`, which would call it a bug that stdout cannot be written.
        await process.shutdown.request.run_until_made(watch.run())
        return False

    _run(config, 0.0, work)


def run_ledger(config: Config) -> None:
    """Run a relay of the ledger until SIGTERM or SIGINT.

    Raises:
        CannotStart: also if Redis is a cluster.
    """
    from evsched.ledger.service import Service  # needs psycopg

    if topology(config.url) is not None:
        raise CannotStart(
            "the ledger does not support Redis Cluster, where its keys are on several nodes: "
            "use a Redis that is no cluster, redis://HOST:PORT, or redis+sentinel:// for failovers"
        )

    async def work(process: _Process) -> bool:
        service = Service(process.runtime)
        process.telemetry.of_ledger(lambda: service.pulses, service.problem, service.database_problem, service.waiting)
        await process.shutdown.request.run_until_made(service.run(process.server))
        return False

    _run(config, 0.0, work)


def run_api(config: Config) -> None:
    """Serve the HTTP interface until SIGTERM or SIGINT; then finish the requests that are under way."""
    from evsched.process.api_server import GRACE, ApiServer  # needs the extra `api`

    server = ApiServer(config)

    async def work(process: _Process) -> bool:
        process.telemetry.of_api(config.queues[0] if config.queues else DEFAULT_QUEUE)
        serving = asyncio.ensure_future(server.serve(process.runtime.emit, process.shutdown.request))
        checking = asyncio.ensure_future(process.wait_for_redis())
        try:
            await asyncio.wait([serving, checking], return_when=asyncio.FIRST_COMPLETED)
            if checking.done():
                checking.result()
            await serving
        finally:
            serving.cancel()
            checking.cancel()
            await asyncio.gather(serving, checking, return_exceptions=True)
        return False

    _run(config, GRACE, work, at_once=not config.require_redis)


def _run(config: Config, grace: float, work: _Work, *, at_once: bool = False) -> None:
    """Run a process. `at_once`: its work begins while Redis may still be down."""
    read_scripts()
    collector.settle()
    events, link = Events(log.Log(jobs=config.log_jobs).on_event), inherited(LINK)
    with Shutdown(grace, events.emit, link) as shutdown:
        try:
            asyncio.run(_run_until_asked_to_end(_Process(config, events, shutdown, link), work, at_once=at_once))
        except asyncio.CancelledError:
            raise LoopEnded(f"a handler cancelled tasks that are not its own{_ENDED}") from None
        except RuntimeError as error:
            if not str(error).startswith("Event loop stopped"):
                raise
            raise LoopEnded(f"a handler stopped the event loop{_ENDED}") from None


async def _run_until_asked_to_end(process: _Process, work: _Work, *, at_once: bool) -> None:
    process.shutdown.request.attach()
    lingering = False
    try:
        async with process.telemetry, primary(process.runtime.config.url).followed():
            if at_once or await process.shutdown.request.run_until_made(process.wait_for_redis()):
                lingering = await work(process)
    finally:
        await process.runtime.sender.close()
        if ended := forks.end_children(1.0):
            process.runtime.emit(HandlersLeft(processes=ended))
    if lingering:
        os._exit(0)  # a job's thread still runs after the grace: Python would wait for it forever


async def _both(process: _Process, app: App, *, burst: bool = False) -> bool:
    dispatching = asyncio.ensure_future(_dispatch(process))
    working = asyncio.ensure_future(_work(process, app, burst=burst))
    try:
        await asyncio.wait([dispatching, working], return_when=asyncio.FIRST_COMPLETED)
        if dispatching.done():
            dispatching.result()
        return await working
    finally:
        for half in (dispatching, working):
            half.cancel()
        await asyncio.gather(dispatching, working, return_exceptions=True)


async def _dispatch(process: _Process) -> None:
    runtime, events = process.spread(process.runtime.config.queues), process.events
    if (cluster := topology(runtime.config.url)) is not None:
        await _dispatch_cluster(process, runtime, cluster)
        return
    dispatcher = Dispatcher(runtime)
    janitor = Janitor(runtime, dispatcher)
    events.subscribe(janitor.on_event)
    reconnect, found = Reconnect("the search for queues", runtime.emit), False
    while not found:
        async with reconnect:
            try:
                await dispatcher.find_queues()
            except StoreRefused as error:
                raise CannotStart(f"the queues cannot be found: {error}: name them with --queue") from None
            found = True
    process.telemetry.of_dispatcher(dispatcher)
    runtime.emit(DispatcherStarted(server=process.server, queues=dispatcher.queues))
    process.telemetry.of_janitor(janitor)
    await run_loops({"dispatcher": dispatcher.run(), "janitor": janitor.run()})


async def _dispatch_cluster(process: _Process, runtime: Runtime, cluster: Topology) -> None:
    dispatcher = ClusterDispatcher(runtime, cluster)
    process.events.subscribe(dispatcher.on_event)
    process.telemetry.of_dispatcher(dispatcher)
    process.runtime.emit(DispatcherStarted(server=process.server, queues=dispatcher.queues))
    await run_loops({"dispatcher": dispatcher.run()})


async def _work(process: _Process, app: App, *, burst: bool = False) -> bool:
    config, shutdown = process.runtime.config, process.shutdown
    app.move_to(config.url)
    shards = AppShards(process.runtime, app)
    await shards.declare()
    runtime = process.spread(config.queues or app.queues)
    queues, program = list(runtime.config.queues), structs.replace(app.program, shards=runtime.shards)
    source = None if app.origin is None else AppSource(app.origin, log.level())
    worker = Worker(runtime, program, queues, source=source, before=announced())
    process.telemetry.of_worker(worker)
    link = None
    if process.link is not None:
        link = ChildLink(process.link, config, worker)
        process.events.subscribe(link.on_event)
    shutdown.worker = worker
    running = asyncio.ensure_future(worker.run())
    ending = asyncio.ensure_future(_idle(process, worker) if burst else shutdown.request.wait())
    keeping = asyncio.ensure_future(shards.keep(worker, learned=process.learned))
    tasks = running, ending, keeping
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        worker.stop()
        await running
        for task in (ending, keeping):
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if link is not None:
            link.close()
        await app.close()
    return worker.lingering


async def _idle(process: _Process, worker: Worker) -> None:
    """Return when a burst is done: nothing runs and nothing is due, or the process was asked to end."""
    reconnect, idle = Reconnect("burst", process.runtime.emit), False
    while not idle and not await process.shutdown.request.comes_within(_BURST_LOOK):
        async with reconnect:
            idle = await worker.idle()
