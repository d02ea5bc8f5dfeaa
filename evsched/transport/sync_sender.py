"""The sender of programs without an event loop."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import Final

from evsched.errors import StoreDown
from evsched.transport.address import Host
from evsched.transport.call import Call, T
from evsched.transport.connection import SyncConnection
from evsched.transport.redis_errors import MOVED, unknown_script
from evsched.transport.replies import read_reply
from evsched.transport.topology import topology

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
        self._idle: defaultdict[Host | None, list[SyncConnection]] = defaultdict(list)
        """Free connections, by the node of a cluster. The one that was used last is used next, so that as few as
        possible are in use."""

    def send(self, call: Call[T], block: float = 0.0) -> T:
        """Send one call, which may wait in Redis for `block` seconds. Raises as `BatchingSender.send` does."""
        if self._cluster is None:
            return self._send(call, block, None)
        try:
            return self._send(call, block, call.node or self._cluster.owner_sync(call.near))
        except StoreDown as error:
            if error.kind != MOVED:
                raise
        return self._send(call, block, call.node or self._cluster.owner_sync(call.near))

    def _send(self, call: Call[T], block: float, host: Host | None) -> T:
        all_idle = self._idle
        idle = all_idle[host]
        try:
            connection = idle.pop()  # atomic, as is append
        except IndexError:
            connection = SyncConnection(self._url, self._reply_timeout, host)
        try:
            reply = connection.exchange(call.by_sha(), block)
            if unknown_script(reply):
                reply = connection.exchange(call.by_source(), block)
        finally:
            if all_idle is self._idle and len(idle) < _IDLE_MOST:
                idle.append(connection)
            else:
                connection.close()
        return read_reply(call, reply)

    def nodes(self) -> list[Host | None]:
        """Return the nodes, as `BatchingSender.nodes`."""
        return [None] if self._cluster is None else [*self._cluster.primaries_sync()]

    def close(self) -> None:
        """Close the connections; those in use close after their call. A later call opens a new one."""
        all_idle, self._idle = self._idle, defaultdict(list)
        for connection in chain.from_iterable(all_idle.values()):
            connection.close()
