"""The connections: the only code that opens sockets to Redis. Every option of redis-py is explicit.

`Connection` is for programs with an event loop, `SyncConnection` for those without; `Subscription` receives messages.
None of them retries: after an error the connection is closed, and the next use opens a new one. (redis-py's own retries
silently sent a BLMOVE twice.) `senders.py` sends calls over them.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final, cast

import redis.asyncio.connection as async_redis
import redis.connection as sync_redis
from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType]
from redis import exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry as SyncRetry

from evsched import forks
from evsched.errors import StoreDown
from evsched.transport.address import parse
from evsched.transport.call import Word
from evsched.transport.redis_errors import translate
from evsched.transport.short_replies import ShortReplies

_CONNECT: Final = 2.0
"""Seconds to open a connection: longer than the retry of one lost SYN (1 s), shorter than a lease."""

_OPTIONS: Final[dict[str, Any]] = {
    "protocol": 2,
    "decode_responses": False,  # one member that is not UTF-8 would break the connection
    "socket_timeout": None,  # each exchange has its own timeout, below
    "socket_connect_timeout": _CONNECT,
    "socket_keepalive": True,
    "health_check_interval": 0,
    "driver_info": None,  # CLIENT SETINFO is an error on Redis 7.0
}

# hiredis's type annotations allow a single word only.
_pack = cast(Callable[[tuple[Word, ...]], bytes], pack_command)


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


def _options(url: str, **own: Any) -> tuple[str, dict[str, Any]]:
    """Return the URL's scheme, and the options for redis-py; those in `own` override."""
    address = parse(url)
    merged: dict[str, Any] = {**address.options, "db": address.db, **_OPTIONS, **own}
    if address.scheme == "unix":
        del merged["socket_keepalive"]
    return address.scheme, merged


def _new(url: str, **own: Any) -> async_redis.AbstractConnection:
    scheme, options = _options(url, retry=AsyncRetry(NoBackoff(), 0), **own)
    return _ASYNC[scheme](**options)


def _descriptors(connection: async_redis.AbstractConnection) -> Iterable[int]:
    writer = connection._writer  # pyright: ignore[reportPrivateUsage]
    return [] if writer is None else [writer.get_extra_info("socket").fileno()]


_MESSAGES: Final = (b"pmessage", b"message")
"""What the messages to a subscriber begin with. Those that begin otherwise confirm a subscription, or its end."""


def _ignore() -> None:
    pass


class Connection:
    """One connection. `exchange` is for one caller at a time. `short_replies`: a reply that is long is an error."""

    def __init__(self, url: str, *, short_replies: bool = False) -> None:
        self._connection = _new(url, parser_class=ShortReplies) if short_replies else _new(url)
        forks.hold(self)

    def descriptors(self) -> Iterable[int]:
        """Return the descriptor of its socket: a forked child that held it would keep the connection open."""
        return _descriptors(self._connection)

    async def exchange(self, commands: Sequence[tuple[Word, ...]], reply_timeout: float) -> list[Any]:
        """Send commands, and return their replies; an error reply is returned as an exception.

        Raises:
            StoreDown: no connection, or no reply within `reply_timeout` seconds; the commands may have been done.
            StoreRefused: the password, user or database is wrong.
        """
        link = self._connection
        try:
            if not link.is_connected:
                async with asyncio.timeout(_CONNECT + reply_timeout):
                    await link.connect()
            async with asyncio.timeout(reply_timeout):
                # hiredis packs in C; redis-py packs in Python, which takes 0.8 us a word.
                await link.send_packed_command([_pack(words) for words in commands], check_health=False)
                replies = [await self._reply() for _ in commands]
            if any(isinstance(reply, exceptions.ReadOnlyError) for reply in replies):
                await self.close()  # it is a replica now: the name may resolve to another host
            return replies
        except TimeoutError:
            await self.close()
            raise StoreDown(f"Redis gave no answer within {reply_timeout:g} s", kind="timeout") from None
        except (exceptions.RedisError, OSError) as error:
            await self.close()
            raise translate(error) from None
        except BaseException:
            # A reply that is still on its way must not be read as the reply to the next command.
            await self.close()
            raise

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

    def __init__(self, url: str, reply_timeout: float) -> None:
        scheme, options = _options(url, socket_timeout=reply_timeout, retry=SyncRetry(NoBackoff(), 0))
        self._reply_timeout = reply_timeout
        self._connection: Any = _SYNC[scheme](**options)
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
        try:
            link.connect()
            link.send_command(*words, check_health=False)
            return link.read_response(timeout=block + self._reply_timeout) if block else link.read_response()
        except (exceptions.BusyLoadingError, exceptions.AuthenticationError) as error:
            link.disconnect()
            raise translate(error) from None
        except exceptions.ResponseError as error:
            return error
        except (exceptions.RedisError, OSError) as error:
            link.disconnect()
            raise translate(error) from None
        except BaseException:
            # Ctrl-C: a reply that is still on its way must not be read as the reply to the next command.
            link.disconnect()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()


class Subscription:
    """A connection subscribed to patterns and channels. It waits without a limit: its user must test that it lives."""

    def __init__(self, url: str) -> None:
        self._connection = _new(url)
        self._confirmations: deque[Callable[[], None]] = deque()
        """What to call at each confirmation that is still to arrive."""
        self.rest = 0.0
        """Seconds to wait before each read, so that one read receives more messages."""
        forks.hold(self)

    def descriptors(self) -> Iterable[int]:
        """Return the descriptor of its socket: a forked child that held it would keep the connection open."""
        return _descriptors(self._connection)

    async def open(self, patterns: Sequence[str], channels: Sequence[str]) -> None:
        """Connect and subscribe; returns when Redis has confirmed every subscription.

        Messages that come before the last confirmation are dropped: the user looks at Redis when this returns.

        Raises:
            StoreDown, StoreRefused
        """
        link, left = self._connection, len(patterns) + len(channels)
        try:
            async with asyncio.timeout(2 * _CONNECT):
                await link.connect()
                for command, names in (("PSUBSCRIBE", patterns), ("SUBSCRIBE", channels)):
                    if names:
                        await link.send_command(command, *names, check_health=False)
                while left:
                    message = cast(list[Any], await link.read_response())
                    left -= message[0] not in _MESSAGES
        except TimeoutError:
            await self.close()
            raise StoreDown(f"no subscription within {2 * _CONNECT:g} s", kind="timeout") from None
        except (exceptions.RedisError, OSError) as error:
            await self.close()
            raise translate(error) from None

    async def messages(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield (channel, message) until the connection is closed.

        Raises:
            StoreDown: when the connection is closed.
        """
        received = 0
        async for message in self._received():
            if message[0] in _MESSAGES:
                yield message[-2], message[-1]
            else:
                self._confirmations.popleft()()
            received += 1
            if received % 64 == 0:
                # Messages in the parser's buffer are read without a pause: let other tasks of the loop run.
                await asyncio.sleep(0)

    async def _received(self) -> AsyncIterator[list[Any]]:
        """Yield messages and confirmations until the connection is closed."""
        link = self._connection
        # What was received with a message comes from the parser: redis-py does much more for each message.
        parser = cast(Any, link)._parser._reader
        try:
            while True:
                if self.rest:
                    await asyncio.sleep(self.rest)
                message = cast(Any, await link.read_response())
                while isinstance(message, list):
                    yield cast(list[Any], message)
                    message = parser.gets()
                if isinstance(message, Exception):
                    raise message
        except (exceptions.RedisError, OSError) as error:
            await self.close()
            raise translate(error) from None

    def subscribe(self, patterns: Sequence[str], channels: Sequence[str], confirmed: Callable[[], None]) -> None:
        """Subscribe to more. `messages` calls `confirmed()` when Redis has confirmed all: later messages arrive."""
        self._change((("PSUBSCRIBE", *patterns), ("SUBSCRIBE", *channels)), confirmed)

    def unsubscribe(self, patterns: Sequence[str], channels: Sequence[str], confirmed: Callable[[], None]) -> None:
        """End some subscriptions. `messages` calls `confirmed()` after the last message that was on its way."""
        self._change((("PUNSUBSCRIBE", *patterns), ("UNSUBSCRIBE", *channels)), confirmed)

    def _change(self, commands: Sequence[tuple[str, ...]], confirmed: Callable[[], None]) -> None:
        """Send commands of a verb and names, except those without names; Redis confirms each name."""
        writer = cast(Any, self._connection)._writer
        if writer is None:
            return  # the reader notices that the connection is closed
        for words in commands:
            if len(words) > 1:
                writer.write(_pack(words))
                self._confirmations.extend([_ignore] * (len(words) - 1))
        self._confirmations[-1] = confirmed

    def cut(self) -> None:
        """Close the socket while a reader waits, which then raises StoreDown."""
        writer = self._connection._writer  # pyright: ignore[reportPrivateUsage]
        if writer is not None:
            writer.transport.abort()

    async def close(self) -> None:
        """Close the connection, without waiting for anything."""
        await self._connection.disconnect(nowait=True)
