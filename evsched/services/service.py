"""The services: the life of one process, from its connection to Redis to its end.

Each `run_...` starts one service and returns when it has ended. No other module starts a service.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import structs

import evsched
from evsched import forks, process_events, shard_map
from evsched.app import App
from evsched.config import DEFAULT_QUEUE, Config
from evsched.diagnostics.doctor import examine
from evsched.diagnostics.finding import Finding, changes
from evsched.diagnostics.server_checks import Role
from evsched.dispatcher.cluster import ClusterDispatcher
from evsched.dispatcher.dispatcher import Dispatcher
from evsched.errors import CannotStart, LoopEnded, StoreDown, StoreError
from evsched.events import DispatcherStarted, Event, Events, ReadyDrained, ReadyLeft, Started, WorkerStarted
from evsched.execution.precautions import AppSource
from evsched.process_events import DoctorStarted, HandlersLeft, JobsPutBack, RedisFailed
from evsched.runtime import garbage
from evsched.runtime.loops import Runtime, background, first_of
from evsched.runtime.reconnect import Reconnect
from evsched.runtime.shutdown import Shutdown
from evsched.services.app_shards import AppShards
from evsched.services.first_check import check_layout, check_server, unsafe_settings
from evsched.services.worker_process import (
    LINK,
    METRICS,
    METRICS_TAKEN,
    Behind,
    ChildReport,
    Fetching,
    Idle,
    WorkerReady,
    announced,
    inherited,
    put_back,
    report_line,
)
from evsched.telemetry import log
from evsched.telemetry.process_telemetry import Telemetry
from evsched.transport.call import read_scripts
from evsched.transport.connection import primary
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import topology
from evsched.worker.worker import Worker

_BURST_LOOK: Final = 0.2
"""Seconds between two checks whether a burst is done. It is not a service, so it may poll."""


class _ServiceProcess:
    """The parts that the loops of one process share."""

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
        """Return the runtime for loops that serve these queues and their shards."""
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
"""The end of the message about a handler that has ended its worker's event loop."""

_Work = Callable[[_ServiceProcess], Awaitable[bool]]
"""Works until the process is asked to end; returns whether handlers still run in threads, which cannot be ended."""


def run_dispatcher(config: Config) -> None:
    """Run a dispatcher until SIGTERM or SIGINT."""

    async def work(process: _ServiceProcess) -> bool:
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
    """Run a dispatcher and a worker in one process, until SIGTERM or SIGINT."""
    _run(config, config.shutdown_grace, lambda process: _both(process, app))


def run_doctor(config: Config, role: Role | None, interval: float, on_changes: OnChanges) -> None:
    """Examine Redis and its queues every `interval` seconds, until SIGTERM or SIGINT."""

    async def work(process: _ServiceProcess) -> bool:
        watch = DoctorWatch(process.runtime, role, interval, on_changes)
        process.telemetry.of_reader(config.queues[0] if config.queues else DEFAULT_QUEUE, watch.problem)
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
    from evsched.ledger.relay_service import Service  # needs psycopg

    if topology(config.url) is not None:
        raise CannotStart(
            "the ledger does not support Redis Cluster, where its keys are on several nodes: "
            "use a Redis that is not a cluster, redis://HOST:PORT, or redis+sentinel:// for failovers"
        )

    async def work(process: _ServiceProcess) -> bool:
        service = Service(process.runtime)
        process.telemetry.of_ledger(lambda: service.pulses, service.problem, service.database_problem, service.waiting)
        await process.shutdown.request.run_until_made(service.run(process.server))
        return False

    _run(config, 0.0, work)


def run_api(config: Config) -> None:
    """Serve the HTTP interface until SIGTERM or SIGINT; then finish the requests that are under way."""
    from evsched.services.api_server import GRACE, ApiServer  # needs the extra `api`

    server = ApiServer(config)

    async def work(process: _ServiceProcess) -> bool:
        process.telemetry.of_reader(config.queues[0] if config.queues else DEFAULT_QUEUE)
        serve = server.serve(process.runtime.emit, process.shutdown.request)
        async with background(serve, process.wait_for_redis()) as (serving, checking):
            await first_of((serving, checking))
            if checking.done():
                checking.result()
            await serving
        return False

    _run(config, GRACE, work, at_once=not config.require_redis)


def _run(config: Config, grace: float, work: _Work, *, at_once: bool = False) -> None:
    """Run a process. `at_once`: its work begins while Redis may still be down."""
    read_scripts()
    garbage.settle()
    events, link = Events(log.Log(jobs=config.log_jobs).on_event), inherited(LINK)
    with Shutdown(grace, events.emit, link) as shutdown:
        try:
            asyncio.run(_run_until_asked_to_end(_ServiceProcess(config, events, shutdown, link), work, at_once=at_once))
        except asyncio.CancelledError:
            raise LoopEnded(f"a handler cancelled tasks that are not its own{_ENDED}") from None
        except RuntimeError as error:
            if not str(error).startswith("Event loop stopped"):
                raise
            raise LoopEnded(f"a handler stopped the event loop{_ENDED}") from None


async def _run_until_asked_to_end(process: _ServiceProcess, work: _Work, *, at_once: bool) -> None:
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


async def _both(process: _ServiceProcess, app: App, *, burst: bool = False) -> bool:
    async with background(_dispatch(process), _work(process, app, burst=burst)) as (dispatching, working):
        await first_of((dispatching, working))
        if dispatching.done():
            dispatching.result()
        return await working


async def _dispatch(process: _ServiceProcess) -> None:
    runtime = process.spread(process.runtime.config.queues)
    cluster = topology(runtime.config.url)
    dispatcher = Dispatcher(runtime) if cluster is None else ClusterDispatcher(runtime, cluster)
    process.events.subscribe(dispatcher.on_event)
    if isinstance(dispatcher, Dispatcher):
        await dispatcher.find_queues(required=True)
    process.telemetry.of_dispatcher(dispatcher)
    runtime.emit(DispatcherStarted(server=process.server, queues=dispatcher.queues))
    await dispatcher.run()


async def _work(process: _ServiceProcess, app: App, *, burst: bool = False) -> bool:
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
    end = _idle(process, worker) if burst else shutdown.request.wait()
    keep = shards.keep(worker, learned=process.learned)
    try:
        async with background(worker.run(), end, keep) as tasks:
            await first_of(tasks)
            worker.stop()
            await tasks[0]
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        if link is not None:
            link.close()
        await app.close()
    return worker.lingering


async def _idle(process: _ServiceProcess, worker: Worker) -> None:
    """Return when a burst is done: nothing runs and nothing is due, or the process was asked to end."""
    reconnect, idle = Reconnect("burst", process.runtime.emit), False
    while not idle and not await process.shutdown.request.comes_within(_BURST_LOOK):
        async with reconnect:
            idle = await worker.idle()


_BEHIND_AFTER: Final = 1.0
"""Seconds for which jobs must stay in ready before the worker reports that it is behind: a burst passes sooner."""

_IDLE_LEAST: Final = 0.1
"""Seconds between two reports that the worker is idle, at least: the setting may be 0."""


class ChildLink:
    """Reports to the parent of this worker process, the supervisor, which decides how many processes run.

    Subscribe `on_event` to the events of the process. When the parent ends, its end of the link closes, and `Shutdown`
    stops the process.

    The worker is idle when no job has started for the setting `scale_down_after`, counted from when Redis answered its
    first fetch: that may take long, and a job may wait meanwhile.
    """

    def __init__(self, link: socket.socket, config: Config, worker: Worker) -> None:
        self._link = link
        self._config = config
        self._worker = worker
        self._unanswered = set[str]()
        """Queues from which the first fetch is not answered yet."""
        self._behind = set[str]()
        """Queues in which the last fetch left ready jobs."""
        self._checking: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._behind_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        link.setblocking(False)

    def on_event(self, event: Event) -> None:
        """Report to the parent, or set a timer to report later."""
        if isinstance(event, WorkerStarted):
            announced = {queue: self._worker.announced(queue) for queue in event.queues}
            self._unanswered.update(event.queues)
            self._report(WorkerReady(event.worker, event.queues, self._config.url, announced))
        elif isinstance(event, ReadyLeft):
            self._note_answer(event.queue)
            self._behind.add(event.queue)
            if self._behind_timer is None:
                self._behind_timer = self._loop.call_later(_BEHIND_AFTER, self._check_backlog)
        elif isinstance(event, ReadyDrained):
            self._note_answer(event.queue)
            self._behind.discard(event.queue)
            if self._behind_timer is not None and not self._behind:
                self._behind_timer.cancel()
                self._behind_timer = None
        elif isinstance(event, Started):
            self._wait_for_idleness()

    def close(self) -> None:
        """Stop reporting."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._behind_timer is not None:
            self._behind_timer.cancel()
        if self._checking is not None:
            self._checking.cancel()

    def _note_answer(self, queue: str) -> None:
        if queue in self._unanswered:
            self._unanswered.discard(queue)
            self._wait_for_idleness()
            if not self._unanswered:
                self._report(Fetching())

    def _check_backlog(self) -> None:
        self._behind_timer = self._loop.call_later(_BEHIND_AFTER, self._check_backlog)
        self._checking = self._loop.create_task(self._report_behind())

    async def _report_behind(self) -> None:
        # A worker without free slots last fetched some time ago. Other workers may have fetched the jobs meanwhile.
        with contextlib.suppress(StoreError):
            if await self._worker.jobs_wait():
                self._report(Behind())

    def _wait_for_idleness(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        after = max(_IDLE_LEAST, self._config.scale_down_after)
        self._idle_timer = self._loop.call_later(after, self._report_idle)

    def _report_idle(self) -> None:
        if not self._worker.busy():
            self._report(Idle())
        self._wait_for_idleness()

    def _report(self, report: ChildReport) -> None:
        with contextlib.suppress(OSError):  # the parent has ended
            self._link.send(report_line(report))


OnChanges = Callable[[Sequence[Finding], Sequence[Finding]], object]
"""Gets the new findings and the ones that are gone, after each examination with any."""


class DoctorWatch:
    """The doctor as a service: it examines Redis and the queues every `interval` seconds, and reports changes.

    The interval is counted from the end of an examination.
    """

    def __init__(self, runtime: Runtime, role: Role | None, interval: float, on_changes: OnChanges) -> None:
        self._runtime = runtime
        self._role: Role | None = role
        self._interval = interval
        self._on_changes = on_changes
        self._reconnect = Reconnect("doctor", runtime.emit)
        self._known = list[Finding]()

    def problem(self) -> str | None:
        """Return why the last examination failed; None = it did not."""
        return self._reconnect.reason

    async def run(self) -> None:
        """Examine until cancelled."""
        while True:
            rest = 0.0  # after a failure `_reconnect` has waited
            async with self._reconnect:
                await self.step()
                rest = self._interval
            await asyncio.sleep(rest)

    async def step(self) -> None:
        """Examine once.

        Raises:
            StoreDown, StoreRefused: the earlier findings stay known.
        """
        config = self._runtime.config
        sender, ledger_url = self._runtime.sender, config.ledger_url
        found = (await examine(config.url, sender, config.queues, self._role, ledger_url=ledger_url)).found
        new, gone = changes(self._known, found)
        self._known = found
        problems = [finding for finding in found if finding.level != "info"]
        self._runtime.emit(
            process_events.Examined(checks=[one.check for one in problems], levels=[one.level for one in problems])
        )
        if new or gone:
            self._on_changes(new, gone)
