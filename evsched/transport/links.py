"""Links: the connections of redis-py, with every option explicit. None of them retries.

(redis-py's own retries silently sent a BLMOVE twice.)

A process may have hundreds of links, and loses many of them at once. If each of them acted alone, they would compete
for the CPU until all of them time out, and then begin again together. So callers that want the same thing at the same
time share one attempt to get it (`SingleFlight`), TLS contexts are shared, few links are opened to a server at a time,
and a server that cannot be reached is tried by one link at a time. `OpenLinks` knows the links by their server, to cut
them when another server takes its place: a server that hangs would hold its links until they time out.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any, Final, Generic, Literal, TypeVar, cast
from weakref import WeakKeyDictionary, ref

import redis.asyncio.connection as async_redis
import redis.connection as sync_redis
from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType]
from redis import exceptions
from redis._parsers import _AsyncHiredisParser  # pyright: ignore[reportPrivateUsage]
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry as SyncRetry

from evsched.transport.address import Host
from evsched.transport.call import Word

T = TypeVar("T")


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that blocks its thread where it has to wait, so it ends when it is started: no loop is needed."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a coroutine of a program without an event loop waited for one")


class _Flight(Future[T]):
    """The result of an attempt. `began`: how often `outdate` had been called when it began; before that, infinite."""

    began: float = math.inf


class SingleFlight(Generic[T]):
    """One attempt at a time in a process, for all its threads, with and without event loops.

    Attempts run in a thread of their own: a handler that blocks the worker's loop must not hold up the heartbeat.
    `pace`: the least and the most seconds from the beginning of one attempt to that of the next. They double with each
    attempt, until `hurry` is called or there was no attempt for a while.
    """

    def __init__(self, pace: tuple[float, float] = (0.0, 0.0)) -> None:
        self._least, self._most = pace
        self._pace = self._least
        self._next = 0.0
        """When the next attempt may begin, by the monotonic clock."""
        self.outdates = 0
        """How often `outdate` was called."""
        self._flights: dict[int, _Flight[T]] = {}
        """By process: a forked child must not wait for a thread that it does not have."""

    def outdate(self) -> int:
        """Have later callers share no attempt that has begun before; return how often this was called."""
        self.outdates += 1
        return self.outdates

    def hurry(self) -> None:
        """Note that an attempt brought news, so that the next one may follow soon."""
        self._pace = self._least
        self._next = min(self._next, time.monotonic() + self._least)

    async def run(self, attempt: Callable[[], Awaitable[T]], *, blocking: bool = False) -> T:
        """Return the value of an attempt, or raise its error. It goes on if this caller is cancelled.

        `blocking`: wait for it without an event loop.
        """
        least, process = self.outdates, os.getpid()
        while True:
            mine = _Flight[T]()
            flight = self._flights.setdefault(process, mine)  # atomic: no lock, so forks are safe
            if flight is mine:
                asyncio.run_coroutine_threadsafe(self._attempt(mine, attempt), _loop_of_attempts(process))
            if blocking:
                wait([flight])
            else:
                await _ended(flight)
            if flight.began >= least:
                return flight.result()

    async def _attempt(self, flight: _Flight[T], attempt: Callable[[], Awaitable[T]]) -> None:
        try:
            await asyncio.sleep(self._turn())
            flight.began = self.outdates
            value = await attempt()
        except Exception as error:  # noqa: BLE001 - its callers raise it
            del self._flights[os.getpid()]
            flight.set_exception(error)
        else:
            del self._flights[os.getpid()]
            flight.set_result(value)

    def _turn(self) -> float:
        """Return the seconds until the next attempt may begin."""
        now = time.monotonic()
        if now > self._next + self._most:
            self._pace = self._least
        begin = max(now, self._next)
        self._next = begin + random.uniform(self._pace / 2, self._pace)  # noqa: S311 - no secret
        self._pace = min(2 * self._pace, self._most)
        return begin - now


@cache
def _loop_of_attempts(process: int) -> asyncio.AbstractEventLoop:
    """Return the event loop in which a process makes its attempts, in a daemon thread."""
    loop = asyncio.new_event_loop()
    Thread(target=loop.run_forever, name=f"evsched-lookups-{process}", daemon=True).start()
    return loop


async def _ended(future: Future[Any]) -> None:
    """Wait for a future of another thread. `asyncio.wrap_future` would cancel it together with this caller."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(ended.set)

    future.add_done_callback(wake)
    await ended.wait()


CONNECT: Final = 2.0
"""Seconds to open a connection: longer than the retry of one lost SYN (1 s), shorter than a lease."""

_AT_ONCE: Final = 8
"""Links that one event loop opens to a server at the same time. If a busy machine opens hundreds together, each takes
so long that all time out. With 80 ms of network and TLS, 8 at a time are about 25 a second."""

_UNREACHABLE: Final = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)

_PAUSE: Final = 0.1
"""Seconds between two attempts to reach a server that could not be reached: shorter than most restarts."""

_OPTIONS: Final[dict[str, Any]] = {
    "protocol": 2,
    "decode_responses": False,  # one member that is not UTF-8 would break the connection
    "socket_timeout": None,  # each exchange has its own timeout
    "socket_connect_timeout": CONNECT,
    "socket_keepalive": True,
    "health_check_interval": 0,
    "driver_info": None,  # CLIENT SETINFO is an error on Redis 7.0
}

AsyncLink = async_redis.AbstractConnection


class _AsyncTls(async_redis.SSLConnection):
    """A link with a TLS context that all links with the same options share. redis-py makes one for each."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tls = _tls_options(options)

    async def _connect(self) -> None:
        secure(self)
        await super()._connect()


class _SyncTls(sync_redis.SSLConnection):
    """The same for a program without an event loop."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tls = _tls_options(options)

    def _wrap_socket_with_ssl(self, sock: Any) -> ssl.SSLSocket:
        return _context(self.tls).wrap_socket(sock, server_hostname=self.host)


_ASYNC: Final = {
    "redis": async_redis.Connection,
    "rediss": _AsyncTls,
    "unix": async_redis.UnixDomainSocketConnection,
}
_SYNC: Final = {
    "redis": sync_redis.Connection,
    "rediss": _SyncTls,
    "unix": sync_redis.UnixDomainSocketConnection,
}

pack = cast(Callable[[tuple[Word, ...]], bytes], pack_command)
"""Make the bytes of a command. hiredis packs in C; redis-py packs in Python, which takes 0.8 us a word."""


def new_link(scheme: str, **options: Any) -> AsyncLink:
    """Return a link, which is not open yet, for a program with an event loop."""
    return _ASYNC[scheme](**_merged(scheme, options), retry=AsyncRetry(NoBackoff(), 0))


class BlockingLink:
    """A link for a program without an event loop. Its coroutines block their thread: `finish` runs them."""

    def __init__(self, scheme: str, **options: Any) -> None:
        self.raw: Any = _SYNC[scheme](**_merged(scheme, options), retry=SyncRetry(NoBackoff(), 0))
        self._timeout: dict[str, float] = {}
        self._process = 0

    @property
    def is_connected(self) -> bool:
        return self.raw._sock is not None

    @property
    def is_of_parent(self) -> bool:
        """Whether this process is a forked child, and the link its parent's."""
        return self._process != os.getpid()

    def limit(self, seconds: float) -> nullcontext[None]:
        """Have each reply from now on take at most this number of seconds."""
        self._timeout = {} if seconds == self.raw.socket_timeout else {"timeout": seconds}
        return nullcontext()

    async def connect(self) -> None:
        self._process = os.getpid()
        self.raw.connect()

    async def send_packed_command(self, commands: list[bytes], *, check_health: bool) -> None:
        # redis-py makes a system call for each item.
        self.raw.send_packed_command([b"".join(commands)], check_health=check_health)

    async def read_response(self) -> Any:
        return self.raw.read_response(**self._timeout)

    async def disconnect(self, *, nowait: bool) -> None:
        self.raw.disconnect()


Link = AsyncLink | BlockingLink


def _merged(scheme: str, options: dict[str, Any]) -> dict[str, Any]:
    merged = {**_OPTIONS, **options}
    if scheme == "unix":
        del merged["socket_keepalive"]
    return merged


def secure(link: AsyncLink) -> None:
    """Make the TLS context of a link now, which is then there when the time limit to open the link begins.

    Raises:
        OSError: a certificate cannot be used.
    """
    if isinstance(link, _AsyncTls):
        link.ssl_context.context = _context(link.tls)


_TlsOptions = tuple[tuple[str, Any], ...]

_contexts: dict[_TlsOptions, tuple[list[int], ssl.SSLContext]] = {}
"""By the options of a link; each with the times when its files were last changed."""


def _tls_options(options: dict[str, Any]) -> _TlsOptions:
    return tuple(sorted((name.removeprefix("ssl_"), value) for name, value in options.items() if name[:4] == "ssl_"))


def _context(options: _TlsOptions) -> ssl.SSLContext:
    """Return the TLS context for the options of a link. Certificates are read again when their files have changed.

    To make one takes about 20 ms of CPU, because it reads the CAs of the system. There is no lock, so forks are safe:
    threads that need the first one at the same time may each make it.
    """
    files = [str(value) for name, value in options if name in ("keyfile", "certfile", "ca_certs")]
    changed = [Path(file).stat().st_mtime_ns for file in files]
    if options not in _contexts or _contexts[options][0] != changed:
        words: dict[str, Any] = {"cert_reqs": "required", "check_hostname": True, **dict(options)}
        _contexts[options] = changed, async_redis.RedisSSLContext(**words).get()
    return _contexts[options][1]


class _OpeningTurns:
    """How one event loop opens links to one server."""

    def __init__(self) -> None:
        self.links = asyncio.Semaphore(_AT_ONCE)
        self.attempt = asyncio.Lock()
        """Held by the only attempt to reach it while it cannot be reached."""
        self.failure: Exception | None = None
        """Why the last attempt to reach it failed; None = it succeeded."""
        self.failed = 0.0
        """When it failed, by the monotonic clock."""

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Wait until a link may be opened.

        Raises:
            RedisError, OSError: another link could not reach the server meanwhile.
        """
        came = time.monotonic()
        async with self.links, nullcontext() if self.failure is None else self.attempt:
            if self.failure is not None:
                if self.failed > came:
                    raise type(self.failure)(*self.failure.args)  # a new one: each raise adds to a traceback
                await asyncio.sleep(self.failed + _PAUSE - time.monotonic())
            try:
                yield
            except _UNREACHABLE as error:
                if not isinstance(error, exceptions.AuthenticationError):  # links may have different users
                    self.failure, self.failed = type(error)(*error.args), time.monotonic()
                raise
            self.failure = None


_turns = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], _OpeningTurns]]()


async def open_link(link: Link) -> None:
    """Open a link when it is its turn.

    Raises:
        RedisError, OSError: of redis-py.
    """
    if isinstance(link, BlockingLink | async_redis.UnixDomainSocketConnection):
        await link.connect()
        return
    at: Any = link
    servers = _turns.setdefault(asyncio.get_running_loop(), {})
    # The limit is inside the turn: links that wait for theirs must not time out, and begin again, in a crowd.
    async with servers.setdefault((at.host, at.port), _OpeningTurns()).turn(), asyncio.timeout(2 * CONNECT):
        await link.connect()


async def read_reply_of(link: Link) -> Any:
    """Read a reply; an error reply is returned as an exception.

    Raises:
        RedisError, OSError: of redis-py.
    """
    try:
        return cast(Any, await link.read_response())
    except exceptions.ConnectionError as error:
        # LOADING and NOAUTH are replies too, but redis-py raises them as connection errors.
        if isinstance(error, exceptions.BusyLoadingError | exceptions.AuthenticationError):
            return error
        raise
    except exceptions.ResponseError as error:
        return error


def descriptors(link: Link) -> Iterable[int]:
    """Return the descriptor of a link's socket, if it is open."""
    if isinstance(link, BlockingLink):
        return [link.raw._sock.fileno()] if link.is_connected else []
    writer = link._writer  # pyright: ignore[reportPrivateUsage]
    return [] if writer is None else [writer.get_extra_info("socket").fileno()]


def abort(link: AsyncLink) -> None:
    """Close a link's socket while a reader waits, which then fails."""
    writer = link._writer  # pyright: ignore[reportPrivateUsage]
    if writer is not None:
        writer.transport.abort()


def is_cut(link: Link) -> bool:
    """Return whether an open link is of no use: it was aborted, the server has closed it, or it is a parent's."""
    if isinstance(link, BlockingLink):
        return link.is_of_parent
    reader, writer = link._reader, link._writer  # pyright: ignore[reportPrivateUsage]
    return reader is not None and writer is not None and (reader.at_eof() or writer.transport.is_closing())


class OpenLinks:
    """Links of any event loops."""

    def __init__(self) -> None:
        self._links: dict[int, tuple[ref[AsyncLink], asyncio.AbstractEventLoop]] = {}
        """By `id`, each with the event loop that it belongs to."""

    def add(self, link: Link) -> None:
        """Note a link that is being opened, by the event loop that runs."""
        if isinstance(link, BlockingLink):
            return  # it is checked before each use
        name = id(link)
        gone = ref(link, lambda _: self._links.pop(name, None))
        self._links[name] = (gone, asyncio.get_running_loop())

    def cut(self, host: Host) -> None:
        """Close the sockets of the links to a server. For any thread."""
        for weak, loop in list(self._links.values()):
            link: Any = weak()
            if link is not None and (link.host, link.port) == host:
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(abort, link)


_MOST: Final = 1_048_576
"""Bytes of a reply, and of those read with it. The replies to XADD, RPUSH and PUBLISH have some twenty."""


class ShortReplies(_AsyncHiredisParser):
    """redis-py's parser with a limit for the length of a reply: hiredis keeps the parts until a reply is complete."""

    _taken = 0
    """Bytes that were read for this reply."""

    async def read_response(self, disable_decoding: bool = False, push_request: bool = False) -> Any:
        """Read one reply."""
        self._taken = 0
        return await super().read_response(disable_decoding, push_request)

    async def read_from_socket(self) -> Literal[True]:
        """Read the bytes that have arrived.

        Raises:
            InvalidResponse: the reply is too long.
        """
        reader: Any = self._reader
        before = reader.len()
        await super().read_from_socket()
        self._taken += reader.len() - before
        if self._taken > _MOST:
            raise exceptions.InvalidResponse(f"the server's reply is longer than {_MOST} bytes: is it a Redis?")
        return True
