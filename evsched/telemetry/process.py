"""The telemetry of one process: its metrics, whether it is alive and ready, and the port where both are served.

One process has one registry and one port, whatever loops it runs. Without a port nothing is counted.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import TracebackType

from prometheus_client import disable_created_metrics

from evsched.config import DEFAULT_QUEUE
from evsched.dispatcher.cluster import ClusterDispatcher
from evsched.dispatcher.dispatcher import Dispatcher
from evsched.events import Events, Listening
from evsched.runtime.loops import Pulse, Runtime
from evsched.telemetry.http import HttpServer
from evsched.telemetry.metrics import Metrics
from evsched.telemetry.queue_stats import Depths
from evsched.telemetry.readiness import Readiness
from evsched.worker.worker import Worker


class Telemetry:
    """Use `async with` for the life of a process, and register the loops that run in it by `of_...`."""

    def __init__(
        self,
        runtime: Runtime,
        events: Events,
        version: str,
        reserved: socket.socket | None = None,
        taken: socket.socket | None = None,
    ) -> None:
        self._runtime = runtime
        self._reserved = reserved
        """A socket that reserves the port."""
        self._taken = taken
        """While its other end is open, another process answers on that port."""
        self._adopting: asyncio.Task[None] | None = None
        self._metrics = Metrics(version, runtime.shards.whole)
        self._readiness = Readiness(runtime.sender)
        self._refreshes: list[Callable[[], Awaitable[None]]] = []
        self._http_server = HttpServer(
            self._metrics.registry, self._refresh, self._readiness.why_not_ready, self._readiness.why_not_alive
        )
        if runtime.config.metrics_port is not None or reserved is not None:
            disable_created_metrics()  # they would double the series, and nothing uses those times
            events.subscribe(self._metrics.on_event)
            events.subscribe(self._readiness.on_event)

    def of_dispatcher(self, dispatcher: Dispatcher | ClusterDispatcher) -> None:
        """Report on a dispatcher: the figures of its queues, and whether it receives their events."""
        depths = Depths(self._metrics, self._runtime, lambda: dispatcher.queues)
        self._refreshes.append(depths.refresh)
        self._readiness.watch(lambda: dispatcher.pulses)
        queue = next(iter(dispatcher.queues), DEFAULT_QUEUE)
        self._readiness.require(queue, dispatcher.problem, subscribes=True)

    def of_worker(self, worker: Worker) -> None:
        """Report on a worker: its slots, and whether it serves its queues."""
        slots = self._metrics.gauges["worker_slots"]

        async def refresh() -> None:
            running = sum(consumer.held.running for consumer in worker.consumers.values())
            slots.labels("busy").set(running)
            slots.labels("free").set(max(0, self._runtime.config.concurrency - running))

        self._refreshes.append(refresh)
        self._readiness.watch(lambda: worker.pulses)
        self._readiness.require(next(iter(worker.consumers)), worker.problem)

    def of_doctor(self, queue: str, problem: Callable[[], str | None]) -> None:
        """Report whether a doctor that watches can examine Redis. `queue`: any that may be read."""
        self._readiness.require(queue, problem)

    def of_ledger(
        self,
        pulses: Callable[[], list[Pulse]],
        problem: Callable[[], str | None],
        database_problem: Callable[[], str | None],
        waiting: Callable[[], Awaitable[tuple[int, float] | None]],
    ) -> None:
        """Report on a relay of the ledger. `waiting`: how many rows wait, and for how long; None = it is not known."""

        async def refresh() -> None:
            self._metrics.set_ledger(*(await waiting() or ()))

        self._refreshes.append(refresh)
        self._readiness.watch(pulses)
        self._readiness.require(DEFAULT_QUEUE, problem)
        self._readiness.require_other(database_problem)

    def of_api(self, queue: str) -> None:
        """Report on a server of the HTTP interface. `queue`: any that may be read."""
        self._readiness.require(queue, lambda: None)

    async def __aenter__(self) -> Telemetry:
        """Listen, if a port is set.

        Raises:
            ConfigError: the port is taken.
        """
        config = self._runtime.config
        if self._reserved is not None and self._taken is not None:
            self._adopting = asyncio.ensure_future(self._adopt_when_free(self._reserved, self._taken))
        elif self._reserved is not None:
            await self._adopt(self._reserved)
        elif config.metrics_port is not None:
            url = await self._http_server.open(config.metrics_host, config.metrics_port)
            self._runtime.emit(Listening(url=url))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._adopting is not None:
            self._adopting.cancel()
            await asyncio.gather(self._adopting, return_exceptions=True)
        await self._http_server.close()

    async def _adopt(self, reserved: socket.socket) -> None:
        self._runtime.emit(Listening(url=await self._http_server.adopt(reserved)))

    async def _adopt_when_free(self, reserved: socket.socket, taken: socket.socket) -> None:
        """Listen when the process that this one replaces has ended: until then it answers, with what it counts."""
        taken.setblocking(False)
        await asyncio.get_running_loop().sock_recv(taken, 1)  # empty when the other end is closed; nothing is sent
        taken.close()
        await self._adopt(reserved)

    async def _refresh(self) -> None:
        for refresh in self._refreshes:
            await refresh()
