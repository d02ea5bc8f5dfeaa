"""The handlers of requests about queues."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from evsched.api.asked import Asked
from evsched.api.replies import QueueCounts, Queues, Reply
from evsched.api.requests import ListQuery
from evsched.client.operations import ask_nodes, once
from evsched.client.spread import listed, queue_stats, shown
from evsched.errors import StoreError
from evsched.store.operator_calls import QueueStats
from evsched.transport.servers import topology


async def list_queues(asked: Asked[None, ListQuery]) -> Reply:
    """List the queues with their counts."""
    limit = asked.limit(asked.query.limit)
    names, complete = await _names(asked)
    read = await asyncio.gather(*(_read(asked, name) for name in names[:limit]))
    found = [_counts(name, one) for name, one in zip(names, read, strict=False) if isinstance(one, QueueStats)]
    errors = [one for one in read if isinstance(one, StoreError)]
    if errors and not found:
        raise errors[0]
    complete = complete and not errors and len(names) <= limit and asked.shards.known
    return Reply(HTTPStatus.OK, Queues(found, complete))


async def _names(asked: Asked[Any, Any]) -> tuple[list[str], bool]:
    """Return the queues to list, and whether they are all: in a cluster, each node was asked once."""
    client, url = asked.client, asked.config.url
    if asked.config.queues:
        return sorted(asked.config.queues), True
    if topology(url) is None:
        return await client.run(listed(client.shards, client.store)), True
    known = await ask_nodes(url, client.perform)
    return await client.run(once(shown(client.shards, client.store, known.names))), not known.down


async def _read(asked: Asked[Any, Any], queue: str) -> QueueStats | StoreError:
    """Read a queue with its shards. In a cluster each is asked once, so that none delays the list for long."""
    reading = queue_stats(asked.client.stores(queue))
    try:
        return await asked.client.run(reading if topology(asked.config.url) is None else once(reading))
    except StoreError as error:
        return error


async def count(asked: Asked[None, None]) -> Reply:
    """Count the jobs of a queue. One that was never used has none."""
    asked.shards.check()
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
