"""The handlers of requests about queues."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from evsched.api.asked import Asked
from evsched.api.replies import QueueCounts, Queues, Reply
from evsched.api.requests import ListQuery
from evsched.client.spread import listed, queue_stats
from evsched.store.operators import QueueStats


async def list_queues(asked: Asked[None, ListQuery]) -> Reply:
    """List the queues with their counts."""
    limit, client = asked.limit(asked.query.limit), asked.client
    names = sorted(asked.config.queues) or await client.run(listed(client.shards, client.store))
    stats = await asyncio.gather(*(client.run(queue_stats(client.stores(name))) for name in names[:limit]))
    found = [_counts(name, one) for name, one in zip(names, stats, strict=False)]
    return Reply(HTTPStatus.OK, Queues(found, len(names) <= limit))


async def count(asked: Asked[None, None]) -> Reply:
    """Count the jobs of a queue. One that was never used has none."""
    return Reply(HTTPStatus.OK, _counts(asked.queue, await asked.client.run(queue_stats(asked.stores))))


def _counts(queue: str, stats: QueueStats) -> QueueCounts:
    return QueueCounts(
        queue=queue,
        **stats.places,
        overdue=stats.due,
        oldest=stats.oldest,
        workers=stats.workers,
        next_due=stats.next_due,
        paused=stats.paused,
        paused_until=stats.paused_until,
        paused_why=stats.paused_why,
    )
