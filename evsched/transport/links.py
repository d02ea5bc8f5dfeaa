"""Links: the connections of redis-py, with every option explicit. None of them retries.

(redis-py's own retries silently sent a BLMOVE twice.)

A process may have hundreds of links, and loses many of them at once. So TLS contexts are shared, few links are opened
to a server at a time, and a server that cannot be reached is tried by one link at a time.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import redis.asyncio.connection as async_redis
import redis.connection as sync_redis
from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType]
from redis import exceptions
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry as SyncRetry

from evsched.transport.call import Word
from evsched.transport.single_flight import SingleFlight

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
SyncLink = sync_redis.AbstractConnection


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


def new_sync_link(scheme: str, **options: Any) -> SyncLink:
    """Return a link, which is not open yet, for a program without an event loop."""
    return _SYNC[scheme](**_merged(scheme, options), retry=SyncRetry(NoBackoff(), 0))


def _merged(scheme: str, options: dict[str, Any]) -> dict[str, Any]:
    merged = {**_OPTIONS, **options}
    if scheme == "unix":
        del merged["socket_keepalive"]
    return merged


def secure(link: AsyncLink | SyncLink) -> None:
    """Make the TLS context of a link now, which is then there when the time limit to open the link begins.

    Raises:
        OSError: a certificate cannot be used.
    """
    if isinstance(link, _AsyncTls):
        link.ssl_context.context = _context(link.tls)
    elif isinstance(link, _SyncTls):
        _context(link.tls)


_TlsOptions = tuple[tuple[str, Any], ...]

_contexts: dict[_TlsOptions, tuple[list[int], ssl.SSLContext]] = {}
"""By the options of a link; each with the times when its files were last changed."""
_making = SingleFlight[None]()


def _tls_options(options: dict[str, Any]) -> _TlsOptions:
    return tuple(sorted((name.removeprefix("ssl_"), value) for name, value in options.items() if name[:4] == "ssl_"))


def _context(options: _TlsOptions) -> ssl.SSLContext:
    """Return the TLS context for the options of a link. Certificates are read again when their files have changed.

    To make one takes about 20 ms of CPU, because it reads the CAs of the system.
    """
    files = [str(value) for name, value in options if name in ("keyfile", "certfile", "ca_certs")]

    def make() -> None:
        changed = [Path(file).stat().st_mtime_ns for file in files]
        if options not in _contexts or _contexts[options][0] != changed:
            words: dict[str, Any] = {"cert_reqs": "required", "check_hostname": True, **dict(options)}
            _contexts[options] = changed, async_redis.RedisSSLContext(**words).get()

    _making.run_sync(make)
    return _contexts[options][1]


class _Server:
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


_servers = WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int], _Server]]()


async def open_link(link: AsyncLink) -> None:
    """Open a link when it is its turn.

    Raises:
        RedisError, OSError: of redis-py.
    """
    if isinstance(link, async_redis.UnixDomainSocketConnection):
        await link.connect()
        return
    at: Any = link
    servers = _servers.setdefault(asyncio.get_running_loop(), {})
    # The limit is inside the turn: links that wait for theirs must not time out, and begin again, in a crowd.
    async with servers.setdefault((at.host, at.port), _Server()).turn(), asyncio.timeout(2 * CONNECT):
        await link.connect()


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
