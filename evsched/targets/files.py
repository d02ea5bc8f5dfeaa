"""The files of a worker: each connection takes one, and the system allows a process so many at a time.

Requests to many hosts leave many idle connections. So no more than half of the files are taken before the connection
that has been idle for the longest time is closed. The other half is for Redis, the lookup of names, and requests.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from evsched.jobs.steering import RetryLater
from evsched.targets.connection import Connection
from evsched.transport.backoff import reconnect_delay

_ENOUGH: Final = 65_536
"""Files. Some systems allow a thousand million; what closes all files that there may be would then take minutes."""

_TRIES: Final = 10
"""How often a connection is opened in one attempt while the system allows no more files: 3.5 s in all, or less by the
half of the pauses that is random."""


class OutOfFiles(RetryLater):
    """The system allows no more files."""


def raise_limit() -> None:
    """Raise the limit of this process to what the system allows without asking.

    The lower one, 1024 on most systems, is for programs that use select(2). evsched uses epoll and poll.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS names a limit that it does not allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _allowed() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else soft


class Files:
    """The connections of one worker, as far as they take files."""

    def __init__(self) -> None:
        self._most = _allowed() // 2
        self._connecting = 0
        self._open = set[Connection]()
        self._idle = dict[Connection, None]()
        """The one that has been idle for the longest time is the first one."""

    async def open(self, connect: Callable[[], Awaitable[Connection]]) -> Connection:
        """Open a connection; close an idle one if there are many.

        Raises:
            RetryLater: as `connect` does, or there is no file for it.
        """
        failures = 0
        while True:
            if len(self._open) + self._connecting >= self._most:
                self._close_idle(1)
            self._connecting += 1
            try:
                connection = await connect()
            except OutOfFiles:
                failures += 1
                if failures == _TRIES:
                    raise
                self._close_idle(len(self._idle))
            else:
                self._open.add(connection)
                return connection
            finally:
                self._connecting -= 1
            await asyncio.sleep(reconnect_delay(failures - 1))

    def note(self, connection: Connection) -> None:
        """Take note that a request on a connection has ended, or that it has."""
        self._idle.pop(connection, None)
        if connection.ended.is_set():
            self._open.discard(connection)
        elif not connection.gone and not connection.running:
            self._idle[connection] = None

    def _close_idle(self, count: int) -> None:
        while count and self._idle:
            connection = next(iter(self._idle))
            del self._idle[connection]
            if not connection.running:  # a request has begun on it meanwhile
                connection.abort()
                count -= 1
