"""The sender of programs without an event loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, TypeVar

from evsched.errors import EvschedError, StoreDown
from evsched.transport.address import Host
from evsched.transport.call import Call, T, Word
from evsched.transport.connection import SyncConnection
from evsched.transport.redis_errors import MOVED, unknown_script
from evsched.transport.replies import value_or_error
from evsched.transport.topology import topology

W = TypeVar("W")

_IDLE_MOST: Final = 32
"""Connections that a `SyncSender` keeps open for later calls: as many as a busy web process has threads."""


class SyncSender:
    """Sends calls from a program without an event loop. Any number of threads may share it, and it survives a fork.

    Each call has a connection to itself, so a call that waits in Redis holds up no other, and there are at most as many
    connections as calls at the same time. No lock is held: a child that is forked meanwhile would never get it.
    """

    def __init__(self, url: str, *, reply_timeout: float = 5.0) -> None:
        self._url = url
        self._reply_timeout = reply_timeout
        self._cluster = topology(url)
        self._idle: defaultdict[tuple[Host | None, float], list[SyncConnection]] = defaultdict(list)
        """Free connections, by the node of a cluster and their time limit. The one that was used last is used next, so
        that as few as possible are in use."""

    def send(self, call: Call[T], block: float = 0.0, limit: float | None = None) -> T:
        """Send one call, which may wait in Redis for `block` seconds. Raises as `BatchingSender.send` does.

        `limit`: seconds to wait for the reply, if it is not the sender's own `reply_timeout`.
        """
        limit = self._reply_timeout if limit is None else limit
        if self._cluster is None:
            return self._send(call, block, limit, None)
        try:
            return self._send(call, block, limit, call.node or self._cluster.owner_sync(call.near))
        except StoreDown as error:
            if error.kind != MOVED:
                raise
        return self._send(call, block, limit, call.node or self._cluster.owner_sync(call.near))

    def send_and_wait(self, call: Call[T], wait: Call[W]) -> tuple[T, W | EvschedError]:
        """Send a call and, on the same connection, one that waits for its write; an error of the second is returned.

        Raises as `send` does.
        """
        host = None if self._cluster is None else call.node or self._cluster.owner_sync(call.near)
        value, waited = self._send_all([call, wait], 0.0, self._reply_timeout, host)
        if isinstance(value, EvschedError):
            raise value
        return value, waited

    def _send(self, call: Call[T], block: float, limit: float, host: Host | None) -> T:
        (value,) = self._send_all([call], block, limit, host)
        if isinstance(value, EvschedError):
            raise value
        return value

    def _send_all(self, calls: Sequence[Call[Any]], block: float, limit: float, host: Host | None) -> list[Any]:
        """Send calls on one connection, one after the other; return their values, errors in the place of values."""
        all_idle = self._idle
        idle = all_idle[host, limit]
        try:
            connection = idle.pop()  # atomic, as is append
        except IndexError:
            connection = SyncConnection(self._url, limit, host)
        replies = list[Any]()
        try:
            for call in calls:
                reply = connection.exchange(call.by_sha(), block)
                if unknown_script(reply):
                    reply = connection.exchange(call.by_source(), block)
                replies.append(reply)
        finally:
            if all_idle is self._idle and len(idle) < _IDLE_MOST:
                idle.append(connection)
            else:
                connection.close()
        return [value_or_error(call, reply) for call, reply in zip(calls, replies, strict=True)]

    def nodes(self) -> list[Host | None]:
        """Return the nodes, as `BatchingSender.nodes`."""
        return [None] if self._cluster is None else [*self._cluster.primaries_sync()]

    def node_of(self, key: Word) -> Host | None:
        """Return the one of these nodes that has a key."""
        return None if self._cluster is None else self._cluster.owner_sync(key)

    def close(self) -> None:
        """Close the connections; those in use close after their call. A later call opens a new one."""
        all_idle, self._idle = self._idle, defaultdict(list)
        for connection in chain.from_iterable(all_idle.values()):
            connection.close()
