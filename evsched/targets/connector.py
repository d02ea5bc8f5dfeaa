"""Connections to servers: opened by aiohttp to allowed addresses alone, and read in small pieces.

Each address is judged when a socket for it is made, whether it comes from the DNS or from a URL. So a DNS server that
answers differently the next time has no effect. TLS checks the certificate against the host's name.
"""

from __future__ import annotations

import asyncio
import os
import resource
import select
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from ipaddress import IPv6Network, ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiodns
from aiohttp import ServerDisconnectedError, TCPConnector
from aiohttp.abc import AbstractResolver, ResolveResult

from evsched.client.target_url import Target
from evsched.errors import ConfigError
from evsched.jobs.steering import GiveUp
from evsched.targets.addresses import Address, Network, is_teredo, may_connect
from evsched.targets.answer import Answer

if TYPE_CHECKING:
    from aiohttp import ClientRequest, ClientTimeout, StreamReader
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.connector import Connection
    from aiohttp.tracing import Trace

NOT_HTTP: Final = "sent an answer that is not valid HTTP"
TOO_LARGE: Final = "sent more than 256 KiB of headers in one answer"
TOO_MANY: Final = "sent too many small parts before it had answered"

HEAD_MOST: Final = 256 * 1024
"""Bytes that are read before an answer begins: its headers, and informational answers (1xx) before it."""

_ANSWER_MOST: Final = 512 * 1024
"""Bytes of an answer that are read. Chunks of one byte, which take six bytes each, fill `BODY_MOST` with fewer."""

_PIECES_MOST: Final = 4096
"""Pieces of an answer that are read. Each costs a turn of the event loop, however small it is."""

_PIECE: Final = 4 * 1024
"""Bytes that are read in one turn of the event loop. Parsing the worst of them takes a few milliseconds, by which a
server that sends thousands of tiny parts at once delays the requests to others."""

_KEPT: Final = 4.0
"""Seconds for which an idle connection is kept. Node.js and uvicorn close theirs after 5 s, most others later."""

_ADDRESSES: Final = 10
"""Addresses of a host that are tried. The owner of its name may give it thousands."""

_FOUND_WITHIN: Final = 20.0
"""Seconds to find the addresses of a host."""

_QUESTIONS: Final = 5
"""How often the DNS servers are asked for a name. The first wait may be as short as 0.25 s, if they answer quickly, and
each is twice the one before: 7.75 s in all, so that a name whose own servers are slow is found too."""

_FILES_MOST: Final = 65_536
"""Files. Some systems allow a thousand million; what closes all files that there may be would then take minutes."""


class Transfer:
    """A request on its way: what it waits for, and what has arrived of the answer.

    If the time is over, that says what becomes of it.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.missing = ""
        """What has not happened, as the beginning of a sentence."""
        self.alone = False
        """Send it on a new connection."""
        self.intake: Intake | None = None
        """What arrives on the connection on which it is sent."""
        self.refused = list[Address]()
        """The addresses that may not be connected to."""
        self.tried = False
        """A connection to an address was tried."""
        self.ended = False
        """The answer was read to its end: the connection may serve another request."""
        self.status = 0
        self.headers = list[tuple[str, str]]()
        self.body = bytearray()

    def arrived(self) -> Answer | None:
        """Return the answer as far as it has arrived; None = not even its head has."""
        return Answer(self.status, self.headers, bytes(self.body), whole=False) if self.status else None

    def refusal(self) -> GiveUp:
        """Return the error of a host that has no address which may be connected to."""
        host, shown = self.target.host, ", ".join(map(str, dict.fromkeys(self.refused)))
        if all(map(is_teredo, self.refused)):
            return GiveUp(
                f"{host} has the Teredo address {shown}: requests are never sent there; give the host another address"
            )
        return GiveUp(
            f"{host} has the address {shown}, which is not public: to send requests there, start the worker with "
            "--http-network and the network of that address"
        )


current: Final[ContextVar[Transfer]] = ContextVar("current")
"""The request for which aiohttp opens a connection: it passes its own arguments on, and none of ours."""


class Names(AbstractResolver):
    """Looks up names in the file of hosts and in the DNS, without threads: one that does not end delays no other.

    `servers`: HOST:PORT of the DNS servers; None = those of the system.
    """

    def __init__(self, servers: Sequence[str] | None = None) -> None:
        self._dns = aiodns.DNSResolver(servers, tries=_QUESTIONS)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host, as many as are tried.

        Raises:
            OSError: there are none, or it cannot be found out.
        """
        try:
            async with asyncio.timeout(_FOUND_WITHIN):
                found = await self._dns.getaddrinfo(host, family, port, type=socket.SOCK_STREAM)
        except aiodns.error.DNSError as error:
            raise OSError(None, error.args[1]) from None
        except TimeoutError:
            raise OSError(None, f"no DNS server answered within {_FOUND_WITHIN:g} s") from None
        addresses: list[tuple[Any, ...]] = [node.addr for node in found.nodes[:_ADDRESSES]]
        return [numeric(host, str(address, "ascii"), port) for address, *_ in addresses]

    async def close(self) -> None:
        """Give up the lookups under way."""
        await self._dns.close()


def numeric(host: str, address: str, port: int) -> ResolveResult:
    """Return an address of a host in aiohttp's form."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)


class Intake(asyncio.BufferedProtocol):
    """What arrives on a connection: small pieces, up to a bound, and nothing that nobody asked for.

    An answer is told from the next one by its place alone. So a connection on which anything else arrived is not used
    again: the next job would get it as its answer.
    """

    def __init__(self, transport: asyncio.Transport, protocol: ResponseHandler, lost: Callable[[], None]) -> None:
        self.fault = ""
        """Why reading was broken off."""
        self.size = 0
        """Bytes that have arrived since the request was sent."""
        self.reused = False
        """The request is not the first one on the connection."""
        self._transport = transport
        self._protocol = protocol
        self._lost = lost
        """Called when the connection is closed."""
        self._content: StreamReader | None = None
        """The body of the answer, when that has begun."""
        self._buffer = memoryview(b"")
        self._pieces = 0
        self._busy = False
        """A request is under way."""
        self._clean = False
        """The last answer was read to its end, and nothing has arrived after it."""
        self._head = bytearray()
        self._in_body = False
        self._body = 0
        """Bytes that have arrived after the head."""
        self._last = b""

    def begin(self) -> None:
        """Expect the answer to the next request."""
        self.reused = self._clean
        self.fault, self.size, self._content = "", 0, None
        self._busy, self._clean, self._pieces, self._in_body, self._body = True, False, 0, False, 0
        self._head.clear()

    def follow(self, content: StreamReader) -> None:
        """Note that the answer has begun. `content`: its body."""
        self._content = content
        self._look_for_error()

    def end(self, body: int, *, chunked: bool) -> None:
        """Note that an answer was read to its end. `body`: its bytes."""
        self._busy = False
        self._clean = self._last == b"\n" if chunked else self._body == body

    def may_be_used(self) -> bool:
        """Return whether another request may be sent: nothing that nobody asked for has arrived, and no end."""
        if not self._clean or self._protocol.should_close or self._transport.get_write_buffer_size():
            return False
        waiting = select.poll()
        waiting.register(self._transport.get_extra_info("socket"), select.POLLIN)
        return not waiting.poll(0)

    def abort(self, fault: str) -> None:
        """Close the connection at once."""
        self.fault = self.fault or fault
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to put what arrives."""
        self._buffer = memoryview(bytearray(_PIECE))
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what has arrived, if it is expected and not too much."""
        data, self._buffer = bytes(self._buffer[:nbytes]), memoryview(b"")
        self.size += nbytes
        self._pieces += 1
        if not self._busy:
            self.abort("")
        elif self.size > (HEAD_MOST if self._content is None else _ANSWER_MOST):
            self.abort(TOO_LARGE)
        elif self._pieces > _PIECES_MOST:
            self.abort(TOO_MANY)
        else:
            self._last = data[-1:]
            if not self._in_body:
                data = self._pass_heads(data)
            self._body += len(data)
            if data:
                self._protocol.data_received(data)
            self._look_for_error()

    def _look_for_error(self) -> None:
        """End a body that is not valid: aiohttp closes its connection, and lets the reader wait for the rest."""
        content = self._content
        if content is not None and not content.is_eof() and self._protocol.exception() is not None:
            self.fault = NOT_HTTP
            content.feed_eof()

    def _pass_heads(self, data: bytes) -> bytes:
        """Pass on each head by itself, and return what comes after the last one.

        What follows an answer without a body may be no HTTP. In one piece with it, aiohttp would refuse both.
        """
        while data and not self._in_body:
            before = len(self._head)
            self._head += data
            end = self._head.find(b"\r\n\r\n", max(0, before - 3))
            length = len(data) if end < 0 else end + 4 - before
            if end >= 0:
                self._in_body = not self._head.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1"))
                self._head.clear()
            self._protocol.data_received(data[:length])
            data = data[length:]
        return data

    def eof_received(self) -> bool | None:
        """Pass it on."""
        self._protocol.eof_received()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        self._lost()
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass it on."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Pass it on."""
        self._protocol.resume_writing()


class Connector(TCPConnector):
    """Opens connections to public addresses and to those in `networks`, and keeps them for the next request.

    A name is looked up for each new connection, and once at a time. `nat64`: see `may_connect`.
    """

    def __init__(self, networks: Sequence[Network], nat64: Sequence[IPv6Network], names: AbstractResolver) -> None:
        self._networks = networks
        self._nat64 = nat64
        tls = ssl.create_default_context()
        tls.set_alpn_protocols(["http/1.1"])
        self._most = (
            _allowed_files() // 2
        )  # the other half is for Redis, the lookup of names, and connections at their end
        self._count = 0
        """Connections that are open."""
        super().__init__(
            resolver=names,
            ttl_dns_cache=0,
            ssl=tls,
            limit=self._most,
            keepalive_timeout=_KEPT,
            socket_factory=self._open,
        )

    def _open(self, info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
        """Make the socket for an address, if it may be connected to."""
        family, kind, _, _, where = info
        address, transfer = ip_address(where[0]), current.get()
        if not may_connect(address, self._networks, self._nat64):
            transfer.refused.append(address)
            raise PermissionError("the address is not allowed")
        transfer.tried = True
        transfer.missing = f"{transfer.target.origin} did not accept a connection"
        return socket.socket(family, kind, socket.IPPROTO_TCP)

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout) -> Connection:
        """Return a connection on which nothing unexpected has arrived; a new one if the request needs that."""
        transfer = current.get()
        while True:
            connection = await super().connect(req, traces, timeout)
            transport, protocol = connection.transport, connection.protocol
            if transport is None or protocol is None:
                connection.close()
                raise ServerDisconnectedError
            intake = transport.get_protocol()
            if not isinstance(intake, Intake):
                intake = Intake(transport, protocol, self._note_lost)
                transport.set_protocol(intake)
                self._count += 1
                if self._count > self._most:
                    protocol.force_close()  # after its answer: idle connections must not take all files
                break
            if not transfer.alone and intake.may_be_used():
                break
            connection.close()
        intake.begin()
        transfer.intake = intake
        transfer.missing = f"{transfer.target.origin} did not answer"
        return connection

    def _note_lost(self) -> None:
        self._count -= 1


def raise_limit() -> None:
    """Raise the limit of open files of this process to what the system allows without asking.

    The lower one, 1024 on most systems, is for programs that use select(2). evsched uses epoll and poll.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_MOST if hard == resource.RLIM_INFINITY else min(hard, _FILES_MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS names a limit that it does not allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _allowed_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _FILES_MOST if soft == resource.RLIM_INFINITY else soft


def check_authorities(environment: Mapping[str, str]) -> None:
    """Check the variables that name the authorities for certificates. OpenSSL ignores it if nothing is there.

    Raises:
        ConfigError: one names no certificates, so no server would be trusted.
    """
    if (file := environment.get("SSL_CERT_FILE")) is not None:
        try:
            ssl.create_default_context(cafile=file or os.devnull)
        except OSError as error:
            raise ConfigError(
                f"SSL_CERT_FILE is {file!r:.200}, which has no certificates of authorities that can be read"
                f"{why(error)}: name a file in the PEM format, or unset it"
            ) from None
    if (folders := environment.get("SSL_CERT_DIR")) is not None:
        for folder in folders.split(os.pathsep):
            if not (folder and Path(folder).is_dir()):
                raise ConfigError(
                    f"SSL_CERT_DIR is {folders!r:.200}, and {folder!r:.200} is not a folder: name folders of "
                    f"certificates, with {os.pathsep} in between, or unset it"
                )


def why(error: BaseException | None) -> str:
    """Return the system's reason for an error, as the end of a sentence."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f": its certificate is not valid: {error.verify_message}"
        if isinstance(error, ssl.SSLError):
            return f": {error.reason or error}"
        if isinstance(error, OSError) and error.errno:
            return f": {os.strerror(error.errno)}"  # asyncio's own text is longer, and says less
        if isinstance(error, ConnectionError):  # asyncio's own, which have no number
            return f": {str(error) or 'it closed the connection'}"
        error = error.__cause__ or error.__context__
    return ""
