"""The connections: the only code that opens sockets to Redis and uses redis-py. Every option is explicit.

`Connection` is for programs with an event loop, `SyncConnection` for those without; `Subscription` receives messages.
None of them retries: after an error the connection is closed, and the next use opens a new one. (redis-py's own retries
silently sent a BLMOVE twice.) `senders.py` sends calls over them.
"""

from __future__ import annotations

import asyncio
import os
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
from evsched.errors import EvschedError, JobExists, JobMissing, JobRunning, StoreDown, StoreRefused
from evsched.transport.address import parse
from evsched.transport.call import Call, Word

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

_JOB_ERRORS: Final = {"EXISTS": JobExists, "MISSING": JobMissing, "RUNNING": JobRunning}
"""The codes of fail() in the scripts."""

_WAIT_ERRORS: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.OutOfMemoryError,
    OSError,
)
_CLUSTER_ERRORS: Final = (
    exceptions.AskError,  # MOVED too
    exceptions.ClusterCrossSlotError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
)
"""redis-py removes the code from the message of these: only a slot and an address are left of MOVED."""

NO_CLUSTER: Final = (
    "this is a node of a Redis Cluster, which evsched does not support yet: use a Redis that is not a cluster"
)

_WAIT_CODES: Final = ("UNBLOCKED", "NOREPLICAS", "MISCONF", "BUSY", "NOTBUSY", "UNKILLABLE", "OOM", "READONLY")

_KINDS: Final = (*_WAIT_CODES, "LOADING", "MASTERDOWN", "CLUSTERDOWN", "NOPERM", "NOAUTH", "WRONGPASS", "WRONGTYPE")
"""The codes that metrics may use as a label: the text of a script's error could begin with any word."""

_CLASSES: Final = {
    exceptions.NoPermissionError: "noperm",
    exceptions.AuthenticationError: "noauth",
    exceptions.BusyLoadingError: "loading",
    exceptions.ReadOnlyError: "readonly",
    exceptions.OutOfMemoryError: "oom",
    exceptions.MasterDownError: "masterdown",
    exceptions.ClusterDownError: "clusterdown",
    exceptions.TimeoutError: "timeout",
}

_UNKNOWN_CA: Final = ("self-signed certificate", "unable to get local issuer certificate")
"""OpenSSL's messages about a certificate whose CA it does not know."""

_WRONG_TYPE: Final = "WRONGTYPE a key has the wrong type: `evsched doctor` names it, and says what to do"

_UNAUTHENTICATED: Final = "NOAUTH Redis asks for a password: put it into the URL, redis://USER:PASSWORD@HOST:PORT/DB"

_NO_DATABASE: Final = (
    "the URL names a database that Redis does not have: its setting `databases` says how many there are"
)

_FULL: Final = "OOM Redis's memory is full: raise `maxmemory`; jobs that are already there continue, which frees memory"

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


def _new(url: str) -> async_redis.AbstractConnection:
    scheme, options = _options(url, retry=AsyncRetry(NoBackoff(), 0))
    return _ASYNC[scheme](**options)


def _descriptors(connection: async_redis.AbstractConnection) -> Iterable[int]:
    writer = connection._writer  # pyright: ignore[reportPrivateUsage]
    return [] if writer is None else [writer.get_extra_info("socket").fileno()]


def translate(error: Exception, call: Call[Any] | None = None) -> EvschedError:
    """Return our error for one of redis-py's; its message begins with the call that failed."""
    what = "Redis" if call is None else call.name
    message = str(error) or type(error).__name__
    if any(words in message for words in _UNKNOWN_CA):
        message += "; name the file of its CA in the URL: rediss://...?ssl_ca_certs=/PATH"
    if "unauthenticated" in message:
        message = _UNAUTHENTICATED  # Redis closes at once on a command of many words, or a long one
    elif "DB index is out of range" in message:
        return StoreRefused(f"{what}: {_NO_DATABASE}", kind="database")
    code, _, rest = message.partition(" ")
    if code == "WRONGTYPE":
        # The messages of our scripts name the key, Redis's own do not. Both end with the line of the script.
        message = message.partition(" script: ")[0] if "evsched:" in message else _WRONG_TYPE
    elif code == "OOM" or isinstance(error, exceptions.OutOfMemoryError):
        message = _FULL
    if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError):
        return StoreRefused(f"{what}: {message}", kind=_kind(error, code))
    if isinstance(error, _CLUSTER_ERRORS) or code == "CROSSSLOT" or "cluster mode" in message:
        return StoreRefused(f"{what}: {NO_CLUSTER} ({type(error).__name__}: {message})", kind=_kind(error, code))
    if isinstance(error, _WAIT_ERRORS) or code in _WAIT_CODES:
        return StoreDown(f"{what}: {message}", kind=_kind(error, code))
    if code in _JOB_ERRORS:
        return _JOB_ERRORS[code](rest)
    return StoreRefused(f"{what}: {message}", kind=_kind(error, code))


def _kind(error: Exception, code: str) -> str:
    """Return the kind of an error. redis-py removes the code of some errors; then their class decides."""
    if code in _KINDS:
        return code.lower()
    for kind, name in _CLASSES.items():
        if isinstance(error, kind):
            return name
    return "refused" if isinstance(error, exceptions.ResponseError) else "connection"


def unknown_script(reply: Any) -> bool:
    """Return whether a reply says that Redis does not know the script's SHA."""
    return isinstance(reply, exceptions.NoScriptError)


class Connection:
    """One connection. `exchange` is for one caller at a time."""

    def __init__(self, url: str) -> None:
        self._connection = _new(url)
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

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()


class Subscription:
    """A connection subscribed to patterns and channels. It waits without a limit; its user checks its health."""

    def __init__(self, url: str) -> None:
        self._connection = _new(url)
        forks.hold(self)

    def descriptors(self) -> Iterable[int]:
        """Return the descriptor of its socket: a forked child that held it would keep the connection open."""
        return _descriptors(self._connection)

    async def open(self, patterns: Sequence[str], channels: Sequence[str]) -> None:
        """Connect and subscribe; returns when Redis has confirmed every subscription.

        Raises:
            StoreDown, StoreRefused
        """
        link = self._connection
        try:
            async with asyncio.timeout(2 * _CONNECT):
                await link.connect()
                for command, names in (("PSUBSCRIBE", patterns), ("SUBSCRIBE", channels)):
                    if names:
                        await link.send_command(command, *names, check_health=False)
                for _ in (*patterns, *channels):
                    await link.read_response()
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
        while True:
            try:
                message = cast(Any, await self._connection.read_response())
            except (exceptions.RedisError, OSError) as error:
                await self.close()
                raise translate(error) from None
            yield message[-2], message[-1]
            received += 1
            if received % 64 == 0:
                # Messages in the parser's buffer are read without a pause: let other tasks of the loop run.
                await asyncio.sleep(0)

    def cut(self) -> None:
        """Close the socket while a reader waits, which then raises StoreDown."""
        writer = self._connection._writer  # pyright: ignore[reportPrivateUsage]
        if writer is not None:
            writer.transport.abort()

    async def close(self) -> None:
        """Close the connection, without waiting for anything."""
        await self._connection.disconnect(nowait=True)
