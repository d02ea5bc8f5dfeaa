"""The telemetry of one process: its metrics, whether it is alive and ready, and the port that serves both.

One process has one registry and one port, whatever loops it runs. Without a port nothing is counted.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import disable_created_metrics

from evsched.config import DEFAULT_QUEUE
from evsched.dispatcher.cluster import ClusterDispatcher
from evsched.dispatcher.dispatcher import Dispatcher
from evsched.errors import NO_ENTRY, StoreDown, StoreRefused
from evsched.events import Event, Events, WorkerDraining
from evsched.process_events import Listening, NotificationsMissing, NotificationsProven, Subscribed, SubscriptionLost
from evsched.runtime.loops import Pulse, Runtime
from evsched.store import server
from evsched.store.store import Store
from evsched.telemetry.http_server import HttpServer
from evsched.telemetry.metrics import Metrics
from evsched.telemetry.queue_stats import DEADLINE, Depths
from evsched.transport.call import Call
from evsched.transport.senders import BatchingSender
from evsched.worker.worker import Worker


class Readiness:
    """Alive: each loop makes progress. Ready: Redis serves, and a dispatcher receives keyspace events."""

    def __init__(self, sender: BatchingSender) -> None:
        self._sender = sender
        self._pulses: list[Callable[[], list[Pulse]]] = []
        self._loops: list[tuple[str, Callable[[], str | None]]] = []
        """One queue of each kind of loop, and a function that returns why its last passes failed, or None."""
        self._others: list[Callable[[], str | None]] = []
        self._subscribes = False
        self._unproven: str | None = "whether keyspace events arrive is not tested yet"
        self._unsubscribed: str | None = None
        self._draining = False

    def on_event(self, event: Event) -> None:
        """Note whether the subscription works, and whether the process drains."""
        if isinstance(event, WorkerDraining):
            self._draining = True
        elif isinstance(event, NotificationsProven):
            self._unproven = None
        elif isinstance(event, NotificationsMissing):
            self._unproven = f"Redis sends no keyspace events: {event.mend}"
        elif isinstance(event, SubscriptionLost):
            self._unsubscribed = f"the subscription is lost: {event.reason}"
        elif isinstance(event, Subscribed):
            self._unsubscribed = None

    def watch(self, pulses: Callable[[], list[Pulse]]) -> None:
        """Require these loops to make progress."""
        self._pulses.append(pulses)

    def require(self, queue: str, failure: Callable[[], str | None], *, subscribes: bool = False) -> None:
        """Be ready only if Redis serves `queue`, and `failure()` is None. `subscribes`: the events must arrive too."""
        self._loops.append((queue, failure))
        self._subscribes = self._subscribes or subscribes

    def require_other(self, problem: Callable[[], str | None]) -> None:
        """Be ready only if `problem()`, which is not about Redis, is None too."""
        self._others.append(problem)

    def why_not_alive(self) -> str | None:
        """Return which loop hangs; None if none does."""
        return next((hung for pulses in self._pulses for pulse in pulses() if (hung := pulse.problem())), None)

    async def why_not_ready(self) -> str | None:
        """Return why the process is not ready; None if it is."""
        if self._draining:
            return "draining: the process was asked to stop"
        if not self._loops:
            return "the process is starting"
        known = self.why_not_alive() or (self._subscribes and (self._unsubscribed or self._unproven)) or None
        if known is not None:
            return known
        for queue, failure in self._loops:
            if (reason := await why_redis_does_not_serve(self._sender.send, queue, failure)) is not None:
                return reason
        return next((reason for other in self._others if (reason := other()) is not None), None)


async def why_redis_does_not_serve(
    send: Callable[[Call[Any]], Awaitable[Any]], queue: str, failure: Callable[[], str | None] = lambda: None
) -> str | None:
    """Return why Redis does not serve; None if it does. It runs a script, then checks how the last passes went."""
    try:
        async with asyncio.timeout(DEADLINE):
            await send(Store(queue).queue_stats())  # a script, so scripts run
            if await send(server.takes_no_writes(queue)):
                return "Redis is a replica: it accepts no writes"
    except StoreDown as error:
        return f"Redis does not answer: {error}"
    except StoreRefused as error:
        if error.kind in (*NO_ENTRY, "noperm"):
            return f"Redis refuses: {error}"
        # Bad data of one queue: the process is ready unless its loops fail for all queues.
    except TimeoutError:
        return f"Redis does not answer within {DEADLINE:g} s"
    refused = failure()
    return None if refused is None else f"Redis refuses: {refused}"


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

    def of_ledger(
        self,
        pulses: Callable[[], list[Pulse]],
        problem: Callable[[], str | None],
        database_problem: Callable[[], str | None],
        waiting: Callable[[], Awaitable[tuple[int, float] | None]],
    ) -> None:
        """Report on a relay of the ledger. `waiting`: how many rows wait, and for how long; None = unknown."""

        async def refresh() -> None:
            rows, seconds = await waiting() or (math.nan, math.nan)
            self._metrics.gauges["ledger_waiting_rows"].set(rows)
            self._metrics.gauges["ledger_waiting_seconds"].set(seconds)

        self._refreshes.append(refresh)
        self._readiness.watch(pulses)
        self._readiness.require(DEFAULT_QUEUE, problem)
        self._readiness.require_other(database_problem)

    def of_reader(self, queue: str, problem: Callable[[], str | None] = lambda: None) -> None:
        """Report whether a doctor, or a server of the HTTP interface, can read Redis. `queue`: any that may be read."""
        self._readiness.require(queue, problem)

    async def __aenter__(self) -> Telemetry:
        """Listen, if a port is set.

        Raises:
            ConfigError: the port is taken.
        """
        if self._taken is not None:
            self._adopting = asyncio.ensure_future(self._listen_when_free(self._taken))
        elif self._reserved is not None or self._runtime.config.metrics_port is not None:
            await self._listen()
        return self

    async def __aexit__(self, *raised: object) -> None:
        if self._adopting is not None:
            self._adopting.cancel()
            await asyncio.gather(self._adopting, return_exceptions=True)
        await self._http_server.close()

    async def _listen(self) -> None:
        host, port = self._runtime.config.metrics_host, self._runtime.config.metrics_port or 0
        if self._reserved is not None:
            host, port, *_ = self._reserved.getsockname()
        url = await self._http_server.open(host, port, reserved=self._reserved is not None)
        self._runtime.emit(Listening(url=url))

    async def _listen_when_free(self, taken: socket.socket) -> None:
        """Listen when the process that this one replaces has ended: until then it answers, with what it counts."""
        taken.setblocking(False)
        await asyncio.get_running_loop().sock_recv(taken, 1)  # empty when the other end is closed; nothing is sent
        taken.close()
        await self._listen()

    async def _refresh(self) -> None:
        for refresh in self._refreshes:
            await refresh()
