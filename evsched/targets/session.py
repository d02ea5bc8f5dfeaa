"""One request and its answer, on a connection that aiohttp opens, to an allowed address alone, or keeps.

Each address is judged when a socket for it is made, whether it comes from the DNS or from a URL. So a DNS server that
answers differently the next time has no effect. TLS checks the certificate against the host's name.

The head of an answer decides the outcome of the job. So whatever happens to the body after it, the request ends with
that answer, its body cut.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from ipaddress import IPv6Network, ip_address
from pathlib import Path
from typing import Any, Final, Self

import aiodns
from aiohttp import (
    ClientConnectionError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientError,
    ClientHandlerType,
    ClientRequest,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    DummyCookieJar,
    ServerDisconnectedError,
    TCPConnector,
)
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from evsched.client.target_tasks import TargetRequest
from evsched.errors import ConfigError
from evsched.jobs.steering import GiveUp, RetryLater
from evsched.targets.allowed_hosts import Network, may_connect
from evsched.targets.intake import BODY_MOST, HEAD_MOST, NOT_HTTP, Answer, Intake, Transfer, current

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
"""Files. Some systems allow a thousand million; a program that closes every possible file would then take minutes."""


class Names(AbstractResolver):
    """Looks up names in the file of hosts and in the DNS, without a thread for each: none delays another.

    `servers`: HOST:PORT of the DNS servers; None = those of the system.
    """

    def __init__(self, servers: Sequence[str] | None = None) -> None:
        self._dns = aiodns.DNSResolver(servers, tries=_QUESTIONS)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of a host, as many as are tried.

        Raises:
            OSError: the name has no address, or cannot be resolved.
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
        await self._dns.close()


def numeric(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(hostname=host, host=address, port=port, family=family, proto=0, flags=socket.AI_NUMERICHOST)


class Connector(TCPConnector):
    """Opens connections to public addresses and to those in `networks`, and keeps them for the next request.

    A name is looked up for each new connection, and once at a time. `nat64`: see `may_connect`.
    """

    def __init__(self, networks: Sequence[Network], nat64: Sequence[IPv6Network], names: AbstractResolver) -> None:
        self._networks = networks
        self._nat64 = nat64
        tls = ssl.create_default_context()
        tls.set_alpn_protocols(["http/1.1"])
        self._most = _allowed_files() // 2
        """Connections in use at one time, and open after an answer. The other half of the files is for the rest."""
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
        transfer.missing = f"{transfer.target.shown} did not accept a connection"
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
                    protocol.force_close()  # after its answer, so that idle connections do not take all files
                break
            if not transfer.alone and intake.may_be_used():
                break
            connection.close()
        intake.begin()
        transfer.intake = intake
        transfer.missing = f"{transfer.target.shown} did not answer"
        return connection

    def _note_lost(self) -> None:
        self._count -= 1


def raise_limit() -> None:
    """Raise the limit of open files of this process to the most that needs no privilege.

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


CLOSED: Final = "closed the connection before it had answered"

_HEAD_KEPT: Final = 64 * 1024
"""Bytes of the headers of an answer that are kept."""

_HEADERS_MOST: Final = 4096
"""Headers of an answer that are read: of an informational one too."""

_GOODBYE: Final = 2.0
"""Seconds for the end of all connections when the worker stops."""

_LARGE: Final = 2**20
"""Bytes of a body from which on aiohttp warns that it takes long to send it at once."""


class _Lost(Exception):
    """The connection ended before the answer began."""


class Session:
    """The connections of one worker. It is an async context manager, and closes them at its end.

    It sends to public addresses and to those in `networks`. `nat64`: see `may_connect`. `names`: makes the resolver,
    which needs the event loop.
    """

    def __init__(
        self,
        networks: Sequence[Network],
        nat64: Sequence[IPv6Network] = (),
        names: Callable[[], AbstractResolver] = Names,
    ) -> None:
        self._networks = networks
        self._nat64 = nat64
        self._make_names = names

    async def __aenter__(self) -> Self:
        self._names = self._make_names()
        self._http = ClientSession(
            connector=Connector(self._networks, self._nat64, self._names),
            cookie_jar=DummyCookieJar(),  # no job gets the cookies of another
            timeout=ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
            auto_decompress=False,  # a small body may become one of any size
            trust_env=False,  # a proxy would look up the name itself
            skip_auto_headers=("accept", "accept-encoding", "content-type", "user-agent"),
            max_line_size=HEAD_MOST,
            max_field_size=HEAD_MOST,
            max_headers=_HEADERS_MOST,
            middlewares=(_send_once,),
        )
        return self

    async def __aexit__(self, *raised: object) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                await self._http.close()
        await self._names.close()

    async def send(self, request: TargetRequest, headers: Mapping[str, str], transfer: Transfer) -> Answer:
        """Send a request with those headers; return the answer. It takes as long as the server does.

        Many servers close a connection that was idle for a while. Nobody has looked at a request that crosses this: it
        is sent again, once.

        Raises:
            GiveUp: it must not be sent to that address.
            RetryLater: the server cannot be reached, or its answer cannot be read.
        """
        try:
            return await self._send(request, headers, transfer)
        except _Lost:
            intake = transfer.intake
            if intake is None or not intake.reused or intake.size:
                raise _failed(transfer, CLOSED) from None
        transfer.alone = True
        try:
            return await self._send(request, headers, transfer)
        except _Lost:
            raise _failed(transfer, CLOSED) from None

    async def _send(self, request: TargetRequest, headers: Mapping[str, str], transfer: Transfer) -> Answer:
        target = request.target
        transfer.missing = f"the address of {target.shown_host} was not found"
        token = current.set(transfer)
        try:
            response = await self._http.request(
                request.method,
                URL(f"{target.origin}{target.path}", encoded=True),
                headers=headers,
                data=_data(request.content),
                allow_redirects=False,
            )
            try:
                return await _read(response, transfer)
            finally:
                response.close()
        except ClientConnectorError as error:
            raise _not_connected(transfer, error) from None
        except ClientError:
            raise _failed(transfer, NOT_HTTP) from None
        finally:
            current.reset(token)
            if transfer.intake is not None and not transfer.ended:
                transfer.intake.abort("")  # aiohttp would first send the rest of the request


def _data(content: bytes) -> bytes | BytesIO | None:
    """Return a body as aiohttp takes it: a large one in pieces, so that sending it takes many turns of the loop."""
    return BytesIO(content) if len(content) > _LARGE else content or None


async def _send_once(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """Send a request once: aiohttp would repeat it by its method, whether its connection was a kept one or not."""
    try:
        return await handler(request)
    except ClientConnectorError:
        raise
    except ClientConnectionError as error:
        raise _Lost from error


async def _read(response: ClientResponse, transfer: Transfer) -> Answer:
    """Read an answer whose head has arrived, as much of it as is kept."""
    intake, content, body = transfer.intake, response.content, transfer.body
    assert intake is not None
    chunked = "transfer-encoding" in response.headers
    intake.follow(content, response.content_length, chunked=chunked)
    if response.status < 200:  # informational ones are read over; 101 answers a question that is not asked
        raise _failed(transfer, NOT_HTTP)
    headers_whole = _keep_headers(response, transfer)
    transfer.status = response.status
    try:
        while len(body) <= BODY_MOST and not content.at_eof():
            body += await content.readany()
    except ClientError:
        ended = False
    else:
        ended = len(body) <= BODY_MOST and not intake.fault
    if ended:
        transfer.ended = intake.end(len(body), chunked=chunked)
    del body[BODY_MOST:]
    return Answer(response.status, transfer.headers, bytes(body), ended and headers_whole)


def _keep_headers(response: ClientResponse, transfer: Transfer) -> bool:
    """Note the headers of an answer, as many as are kept. Return whether these are all."""
    size = 0
    for name, value in response.raw_headers:
        size += len(name) + len(value)
        if size > _HEAD_KEPT:
            return False
        transfer.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))
    return True


def _failed(transfer: Transfer, reason: str) -> RetryLater:
    """Return the error of a request without an answer. It may have taken effect."""
    fault = transfer.intake.fault if transfer.intake is not None else ""
    return RetryLater(None, f"{transfer.target.shown} {fault or reason}")


def _not_connected(transfer: Transfer, error: ClientConnectorError) -> GiveUp | RetryLater:
    """Return the error of a request for which there is no connection."""
    target, cause = transfer.target, error.os_error
    if isinstance(error, ClientConnectorDNSError):
        return RetryLater(None, f"the address of {target.shown_host} cannot be found: {cause.strerror}")
    if transfer.refused and not transfer.tried:
        return transfer.refusal()
    in_handshake = isinstance(cause, ssl.SSLError | ConnectionResetError | ConnectionAbortedError | BrokenPipeError)
    by_tls = " by TLS" if target.scheme == "https" and in_handshake else ""
    reason = ": its certificate is not valid" if target.hidden and _names_host(cause) else why(cause)
    return RetryLater(None, f"{target.shown} cannot be connected to{by_tls}{reason}")


def _names_host(error: BaseException) -> bool:
    """Return whether the text of an error may have the name of the host, as that of a certificate has."""
    return isinstance(error, ssl.SSLCertVerificationError)
