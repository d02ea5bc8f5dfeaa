"""The connections to Redis. `Connection` is for programs with an event loop, `SyncConnection` for those without.

Neither retries: after an error the connection is closed, and the next use opens a new one. `subscription.py` receives
messages; `senders.py` sends calls.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from redis import exceptions

from evsched import forks
from evsched.errors import StoreDown
from evsched.transport.address import Host, parse
from evsched.transport.call import Word
from evsched.transport.links import descriptors, is_cut, new_link, new_sync_link, pack
from evsched.transport.redis_errors import link_error, named, translate
from evsched.transport.routes import route
from evsched.transport.short_replies import ShortReplies

_ELSEWHERE: Final = (exceptions.ReadOnlyError, exceptions.AskError, exceptions.ClusterDownError)
"""Errors that say that this server is the primary no more, or, in a cluster, not that of the key: MOVED is an AskError.
The primary has to be found again. Without Sentinel and cluster, the name may resolve to another host."""


_OPEN: Final = 20.0
"""Seconds to open a connection, with the wait for its turn: on a busy machine, a worker opens hundreds over TLS."""

_LATE: Final = 0.02
"""Seconds by which the timer of a healthy event loop is late at most."""


class _Deadline:
    """A time limit that leaves out the time for which the event loop did not run, for as long again at most.

    A busy machine, or a handler that blocks the loop, delays the reading of a reply that came in time. With a plain
    time limit all connections would count as dead at once, and opening them again would cost more than the work.
    """

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._due = self._loop.time() + seconds
        self._timer = self._loop.call_at(self._due, self._expire)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(*error)

    def _expire(self) -> None:
        late = min(self._loop.time() - self._due, self._left)
        if late < _LATE:
            self._limit.reschedule(self._loop.time())
            return
        self._left -= late
        self._due = self._loop.time() + late
        self._timer = self._loop.call_at(self._due, self._expire)


class Connection:
    """One connection. `exchange` is for one caller at a time. `short_replies`: a reply that is long is an error."""

    def __init__(
        self, url: str, *, near: Word | None = None, node: Host | None = None, short_replies: bool = False
    ) -> None:
        address, parser = parse(url), {"parser_class": ShortReplies} if short_replies else {}
        self._route = route(url, near, node)
        self._connection = new_link(address.scheme, **address.options, db=address.db, **parser)
        forks.hold(self)

    def descriptors(self) -> Iterable[int]:
        """Return the descriptor of its socket: a forked child that held it would keep the connection open."""
        return descriptors(self._connection)

    async def exchange(self, commands: Sequence[tuple[Word, ...]], reply_timeout: float) -> list[Any]:
        """Send commands, and return their replies; an error reply is returned as an exception.

        Raises:
            StoreDown: no connection, or no reply within `reply_timeout` seconds; the commands may have been done.
            StoreRefused: the password, user or database is wrong.
        """
        link, sent = self._connection, False
        try:
            if is_cut(link):
                await self.close()
            if not link.is_connected or self._route.is_due():
                async with asyncio.timeout(_OPEN + reply_timeout):
                    await self._route.connect(link)
            async with _Deadline(reply_timeout):
                sent = True
                await link.send_packed_command([pack(words) for words in commands], check_health=False)
                replies = [await self._reply() for _ in commands]
            if any(isinstance(reply, _ELSEWHERE) for reply in replies):
                await self._lost()
            return replies
        except TimeoutError:
            await self._lost()
            problem = named(f"Redis gave no answer within {reply_timeout:g} s", self._route.node)
            raise StoreDown(problem, kind="timeout", node=self._route.node, unsure=sent) from None
        except (exceptions.RedisError, OSError) as error:
            await self._lost()
            raise link_error(error, self._route.node, sent=sent) from None
        except BaseException:
            # A reply that is still on its way must not be read as the reply to the next command.
            await self.close()
            raise

    async def _lost(self) -> None:
        self._route.lost()
        await self.close()

    async def _reply(self) -> Any:
        try:
            return cast(Any, await self._connection.read_response())
        except exceptions.ConnectionError as error:
            # LOADING and NOAUTH are replies too, but redis-py raises them as connection errors.
            if isinstance(error, exceptions.BusyLoadingError | exceptions.AuthenticationError):
                return error
            raise
        except exceptions.ResponseError as error:
            return error

    async def close(self) -> None:
        """Close the connection, without waiting for anything."""
        await self._connection.disconnect(nowait=True)


class SyncConnection:
    """One connection of a program without an event loop. For one thread at a time."""

    def __init__(self, url: str, reply_timeout: float, node: Host | None = None) -> None:
        address = parse(url)
        self._route = route(url, node=node)
        self._reply_timeout = reply_timeout
        self._connection: Any = new_sync_link(
            address.scheme, **address.options, db=address.db, socket_timeout=reply_timeout
        )
        self._process = os.getpid()
        forks.hold(self)

    def descriptors(self) -> Iterable[int]:
        """Return the descriptor of its socket: a forked child that held it would keep the connection open."""
        link = self._connection._sock
        return [] if link is None else [link.fileno()]

    def exchange(self, words: tuple[Word, ...], block: float) -> Any:
        """Send one command, which may wait in Redis for `block` seconds; return its reply, an error as an exception.

        Raises:
            StoreDown, StoreRefused: as `Connection.exchange`.
        """
        link = self._connection
        if self._process != os.getpid():  # this is a forked child, and the connection its parent's
            link.disconnect()
            self._process = os.getpid()
        sent = False
        try:
            self._route.connect_sync(link)
            sent = True
            link.send_command(*words, check_health=False)
            return link.read_response(timeout=block + self._reply_timeout) if block else link.read_response()
        except (exceptions.BusyLoadingError, exceptions.AuthenticationError) as error:
            link.disconnect()
            raise translate(error) from None
        except exceptions.ResponseError as error:
            if isinstance(error, _ELSEWHERE):
                self._route.lost()
                link.disconnect()
            return error
        except (exceptions.RedisError, OSError) as error:
            self._route.lost()
            link.disconnect()
            raise link_error(error, self._route.node, sent=sent) from None
        except BaseException:
            # Ctrl-C: a reply that is still on its way must not be read as the reply to the next command.
            link.disconnect()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()
