"""The metrics that are read from Redis at a scrape, never on a timer: how many jobs wait where, and for how long.

Dispatchers read them, for many queues in one round trip, and at most once a second however many scrape.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, Final

from evsched.errors import StoreError
from evsched.process_events import RedisFailed
from evsched.runtime.loops import Runtime
from evsched.store import server
from evsched.store.operator_calls import QueueStats, merged
from evsched.store.store import Store
from evsched.telemetry.metrics import Metrics
from evsched.transport.call import Call

_FRESH: Final = 1.0
"""Seconds for which the figures are reused."""

_SLICE: Final = 50
"""Queues read in one round trip, 0.5 ms of Redis's time: other commands run in between."""

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
        metrics.forget()
        try:
            async with asyncio.timeout(DEADLINE):
                servers, found = await asyncio.gather(
                    self._read_servers(), self._read([Store(queue).queue_stats() for queue in queues])
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

    def _set(self, queue: str, stats: QueueStats) -> None:
        gauges, places = self._metrics.gauges, stats.places
        for place, count in places.items():
            gauges["queue_jobs"].labels(queue, place).set(count)
        gauges["queue_overdue_jobs"].labels(queue).set(stats.due + places["backlog"] + places["ready"])
        gauges["queue_overdue_seconds"].labels(queue).set(_overdue_for(stats))
        gauges["queue_oldest_ready_seconds"].labels(queue).set(stats.oldest)
        gauges["queue_workers"].labels(queue).set(stats.workers)
        gauges["queue_paused"].labels(queue).set(stats.paused is not None)
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
