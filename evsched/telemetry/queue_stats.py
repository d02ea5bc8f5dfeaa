"""What of Redis is read when a scrape comes, and never on a timer: how much waits where, and for how long.

Dispatchers read it, for many queues in one round trip, and at most once a second however many scrape.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any, Final

from evsched.errors import StoreError
from evsched.events import RedisFailed
from evsched.runtime.runtime import Runtime
from evsched.store import server
from evsched.store.replies import QueueStats
from evsched.store.store import Store
from evsched.telemetry.metrics import Metrics
from evsched.transport.call import Call

_FRESH: Final = 1.0
"""Seconds for which what was read is told again."""

_SLICE: Final = 50
"""Queues that are asked in one round trip, 0.5 ms of Redis's time: jobs go on in between, however many there are."""

DEADLINE: Final = 0.75
"""Seconds that a scrape or a probe waits for Redis: then it tells the rest, within a second."""

_WHO: Final = "scrape"


class Depths:
    """The gauges of the queues that `queues()` names."""

    def __init__(self, metrics: Metrics, runtime: Runtime, queues: Callable[[], list[str]]) -> None:
        self._metrics = metrics
        self._runtime = runtime
        self._queues = queues
        self._at = float("-inf")

    async def refresh(self) -> None:
        """Read what is older than a second. What cannot be read is left out, and evsched_redis_up is 0.

        An old figure would look like a new one to whoever draws it or alarms by it.
        """
        if time.monotonic() - self._at < _FRESH:
            return
        self._at = time.monotonic()
        told, queues = self._metrics, self._queues()
        told.forget()
        sent = time.time()
        try:
            async with asyncio.timeout(DEADLINE):
                about = [server.clock(), server.info("stats", "memory")]
                now, redis, *found = await self._read([*about, *(Store(queue).queue_stats() for queue in queues)])
        except (StoreError, TimeoutError) as error:
            self._runtime.emit(RedisFailed(kind=error.kind if isinstance(error, StoreError) else "timeout"))
            told.tell_up(_WHO, False)
            return
        told.tell_up(_WHO, True)
        told.clock.set(_ahead(now, sent, time.time()))
        told.evicted.set(float(redis.get("evicted_keys", 0)))
        most = float(redis.get("maxmemory", 0))
        told.memory.set(float(redis.get("used_memory", 0)) / most if most else 0.0)
        for queue, queue_stats in zip(queues, found, strict=True):
            self._tell(told.queue_label(queue), queue_stats)

    def _tell(self, queue: str, queue_stats: QueueStats) -> None:
        told = self._metrics
        for place, count in queue_stats.places.items():
            told.queue_jobs.labels(queue, place).inc(count)
        told.overdue.labels(queue).inc(queue_stats.due + queue_stats.places["backlog"] + queue_stats.places["ready"])
        told.overdue_for.labels(queue).set(_overdue_for(queue_stats))
        told.queue_oldest.labels(queue).set(queue_stats.oldest)
        told.queue_workers.labels(queue).set(queue_stats.workers)
        told.queue_paused.labels(queue).set(queue_stats.paused is not None)
        if queue_stats.next_due is not None and math.isfinite(queue_stats.next_due):
            told.next_due.labels(queue).set(queue_stats.next_due)

    async def _read(self, calls: list[Call[Any]]) -> list[Any]:
        slices = [calls[at : at + _SLICE] for at in range(0, len(calls), _SLICE)]
        return [answer for some in slices for answer in await self._runtime.sender.send_all(some)]


def _ahead(now: float, sent: float, heard: float) -> float:
    """Return how far Redis's clock is ahead of this host's: it was read in between."""
    return min(now - sent, 0.0) + max(now - heard, 0.0)


def _overdue_for(queue_stats: QueueStats) -> float:
    """Return for how long the first of the overdue jobs has been due. Who schedules at 0 means at once, not 1970."""
    late = [queue_stats.oldest]
    if queue_stats.due and queue_stats.next_due is not None:
        late.append(queue_stats.now - queue_stats.next_due)
    return max((seconds for seconds in late if seconds < queue_stats.now - 1), default=0.0)
