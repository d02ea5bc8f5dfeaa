"""What one process tells of itself: its metrics, how it is, and where both can be asked.

One process, one registry, one port, whatever loops it runs. Without a port nothing is counted.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from types import TracebackType

from prometheus_client import disable_created_metrics

from evsched.dispatcher.dispatcher import Dispatcher
from evsched.dispatcher.janitor import Janitor
from evsched.errors import NO_ENTRY, StoreDown, StoreRefused
from evsched.events import (
    Event,
    Events,
    Listening,
    NotificationsMissing,
    NotificationsProven,
    Subscribed,
    SubscriptionLost,
    WorkerDraining,
)
from evsched.runtime.pulse import Pulse
from evsched.runtime.runtime import Runtime
from evsched.store import server
from evsched.store.store import Store
from evsched.telemetry.http import HttpServer
from evsched.telemetry.metrics import Metrics
from evsched.telemetry.queue_stats import DEADLINE, Depths
from evsched.worker.worker import Worker


class Telemetry:
    """`async with` it around the life of a process, and name the loops that run there."""

    def __init__(self, runtime: Runtime, events: Events, version: str, listening: socket.socket | None = None) -> None:
        self._runtime = runtime
        self._listening = listening
        """A socket that listens already, instead of a port."""
        self._metrics = Metrics(version)
        self._refreshes: list[Callable[[], Awaitable[None]]] = []
        self._asks: list[Callable[[], Awaitable[str | None]]] = []
        self._pulses: list[Callable[[], list[Pulse]]] = []
        self._http_server = HttpServer(self._metrics.registry, self._refresh, self._ready, self._alive)
        self._unproven: str | None = "the subscription is not proved yet"
        self._unheard: str | None = None
        self._draining = False
        counted = runtime.config.metrics_port is not None or listening is not None
        if counted:
            disable_created_metrics()  # twice the series, for times that nobody asks for
            events.subscribe(self._metrics.on_event)
            events.subscribe(self._hear)

    def of_dispatcher(self, dispatcher: Dispatcher) -> None:
        """Tell of a dispatcher: the depths of its queues, and whether it hears their events."""
        depths = Depths(self._metrics, self._runtime, lambda: dispatcher.queues)
        self._refreshes.append(depths.refresh)
        self._pulses.append(lambda: dispatcher.pulses)
        self._asks.append(self._hears)
        self._asks.append(lambda: self._answers(dispatcher.queues[0], dispatcher.wrong))

    def of_janitor(self, janitor: Janitor) -> None:
        """Tell of a janitor: that it comes round."""
        self._pulses.append(lambda: [janitor.pulse])

    def of_worker(self, worker: Worker) -> None:
        """Tell of a worker: its slots."""
        busy, free = self._metrics.slots.labels("busy"), self._metrics.slots.labels("free")

        async def refresh() -> None:
            running = sum(consumer.running for consumer in worker.consumers.values())
            busy.set(running)
            free.set(max(0, self._runtime.config.concurrency - running))

        self._refreshes.append(refresh)
        self._pulses.append(lambda: worker.pulses)
        self._asks.append(lambda: self._answers(next(iter(worker.consumers)), worker.wrong))

    async def __aenter__(self) -> Telemetry:
        """Listen, if a port is set.

        Raises:
            ConfigError: the port is taken.
        """
        if self._listening is not None:
            url = await self._http_server.adopt(self._listening)
            self._runtime.emit(Listening(url=url))
        elif self._runtime.config.metrics_port is not None:
            url = await self._http_server.open(self._runtime.config.metrics_host, self._runtime.config.metrics_port)
            self._runtime.emit(Listening(url=url))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http_server.close()

    async def _refresh(self) -> None:
        for refresh in self._refreshes:
            await refresh()

    async def _ready(self) -> str | None:
        if self._draining:
            return "draining: it was asked to end"
        if not self._asks:
            return "it is starting"
        if (wrong := self._alive()) is not None:
            return wrong
        for ask in self._asks:
            wrong = await ask()
            if wrong is not None:
                return wrong
        return None

    def _alive(self) -> str | None:
        """Return which loop hangs; None = none does."""
        return next((wrong for pulses in self._pulses for pulse in pulses() if (wrong := pulse.wrong())), None)

    async def _answers(self, queue: str, refused: Callable[[], str | None]) -> str | None:
        """Ask Redis, then look at what the last passes of the loops met."""
        try:
            async with asyncio.timeout(DEADLINE):
                await self._runtime.sender.send(Store(queue).queue_stats())  # a script, so scripts run
                if await self._runtime.sender.send(server.takes_no_writes()):
                    return "Redis is a replica: it takes no write"
        except StoreDown as error:
            return f"Redis does not answer: {error}"
        except StoreRefused as error:
            if error.kind in (*NO_ENTRY, "noperm"):
                return f"Redis refuses: {error}"
            # Bad data of one queue: what the loops met of all of them decides.
        except TimeoutError:
            return f"Redis does not answer within {DEADLINE:g} s"
        wrong = refused()
        return None if wrong is None else f"Redis refuses: {wrong}"

    async def _hears(self) -> str | None:
        return self._unheard or self._unproven

    def _hear(self, event: Event) -> None:
        if isinstance(event, WorkerDraining):
            self._draining = True
        elif isinstance(event, NotificationsProven):
            self._unproven = None
        elif isinstance(event, NotificationsMissing):
            self._unproven = f"Redis tells no keyspace events: {event.mend}"
        elif isinstance(event, SubscriptionLost):
            self._unheard = f"the subscription is lost: {event.reason}"
        elif isinstance(event, Subscribed):
            self._unheard = None
