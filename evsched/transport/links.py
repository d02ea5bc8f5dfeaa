"""Links: the connections of redis-py, with every option explicit. None of them retries.

(redis-py's own retries silently sent a BLMOVE twice.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import redis.asyncio.connection as async_redis
import redis.connection as sync_redis
from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType]
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry as SyncRetry

from evsched.transport.call import Word

CONNECT: Final = 2.0
"""Seconds to open a connection: longer than the retry of one lost SYN (1 s), shorter than a lease."""

_OPTIONS: Final[dict[str, Any]] = {
    "protocol": 2,
    "decode_responses": False,  # one member that is not UTF-8 would break the connection
    "socket_timeout": None,  # each exchange has its own timeout
    "socket_connect_timeout": CONNECT,
    "socket_keepalive": True,
    "health_check_interval": 0,
    "driver_info": None,  # CLIENT SETINFO is an error on Redis 7.0
}

_ASYNC: Final = {
    "redis": async_redis.Connection,
    "rediss": async_redis.SSLConnection,
    "unix": async_redis.UnixDomainSocketConnection,
}
_SYNC: Final = {
    "redis": sync_redis.Connection,
    "rediss": sync_redis.SSLConnection,
    "unix": sync_redis.UnixDomainSocketConnection,
}

AsyncLink = async_redis.AbstractConnection
SyncLink = sync_redis.AbstractConnection

pack = cast(Callable[[tuple[Word, ...]], bytes], pack_command)
"""Make the bytes of a command. hiredis packs in C; redis-py packs in Python, which takes 0.8 us a word."""


def new_link(scheme: str, **options: Any) -> AsyncLink:
    """Return a link, which is not open yet, for a program with an event loop."""
    return _ASYNC[scheme](**_merged(scheme, options), retry=AsyncRetry(NoBackoff(), 0))


def new_sync_link(scheme: str, **options: Any) -> SyncLink:
    """Return a link, which is not open yet, for a program without an event loop."""
    return _SYNC[scheme](**_merged(scheme, options), retry=SyncRetry(NoBackoff(), 0))


def _merged(scheme: str, options: dict[str, Any]) -> dict[str, Any]:
    merged = {**_OPTIONS, **options}
    if scheme == "unix":
        del merged["socket_keepalive"]
    return merged


def descriptors(link: AsyncLink) -> Iterable[int]:
    """Return the descriptor of a link's socket, if it is open."""
    writer = link._writer  # pyright: ignore[reportPrivateUsage]
    return [] if writer is None else [writer.get_extra_info("socket").fileno()]


def abort(link: AsyncLink) -> None:
    """Close a link's socket while a reader waits, which then fails."""
    writer = link._writer  # pyright: ignore[reportPrivateUsage]
    if writer is not None:
        writer.transport.abort()


def is_cut(link: AsyncLink) -> bool:
    """Return whether an open link is of no use: it was aborted, or the server has closed it."""
    reader, writer = link._reader, link._writer  # pyright: ignore[reportPrivateUsage]
    return reader is not None and writer is not None and (reader.at_eof() or writer.transport.is_closing())
