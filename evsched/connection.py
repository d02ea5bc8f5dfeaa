"""The senders: the only code that opens sockets to Redis. Every option is explicit.

`Commands` sends the calls of one loop turn in one batch over one connection; `Blocking` is a connection for one
command that waits; `Subscription` hears messages; `SyncCommands` serves programs without an event loop.

No sender tries again: an error says that the connection is gone and is rebuilt at the next use. Whether to repeat is
the caller's to say, who knows what a repetition does. (redis-py's own retries sent a BLMOVE twice in silence.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, NoReturn, cast

import redis.asyncio.connection as async_redis
import redis.connection as sync_redis
from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType]
from redis import exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry as SyncRetry

from evsched.call import Call, T, Word
from evsched.errors import (
    ConfigError,
    EvschedError,
    JobExists,
    JobMissing,
    JobRunning,
    StoreDown,
    StoreRefused,
)

_CONNECT: Final = 2.0
"""Seconds to open a connection: longer than one lost SYN (1 s), shorter than the patience of a lease."""

_OPTIONS: Final[dict[str, Any]] = {
    "protocol": 2,
    "decode_responses": False,  # one member that is not UTF-8 would break the connection forever
    "socket_timeout": None,  # each exchange has its own deadline, below
    "socket_connect_timeout": _CONNECT,
    "socket_keepalive": True,
    "health_check_interval": 0,
    "driver_info": None,  # CLIENT SETINFO is an error on Redis 7.0
}

_JOB_ERRORS: Final = {"EXISTS": JobExists, "MISSING": JobMissing, "RUNNING": JobRunning}
"""The codes that a script's fail() may give."""

_WAIT_ERRORS: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.BusyLoadingError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.OutOfMemoryError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
    OSError,
)
_WAIT_CODES: Final = ("UNBLOCKED", "NOREPLICAS", "MISCONF", "BUSY", "NOTBUSY", "UNKILLABLE", "OOM", "READONLY")

# hiredis's own types allow for one word only.
_pack = cast(Callable[[tuple[Word, ...]], bytes], pack_command)


def _parse(url: str) -> dict[str, Any]:
    try:
        options = dict(async_redis.parse_url(url))
    except ValueError as error:
        raise ConfigError(
            f"URL {hide_password(url)!r}: {error}. Write redis://HOST:PORT/DB, rediss://... for TLS, "
            "or unix:///PATH?db=DB"
        ) from None
    return options


def hide_password(url: str) -> str:
    """Return the URL as it may be shown: without its password."""
    before, at, host = url.rpartition("@")
    scheme, slashes, user = before.partition("://")
    return f"{scheme}{slashes}{user.partition(':')[0]}:***@{host}" if at and ":" in user else url


def database(url: str) -> int:
    """Return the number of the database that the URL names."""
    return int(_parse(url).get("db") or 0)


def _new(url: str) -> async_redis.AbstractConnection:
    options = _parse(url)
    kind = options.pop("connection_class", async_redis.Connection)
    if kind is async_redis.UnixDomainSocketConnection:
        own = {name: value for name, value in _OPTIONS.items() if name != "socket_keepalive"}
    else:
        own = _OPTIONS
    merged: dict[str, Any] = {**options, **own, "retry": AsyncRetry(NoBackoff(), 0)}
    return kind(**merged)


def _translate(error: Exception, call: Call[Any] | None = None) -> EvschedError:
    """Return our error for one of redis-py's, with what failed in front."""
    what = "Redis" if call is None else f"{call.script.name if call.script else call.words[0]}"
    message = str(error) or type(error).__name__
    code, _, rest = message.partition(" ")
    if isinstance(error, exceptions.AuthenticationError | exceptions.NoPermissionError):
        return StoreRefused(f"{what}: {message}")
    if isinstance(error, _WAIT_ERRORS) or code in _WAIT_CODES:
        return StoreDown(f"{what}: {message}")
    if code in _JOB_ERRORS:
        return _JOB_ERRORS[code](rest)
    return StoreRefused(f"{what}: {message}")


def _raise(error: EvschedError) -> NoReturn:
    raise error


class Link:
    """One connection. `exchange` is for one caller at a time."""

    def __init__(self, url: str) -> None:
        self._connection = _new(url)

    async def exchange(self, commands: Sequence[tuple[Word, ...]], deadline: float) -> list[Any]:
        """Send commands, return their replies; an error reply stands in the list as an exception.

        Raises:
            StoreDown: no connection, or no answer within `deadline` seconds; what was sent may have been done.
            StoreRefused: the password, user or database is wrong.
        """
        link = self._connection
        try:
            if not link.is_connected:
                async with asyncio.timeout(_CONNECT + deadline):
                    await link.connect()
            async with asyncio.timeout(deadline):
                # redis-py packs in Python, at 0.8 us a word; hiredis in C.
                await link.send_packed_command([_pack(words) for words in commands], check_health=False)
                replies = [await self._reply() for _ in commands]
            if any(isinstance(reply, exceptions.ReadOnlyError) for reply in replies):
                await self.close()  # it is a replica now: who is asked next may be another host of the same name
            return replies
        except TimeoutError:
            await self.close()
            raise StoreDown(f"no answer within {deadline:g} s") from None
        except (exceptions.RedisError, OSError) as error:
            await self.close()
            raise _translate(error) from None
        except BaseException:
            # A reply that is still on its way must not be taken for that to the next command.
            await self.close()
            raise

    async def _reply(self) -> Any:
        try:
            return cast(Any, await self._connection.read_response())
        except exceptions.ConnectionError as error:
            # LOADING and NOAUTH are replies too, but redis-py calls them connection errors.
            if isinstance(error, exceptions.BusyLoadingError | exceptions.AuthenticationError):
                return error
            raise
        except exceptions.ResponseError as error:
            return error

    async def close(self) -> None:
        """Cut the connection, without waiting for anything."""
        await self._connection.disconnect(nowait=True)


def _read(call: Call[T], reply: Any) -> T:
    if isinstance(reply, Exception):
        raise _translate(reply, call)
    return call.read(reply)


async def _deliver(link: Link, calls: Sequence[Call[Any]], deadline: float) -> list[Any]:
    """Send calls in one batch; return their values, an error that one of them met standing in its place.

    Raises:
        StoreDown, StoreRefused: the whole batch failed.
    """
    replies = await link.exchange([call.by_sha() for call in calls], deadline)
    unknown = [i for i, reply in enumerate(replies) if isinstance(reply, exceptions.NoScriptError)]
    if unknown:
        again = await link.exchange([calls[i].by_source() for i in unknown], deadline)
        for i, reply in zip(unknown, again, strict=True):
            replies[i] = reply
    return [
        _translate(reply, call) if isinstance(reply, Exception) else call.read(reply)
        for call, reply in zip(calls, replies, strict=True)
    ]


class Direct:
    """A connection for one caller at a time, whose calls go at once."""

    def __init__(self, url: str, *, deadline: float = 5.0) -> None:
        self._link = Link(url)
        self._deadline = deadline

    async def attempt_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send calls together; an error that one of them met stands in its place.

        Raises:
            StoreDown, StoreRefused: the whole batch failed; some of it may have been done.
        """
        return await _deliver(self._link, calls, self._deadline)

    async def close(self) -> None:
        """Cut the connection. A later call opens a new one."""
        await self._link.close()


class Commands:
    """Sends calls from a program with an event loop.

    What is sent within one loop turn, and while a batch is on its way, goes in one batch: tasks that send at the same
    time share round trips.
    """

    def __init__(self, url: str, *, deadline: float = 5.0) -> None:
        self._url = url
        self._deadline = deadline
        self._link: Link | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[tuple[Call[Any], asyncio.Future[Any]]] = []
        self._sending: asyncio.Task[None] | None = None

    async def send(self, call: Call[T]) -> T:
        """Send one call.

        Raises:
            JobError: the script refused.
            StoreDown: Redis cannot do it now; it may have been done all the same.
            StoreRefused: Redis will not do it.
        """
        return await self._queue(call)

    async def send_all(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """Send calls together; the first error that any of them met is raised when all have been answered."""
        return [await answer for answer in [self._queue(call) for call in calls]]

    def _queue(self, call: Call[T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            # A program may run one event loop after another; a connection belongs to its loop.
            self._loop, self._link, self._sending, self._waiting = loop, Link(self._url), None, []
        answer: asyncio.Future[T] = loop.create_future()
        # A batch that fails may have callers that were cancelled meanwhile: nobody reads their answers.
        answer.add_done_callback(_retrieve)
        self._waiting.append((call, answer))
        if self._sending is None:
            self._sending = loop.create_task(self._send_waiting())
        return answer

    async def _send_waiting(self) -> None:
        link = self._link
        assert link is not None
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await self._send_batch(link, batch)
        finally:
            self._sending = None
            for _, answer in self._waiting:
                answer.cancel()
            self._waiting = []

    async def _send_batch(self, link: Link, batch: list[tuple[Call[Any], asyncio.Future[Any]]]) -> None:
        try:
            answers = await _deliver(link, [call for call, _ in batch], self._deadline)
        except EvschedError as error:
            failed: Any = error
            answers = [failed] * len(batch)
        except BaseException:
            for _, future in batch:
                future.cancel()
            raise
        for (_, future), answer in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(answer, EvschedError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def close(self) -> None:
        """Cut the connection. A later call opens a new one."""
        if self._sending is not None:
            self._sending.cancel()
        if self._link is not None:
            await self._link.close()
        self._loop = None


def _retrieve(answer: asyncio.Future[Any]) -> None:
    if not answer.cancelled():
        answer.exception()


class Blocking:
    """A connection for commands that wait in Redis. One caller at a time."""

    def __init__(self, url: str, *, deadline: float) -> None:
        self._link = Link(url)
        self._deadline = deadline
        self.client: int | None = None
        """The connection's number in Redis, for `store.unblock`; None when it is not open."""

    async def open(self) -> None:
        """Connect, and learn the connection's number.

        Raises:
            StoreDown, StoreRefused
        """
        call = Call(("CLIENT", "ID"), int)
        (reply,) = await self._link.exchange([call.words], self._deadline)
        self.client = _read(call, reply)

    async def send(self, call: Call[T], block: float) -> T:
        """Send a call that answers within `block` seconds. When it does not, the connection is dead.

        Raises:
            StoreDown: then Redis may have moved a job all the same; look at the list.
        """
        try:
            (reply,) = await self._link.exchange([call.words], block + self._deadline)
        except BaseException:
            self.client = None
            raise
        return _read(call, reply)

    async def close(self) -> None:
        """Cut the connection."""
        self.client = None
        await self._link.close()


class Subscription:
    """A connection that hears: patterns and channels. Waits without limit: who uses it proves that it is alive."""

    def __init__(self, url: str) -> None:
        self._connection = _new(url)

    async def open(self, patterns: Sequence[str], channels: Sequence[str]) -> None:
        """Connect and subscribe; returns when Redis has confirmed all of it.

        Raises:
            StoreDown, StoreRefused
        """
        link = self._connection
        try:
            async with asyncio.timeout(2 * _CONNECT):
                await link.connect()
                await link.send_command("PSUBSCRIBE", *patterns, check_health=False)
                await link.send_command("SUBSCRIBE", *channels, check_health=False)
                for _ in (*patterns, *channels):
                    await link.read_response()
        except TimeoutError:
            await self.close()
            raise StoreDown(f"no subscription within {2 * _CONNECT:g} s") from None
        except (exceptions.RedisError, OSError) as error:
            await self.close()
            raise _translate(error) from None

    async def messages(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield (channel, message) until the connection is cut.

        Raises:
            StoreDown: always, in the end.
        """
        heard = 0
        while True:
            try:
                message = cast(Any, await self._connection.read_response())
            except (exceptions.RedisError, OSError) as error:
                await self.close()
                raise _translate(error) from None
            yield message[-2], message[-1]
            heard += 1
            if heard % 64 == 0:
                # What lies in the parser's buffer is read without a pause: let the loop's other tasks run.
                await asyncio.sleep(0)

    def cut(self) -> None:
        """Close the socket under a reader that waits: it then raises StoreDown."""
        writer = self._connection._writer  # pyright: ignore[reportPrivateUsage]
        if writer is not None:
            writer.transport.abort()

    async def close(self) -> None:
        """Cut the connection, without waiting for anything."""
        await self._connection.disconnect(nowait=True)


class SyncCommands:
    """Sends calls from a program without an event loop. For one thread at a time."""

    def __init__(self, url: str, *, deadline: float = 5.0) -> None:
        options = _parse(url)
        kind = {
            async_redis.UnixDomainSocketConnection: sync_redis.UnixDomainSocketConnection,
            async_redis.SSLConnection: sync_redis.SSLConnection,
        }.get(options.pop("connection_class", None), sync_redis.Connection)
        own: dict[str, Any] = {**_OPTIONS, "socket_timeout": deadline, "retry": SyncRetry(NoBackoff(), 0)}
        if kind is sync_redis.UnixDomainSocketConnection:
            del own["socket_keepalive"]
        self._deadline = deadline
        self._connection: Any = kind(**{**options, **own})

    def send(self, call: Call[T], block: float = 0.0) -> T:
        """Send one call, which may wait in Redis for `block` seconds. Raises as `Commands.send` does."""
        reply = self._exchange(call.by_sha(), block)
        if isinstance(reply, exceptions.NoScriptError):
            reply = self._exchange(call.by_source(), block)
        return _read(call, reply)

    def _exchange(self, words: tuple[Word, ...], block: float) -> Any:
        link = self._connection
        try:
            link.connect()
            link.send_command(*words, check_health=False)
            return link.read_response(timeout=block + self._deadline) if block else link.read_response()
        except (exceptions.BusyLoadingError, exceptions.AuthenticationError) as error:
            link.disconnect()
            _raise(_translate(error))
        except exceptions.ResponseError as error:
            return error
        except (exceptions.RedisError, OSError) as error:
            link.disconnect()
            _raise(_translate(error))

    def close(self) -> None:
        """Cut the connection. A later call opens a new one."""
        self._connection.disconnect()
