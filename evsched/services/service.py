"""The services: the life of one process, from its connection to Redis to its end.

Each `run_...` starts one service and returns when it has ended. No other module starts a service.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Any, Final

from msgspec import structs

import evsched
from evsched import forks, keys, process_events, shard_map
from evsched.app import App, find_variable
from evsched.batches.keeper import BatchKeeper
from evsched.config import DEFAULT_QUEUE, Config, variable
from evsched.diagnostics import server_checks
from evsched.diagnostics.doctor import examine
from evsched.diagnostics.finding import Finding, changes
from evsched.diagnostics.server_checks import Role
from evsched.dispatcher.dispatcher import ClusterDispatcher, Dispatcher
from evsched.errors import CannotStart, LoopEnded, StoreDown, StoreError, StoreRefused
from evsched.events import DispatcherStarted, Event, Events
from evsched.execution.precautions import AppSource
from evsched.process_events import DoctorStarted, HandlersLeft, JobsPutBack, RedisFailed, RedisUnsafe
from evsched.runtime.loops import Runtime, background, first_of, run_beside
from evsched.runtime.reconnect import Reconnect
from evsched.runtime.shutdown import Shutdown
from evsched.services.app_shards import AppShards
from evsched.services.worker_process import ChildLink, inheritance, inherited_link, inherited_socket
from evsched.store.server import facts, info, layout
from evsched.telemetry import log
from evsched.telemetry.process_telemetry import Telemetry
from evsched.transport.address import Host, hide_password
from evsched.transport.call import Call, read_scripts
from evsched.transport.connection import primary
from evsched.transport.embedded import read_version
from evsched.transport.redis_errors import NO_CLUSTER
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import topology
from evsched.worker.worker import Worker

_BURST_LOOK: Final = 0.2
"""Seconds between two checks whether a burst is done. It is not a service, so it may poll."""


_COLLECTIONS: Final = (10_000, 2, 50)
"""How often the garbage collector runs. Runs leave no reference cycles, so it finds nothing of ours; with the defaults
it took a tenth of a busy worker's time, as it walks all objects several times for each batch of jobs.

New objects until it looks for cycles among them: a batch has fewer, 256 runs of async handlers that wait have 25 each.
Such collections until it looks at the survivors again: with 10, that takes 15 to 20 ms while a dispatcher finds
thousands of queues, and its due jobs wait. Both until it looks at all objects: as seldom as with the defaults."""


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
        self.lingering = False
        """Whether handlers still run in threads after the work is done: they cannot be ended."""
        self.inheritance = given = inheritance()
        reserved, taken = inherited_socket(given.metrics), inherited_socket(given.metrics_taken)
        self.telemetry = Telemetry(self.runtime, events, evsched.__version__, reserved, taken)
        for queue, count in given.put_back.items():
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

_Work = Callable[[_ServiceProcess], Awaitable[object]]
"""Works until the process is asked to end."""


def run_dispatcher(config: Config) -> None:
    """Run a dispatcher until SIGTERM or SIGINT."""
    _run(config, 0.0, lambda process: process.shutdown.request.run_until_made(_dispatch(process)))


def run_worker(config: Config, app: App, *, burst: bool = False) -> None:
    """Run a worker until SIGTERM or SIGINT, then drain. `burst`: dispatch too, and end when nothing is due."""
    work = partial(_both, app=app, burst=True) if burst else partial(_work, app=app)
    _run(config, config.shutdown_grace, work)


def run_dev(config: Config, app: App) -> None:
    """Run a dispatcher and a worker in one process, until SIGTERM or SIGINT."""
    _run(config, config.shutdown_grace, partial(_both, app=app))


def run_doctor(config: Config, role: Role | None, interval: float, on_changes: OnChanges) -> None:
    """Examine Redis and its queues every `interval` seconds, until SIGTERM or SIGINT."""

    async def work(process: _ServiceProcess) -> None:
        reconnect = Reconnect("doctor", process.runtime.emit)
        process.telemetry.of_reader(next(iter(config.queues), DEFAULT_QUEUE), lambda: reconnect.reason)
        process.runtime.emit(DoctorStarted(interval=interval))
        # Not by `run_loops`, which would call it a bug that stdout cannot be written.
        watching = _watch_findings(process.runtime, reconnect, role, interval, on_changes)
        await process.shutdown.request.run_until_made(watching)

    _run(config, 0.0, work)


def run_ledger(config: Config) -> None:
    """Run a relay of the ledger until SIGTERM or SIGINT.

    Raises:
        CannotStart: also if Redis is a cluster.
    """
    from evsched.ledger.relay import Service  # needs psycopg

    if topology(config.url) is not None:
        raise CannotStart(
            "the ledger does not support Redis Cluster, where its keys are on several nodes: "
            "use a Redis that is not a cluster, redis://HOST:PORT, or redis+sentinel:// for failovers"
        )

    async def work(process: _ServiceProcess) -> None:
        service = Service(process.runtime)
        process.telemetry.of_ledger(lambda: service.pulses, service.problem, service.database_problem, service.waiting)
        await process.shutdown.request.run_until_made(service.run(process.server))

    _run(config, 0.0, work)


def run_history(config: Config, keep: float) -> None:
    """Write the ends of jobs into the ledger until SIGTERM or SIGINT. `keep`: seconds for which they are kept."""
    from evsched.ledger.run_writer import HistoryService  # needs psycopg

    async def work(process: _ServiceProcess) -> None:
        service = HistoryService(process.runtime, keep)
        process.telemetry.of_ledger(lambda: service.pulses, service.problem, service.database_problem)
        await process.shutdown.request.run_until_made(service.run(process.server))

    _run(config, 0.0, work)


def run_api(config: Config) -> None:
    """Serve the HTTP interface until SIGTERM or SIGINT; then finish the requests that are under way."""
    from evsched import api  # needs the extra `api`
    from evsched.api.application import StopResponder

    if find_spec("uvicorn") is None:
        raise api.missing()

    app = api.create(config)
    of_workers: Events = app.state.events
    ends: list[Callable[[], None]] = [waiters.stop for waiters in app.state.waiters]
    if config.api_console:
        from evsched import console  # needs the extra `console`
        from evsched.services.asgi_server import mounted

        pages = console.create(config, alone=_is_loopback(config.api_host))
        app = mounted(app, "/console", pages)
        ends.append(pages.state.console.hub.stop)
    _serve(
        config,
        StopResponder(app),
        (config.api_host, config.api_port, "API"),
        ends,
        lambda url: process_events.ApiStarted(url=url),
        of_workers,
    )


def run_console(config: Config) -> None:
    """Serve the console until SIGTERM or SIGINT.

    Raises:
        ConfigError: without tokens it may only listen on loopback, where nobody else reaches it.
    """
    from evsched import console  # needs the extra `console`

    if find_spec("uvicorn") is None:
        raise console.missing()
    if config.console_site is None:
        app = console.create(config, alone=_is_loopback(config.console_host))
    else:
        app = _site_of(config.console_site, config)
    path: str = getattr(app.state, "console_path", "")
    _serve(
        config,
        app,
        (config.console_host, config.console_port, "console"),
        [app.state.console.hub.stop],
        lambda url: process_events.ConsoleStarted(url=url + path),
    )


def _site_of(name: str, config: Config) -> Any:
    """Return the web application that has the console.

    Raises:
        CannotStart: there is no function of that name.
    """
    module, make = find_variable(name, "site")
    if not callable(make):
        raise CannotStart(f"{variable('console_site')}: module {module.__name__!r} has no function for {name!r}")
    return make(config=config)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _serve(
    config: Config,
    app: Any,
    where: tuple[str, int, str],
    on_stop: Sequence[Callable[[], None]],
    started: Callable[[str], Event],
    events: Events | None = None,
) -> None:
    """Serve an ASGI application as a service. `where`: host, port and name. `events`: of the application."""
    from evsched.services.asgi_server import GRACE, AsgiServer

    server = AsgiServer(app, *where, on_stop)

    async def work(process: _ServiceProcess) -> None:
        process.telemetry.of_reader(next(iter(config.queues), DEFAULT_QUEUE))
        if events is not None:
            events.subscribe(process.runtime.emit)
        serving = server.serve(lambda url: process.runtime.emit(started(url)), process.shutdown.request)
        await run_beside(serving, process.wait_for_redis())

    _run(config, GRACE, work, at_once=not config.require_redis)


def _run(config: Config, grace: float, work: _Work, *, at_once: bool = False) -> None:
    """Run a process. `at_once`: its work begins while Redis may still be down."""
    read_scripts()
    gc.collect()  # cycles that the imports left would stay for good
    gc.freeze()  # the modules and the app live as long as the process
    gc.set_threshold(*_COLLECTIONS)
    events, link = Events(log.Log(jobs=config.log_jobs).on_event), inherited_link()
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
    try:
        async with process.telemetry, primary(process.runtime.config.url).followed():
            if at_once or await process.shutdown.request.run_until_made(process.wait_for_redis()):
                await work(process)
    finally:
        await process.runtime.sender.close()
        if ended := forks.end_children(1.0):
            process.runtime.emit(HandlersLeft(processes=ended))
    if process.lingering:
        os._exit(0)  # a job's thread still runs after the grace: Python would wait for it forever


async def _both(process: _ServiceProcess, app: App, *, burst: bool = False) -> None:
    await run_beside(_work(process, app, burst=burst), _dispatch(process))


async def _dispatch(process: _ServiceProcess) -> None:
    runtime = process.spread(process.runtime.config.queues)
    cluster = topology(runtime.config.url)
    duties = [BatchKeeper]
    dispatcher = Dispatcher(runtime, duties) if cluster is None else ClusterDispatcher(runtime, cluster, duties)
    process.events.subscribe(dispatcher.on_event)
    if isinstance(dispatcher, Dispatcher):
        await dispatcher.find_queues(required=True)
    process.telemetry.of_dispatcher(dispatcher)
    runtime.emit(DispatcherStarted(server=process.server, queues=dispatcher.queues))
    await dispatcher.run()


async def _work(process: _ServiceProcess, app: App, *, burst: bool = False) -> None:
    config, shutdown = process.runtime.config, process.shutdown
    app.move_to(config.url)
    shards = AppShards(process.runtime, app)
    await shards.declare()
    runtime = process.spread(config.queues or app.queues)
    queues, program = list(runtime.config.queues), structs.replace(app.program, shards=runtime.shards)
    source = None if app.origin is None else AppSource(app.origin, log.level())
    worker = Worker(runtime, program, queues, source=source, before=process.inheritance.announced)
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
    process.lingering = worker.lingering


async def _idle(process: _ServiceProcess, worker: Worker) -> None:
    """Return when a burst is done: nothing runs and nothing is due, or the process was asked to end."""
    reconnect, idle = Reconnect("burst", process.runtime.emit), False
    while not idle and not await process.shutdown.request.comes_within(_BURST_LOOK):
        async with reconnect:
            idle = await worker.idle()


OnChanges = Callable[[Sequence[Finding], Sequence[Finding]], object]
"""Gets the new findings and the ones that are gone, after each examination with any."""


async def _watch_findings(
    runtime: Runtime, reconnect: Reconnect, role: Role | None, interval: float, on_changes: OnChanges
) -> None:
    """Examine Redis and the queues, and report changes, until cancelled.

    The interval is counted from the end of an examination. One that fails changes no finding.
    """
    config, known = runtime.config, list[Finding]()
    while True:
        rest = 0.0  # after a failure `reconnect` has waited
        async with reconnect:
            found = (await examine(config.url, runtime.sender, config.queues, role, ledger_url=config.ledger_url)).found
            (new, gone), known = changes(known, found), found
            problems = [finding for finding in found if finding.level != "info"]
            runtime.emit(
                process_events.Examined(checks=[one.check for one in problems], levels=[one.level for one in problems])
            )
            if new or gone:
                on_changes(new, gone)
            rest = interval
        await asyncio.sleep(rest)


_LOADING: Final = "loading"
"""The kind of a StoreDown that says that Redis still reads its data."""


async def check_server(sender: BatchingSender, url: str) -> str:
    """Return which server answers, such as "Redis 7.0.15".

    Raises:
        StoreDown: no server answers; the message says what to do.
        CannotStart: it refuses, or is too old.
    """
    try:
        replies = [reply for _, reply in await _of_each_node(sender, info("server", "persistence"))]
    except StoreDown as error:
        if error.kind == _LOADING:
            raise
        raise StoreDown(
            f"no Redis at {hide_password(url)} ({error}): start one, or name another with --url or EVSCHED_URL",
            kind=error.kind,
        ) from None
    except StoreRefused as error:
        raise CannotStart(f"Redis at {hide_password(url)} refuses: {error}") from None
    mode = replies[0].get("redis_mode", replies[0].get("server_mode"))  # Valkey has its own name for it
    if mode == "cluster" and topology(url) is None:
        raise CannotStart(f"{hide_password(url)}: {NO_CLUSTER}")
    versions = [read_version(reply) for reply in replies]
    for kind, version, least in versions:
        if least is not None:
            raise CannotStart(
                f"{kind} {version} at {hide_password(url)} is too old: "
                f"evsched needs {kind} {least[0]}.{least[1]} or newer"
            )
    kind, version, _ = versions[0]
    return f"{kind.capitalize()} {version}"


async def check_layout(sender: BatchingSender) -> None:
    """Check that this release understands the keys in Redis.

    Raises:
        StoreDown, StoreRefused
        CannotStart: a newer release has written them.
    """
    found = await sender.send(layout())
    if found != keys.LAYOUT:
        older = found > keys.LAYOUT
        raise CannotStart(
            f"the keys in Redis have layout {found}, and evsched {keys.RELEASE} knows layout {keys.LAYOUT}: "
            + ("install the release that the other processes run" if older else "run the release that wrote them")
            + " (docs/upgrade.md)"
        )


async def unsafe_settings(sender: BatchingSender) -> list[RedisUnsafe]:
    """Return the settings of Redis that may lose jobs: now, since `evsched doctor` may come too late.

    Raises:
        StoreDown
    """
    found = list[RedisUnsafe]()
    try:
        reports = await _of_each_node(sender, facts())
    except StoreRefused:
        return found  # `evsched doctor` reports that the settings cannot be read
    for node, report in reports:
        server = server_checks.Server(report, {})
        for finding in (*server_checks.persistence(server), *server_checks.eviction(server)):
            if finding.check in ("persistence", "eviction"):
                what = finding.what if node is None else f"{finding.what} (at {node[0]}:{node[1]})"
                found.append(RedisUnsafe(what=what, mend=finding.mend))
    return found


async def _of_each_node(sender: BatchingSender, call: Call[dict[str, str]]) -> list[tuple[Host | None, dict[str, str]]]:
    """Return a part of INFO of each primary of a cluster that serves, or of the one Redis.

    A server that still reads its data answers INFO, but next to nothing else.

    Raises:
        StoreDown: none serves.
        StoreRefused
    """
    nodes = await sender.nodes()
    values = await sender.attempt_all([call.at(node) for node in nodes])
    found, away = list[tuple[Host | None, dict[str, str]]](), list[StoreDown]()
    for node, value in zip(nodes, values, strict=True):
        if isinstance(value, StoreDown):
            away.append(value)
        elif isinstance(value, BaseException):
            raise value
        elif value.get("loading") == "1":
            away.append(StoreDown("Redis still reads its data from the disk", kind=_LOADING))
        else:
            found.append((node, value))
    if not found:
        raise away[0]
    return found
