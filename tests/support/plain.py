"""A plain client of redis-py, as a test uses it to look into Redis, or a program that knows nothing of evsched."""

from __future__ import annotations

from typing import Any

import redis


def plain_client(url: str, **options: Any) -> Any:
    """Return a client that waits for replies without a time limit; each test has one of its own.

    redis-py gives up after 5 s by itself, even a BLPOP that is to wait longer, and then sends the command once more.
    """
    if url.startswith("redis+cluster"):
        host, _, port = url.removeprefix("redis+cluster://").partition(",")[0].partition(":")
        # Not `from_url`: the connections of such a client stay open after `close`.
        return redis.RedisCluster(host=host, port=int(port), protocol=2, **options)
    return redis.Redis.from_url(
        url, protocol=2, driver_info=None, socket_timeout=None, socket_connect_timeout=None, **options
    )


def on_primaries(client: Any) -> dict[str, Any]:
    """Return options with which such a client sends a command without a key to each server that has queues.

    In a cluster, redis-py sends most of these commands to one node, and chooses which.
    """
    return {"target_nodes": "primaries"} if isinstance(client, redis.RedisCluster) else {}
