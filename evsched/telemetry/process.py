"""The telemetry of one process: its metrics, whether it is alive and ready, and the port where both are served.

One process has one registry and one port, whatever loops it runs. Without a port nothing is counted.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from types import TracebackType

from prometheus_client import disable_created_metrics

from evsched.dispatcher.dispatcher import Dispatcher
from evsched.dispatcher.janitor import Janitor
from evsched.events import Events, Listening
from evsched.runtime.runtime import Runtime
from evsched.telemetry.http import HttpServer
from evsched.telemetry.metrics import Metrics
from evsched.telemetry.queue_stats import Depths
from evsched.telemetry.readiness import Readiness
from evsched.worker.worker import Worker


class Telemetry:
    """Use `async with` for the life of a process, and register the loops that run in it by `of_...`."""

    def __init__(self, runtime: Runtime, events: Events, version: str, listening: socket.socket | None = None) -> None:
        self._runtime = runtime
        self._listening = listening
        """A socket that already listens, instead of a port."""
        self._metrics = Metrics(version)
        self._readiness = Readiness(runtime.sender)
        self._refreshes: list[Callable[[], Awaitable[None]]] = []
        self._http_server = HttpServer(
            self._metrics.registry, self._refresh, self._readiness.why_not_ready, self._readiness.why_not_alive
        )
        if runtime.config.metrics_port is not None or listening is not None:
            disable_created_metrics()  # they would double the series, and nothing uses those times
            events.subscribe(self._metrics.on_event)
            events.subscribe(self._readiness.on_event)

    def of_dispatcher(self, dispatcher: Dispatcher) -> None:
        """Report on a dispatcher: the figures of its queues, and whether it receives their events."""
        depths = Depths(self._metrics, self._runtime, lambda: dispatcher.queues)
        self._refreshes.append(depths.refresh)
        self._readiness.watch(lambda: dispatcher.pulses)
        self._readiness.require(dispatcher.queues[0], dispatcher.problem, subscribes=True)

    def of_janitor(self, janitor: Janitor) -> None:
        """Report whether a janitor makes progress."""
        self._readiness.watch(lambda: [janitor.pulse])

    def of_worker(self, worker: Worker) -> None:
        """Report on a worker: its slots, and whether it serves its queues."""
        slots = self._metrics.gauges["worker_slots"]

        async def refresh() -> None:
            running = sum(consumer.running for consumer in worker.consumers.values())
            slots.labels("busy").set(running)
            slots.labels("free").set(max(0, self._runtime.config.concurrency - running))

        self._refreshes.append(refresh)
        self._readiness.watch(lambda: worker.pulses)
        self._readiness.require(next(iter(worker.consumers)), worker.problem)

    async def __aenter__(self) -> Telemetry:
        """Listen, if a port is set.

        Raises:
            ConfigError: the port is taken.
        """
        config = self._runtime.config
        if self._listening is not None:
            self._runtime.emit(Listening(url=await self._http_server.adopt(self._listening)))
        elif config.metrics_port is not None:
            url = await self._http_server.open(config.metrics_host, config.metrics_port)
            self._runtime.emit(Listening(url=url))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http_server.close()

    async def _refresh(self) -> None:
        for refresh in self._refreshes:
            await refresh()
