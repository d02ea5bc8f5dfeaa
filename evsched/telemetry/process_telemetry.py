"""The telemetry of one process: its metrics, whether it is alive and ready, and the port that serves both.

One process has one registry and one port, whatever loops it runs. Without a port nothing is counted.

The metrics of queues are read from Redis at a scrape, never on a timer: dispatchers read them, for many queues in one
round trip, and at most once a second however many scrape.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from prometheus_client import disable_created_metrics

from evsched.config import DEFAULT_QUEUE
from evsched.dispatcher.dispatcher import ClusterDispatcher, Dispatcher
from evsched.errors import NO_ENTRY, StoreDown, StoreError, StoreRefused
from evsched.events import Event, Events, WorkerDraining
from evsched.process_events import (
    Listening,
    NotificationsMissing,
    NotificationsProven,
    RedisFailed,
    Subscribed,
    SubscriptionLost,
)
from evsched.runtime.loops import Pulse, Runtime
from evsched.store import server
from evsched.store.many_queues import read_all_queue_stats, read_all_recurrence_stats
from evsched.store.operator_calls import QueueStats, merged
from evsched.store.store import Store
from evsched.telemetry.http_server import HttpServer
from evsched.telemetry.metrics import Metrics
from evsched.transport.call import Call
from evsched.transport.senders import BatchingSender
from evsched.worker.worker import Worker

_FRESH: Final = 1.0
"""Seconds for which the figures are reused."""

_SLICE: Final = 50
"""Queues whose recurrences are read in one round trip: other commands run in between."""

DEADLINE: Final = 0.75
"""Seconds that a scrape or a probe waits for Redis; then it answers without it, within a second."""

_WHO: Final = "scrape"
"""The name under which a failed read counts as a part of the process that Redis does not serve."""


class Depths:
    """The gauges of the queues that `queues()` names."""

    def __init__(self, metrics: Metrics, runtime: Runtime, queues: Callable[[], list[str]]) -> None:
        self._metrics = metrics
        self._runtime = runtime
        self._queues = queues
        self._at = float("-inf")

    async def refresh(self) -> None:
        """Read the figures, if they are older than a second. If that fails, leave them out, and set redis_up to 0.

        They are left out because a dashboard or an alert would take an old figure for the current one.
        """
        if time.monotonic() - self._at < _FRESH:
            return
        self._at = time.monotonic()
        metrics, queues = self._metrics, self._queues()
        wholes = [queue for queue in queues if self._runtime.shards.whole(queue) == queue]  # they have the recurrences
        metrics.forget()
        try:
            async with asyncio.timeout(DEADLINE):
                servers, found, recurrences = await asyncio.gather(
                    self._read_servers(),
                    read_all_queue_stats(self._runtime.sender.send, self._runtime.sender.node_of, queues),
                    read_all_recurrence_stats(self._runtime.sender.send, self._runtime.sender.node_of, wholes),
                )
        except (StoreError, TimeoutError) as error:
            self._runtime.emit(RedisFailed(kind=error.kind if isinstance(error, StoreError) else "timeout"))
            metrics.set_up(_WHO, False)
            return
        metrics.set_up(_WHO, True)
        ahead, infos = servers
        metrics.gauges["redis_clock_ahead_seconds"].set(max(ahead, key=abs))
        metrics.gauges["redis_evicted_keys"].set(sum(float(info.get("evicted_keys", 0)) for info in infos))
        metrics.gauges["redis_memory_used_ratio"].set(max(map(_memory_used, infos)))
        by_label = dict[str, list[QueueStats]]()
        for queue, queue_stats in zip(queues, found, strict=True):
            if self._runtime.shards.is_beyond(queue) and not any(queue_stats.places.values()):
                continue  # it was a shard
            by_label.setdefault(metrics.queue_label(queue), []).append(queue_stats)
        for label, of_label in by_label.items():
            self._set(label, merged(of_label))
        for queue, of_queue in zip(wholes, recurrences, strict=True):
            for one in of_queue:
                metrics.set_recurrence(queue, one.name, one.due, one.success)

    def _set(self, queue: str, stats: QueueStats) -> None:
        gauges, places = self._metrics.gauges, stats.places
        for place, count in places.items():
            gauges["queue_jobs"].labels(queue, place).set(count)
        gauges["queue_overdue_jobs"].labels(queue).set(stats.due + places["backlog"] + places["ready"])
        gauges["queue_overdue_seconds"].labels(queue).set(_overdue_for(stats))
        gauges["queue_oldest_ready_seconds"].labels(queue).set(stats.oldest)
        gauges["queue_workers"].labels(queue).set(stats.workers)
        gauges["queue_paused"].labels(queue).set(stats.paused is not None)
        if (sums := stats.batches) is not None:
            gauges["queue_batches"].labels(queue).set(sums.open)
            gauges["queue_batch_jobs"].labels(queue).set(sums.jobs)
            for outcome in ("done", "failed", "cancelled"):
                self._metrics.read_counters["batches_ended"].set((queue, outcome), getattr(sums, outcome))
        if stats.next_due is not None and math.isfinite(stats.next_due):
            gauges["next_due_timestamp_seconds"].labels(queue).set(stats.next_due)

    async def _read_servers(self) -> tuple[list[float], list[dict[str, str]]]:
        """Read Redis, or each primary of a cluster: how far its clock is ahead of this host's, and its INFO."""
        nodes, sent = await self._runtime.sender.nodes(), time.time()
        about = [call.at(node) for node in nodes for call in (server.clock(), server.info("stats", "memory"))]
        read, received = await self._read(about), time.time()
        # Redis read its clock between `sent` and `received`.
        return [min(now - sent, 0.0) + max(now - received, 0.0) for now in read[::2]], read[1::2]

    async def _read(self, calls: list[Call[Any]]) -> list[Any]:
        slices = [calls[at : at + _SLICE] for at in range(0, len(calls), _SLICE)]
        return [answer for some in slices for answer in await self._runtime.sender.send_all(some)]


def _memory_used(info: dict[str, str]) -> float:
    most = float(info.get("maxmemory", 0))
    return float(info.get("used_memory", 0)) / most if most else 0.0


def _overdue_for(queue_stats: QueueStats) -> float:
    """Return how long the first of the overdue jobs has been due. A due of 0 means at once, not 1970."""
    late = [queue_stats.oldest]
    if queue_stats.due and queue_stats.next_due is not None:
        late.append(queue_stats.now - queue_stats.next_due)
    return max((seconds for seconds in late if seconds < queue_stats.now - 1), default=0.0)


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
        waiting: Callable[[], Awaitable[tuple[int, float] | None]] | None = None,
    ) -> None:
        """Report on a process of the ledger. `waiting`, of a relay: how many rows wait, and for how long."""
        if waiting is not None:

            async def refresh() -> None:
                rows, seconds = await waiting() or (math.nan, math.nan)  # unknown
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
