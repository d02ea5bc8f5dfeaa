"""One request and its answer, on a connection that `connector.py` opens or keeps.

The head of an answer decides the outcome of the job. So whatever happens to the body after it, the request ends with
that answer, its body cut.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from ipaddress import IPv6Network
from typing import Final, Self

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
)
from aiohttp.abc import AbstractResolver
from yarl import URL

from evsched.client.target_tasks import TargetRequest
from evsched.jobs.steering import GiveUp, RetryLater
from evsched.targets.allowed_hosts import Network
from evsched.targets.connector import Connector, Names, why
from evsched.targets.intake import BODY_MOST, HEAD_MOST, NOT_HTTP, Answer, Transfer, current

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
        transfer.missing = f"the address of {target.host} was not found"
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
    return RetryLater(None, f"{transfer.target.origin} {fault or reason}")


def _not_connected(transfer: Transfer, error: ClientConnectorError) -> GiveUp | RetryLater:
    """Return the error of a request for which there is no connection."""
    target, cause = transfer.target, error.os_error
    if isinstance(error, ClientConnectorDNSError):
        return RetryLater(None, f"the address of {target.host} cannot be found: {cause.strerror}")
    if transfer.refused and not transfer.tried:
        return transfer.refusal()
    in_handshake = isinstance(cause, ssl.SSLError | ConnectionResetError | ConnectionAbortedError | BrokenPipeError)
    by_tls = " by TLS" if target.scheme == "https" and in_handshake else ""
    return RetryLater(None, f"{target.origin} cannot be connected to{by_tls}{why(cause)}")
