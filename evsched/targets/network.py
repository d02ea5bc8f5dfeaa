"""Connections to servers, opened to allowed addresses alone.

A name is resolved here, each address is judged, and the connection is opened to the very address that was judged. So a
DNS server that answers differently the next time has no effect. TLS checks the certificate against the host's name.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from ipaddress import IPv6Network, ip_address
from pathlib import Path
from typing import Final

from evsched.client.target_url import Target
from evsched.errors import ConfigError
from evsched.jobs.steering import GiveUp, RetryLater
from evsched.targets.addresses import Address, Network, is_teredo, may_connect
from evsched.targets.connection import Connection, Wire
from evsched.targets.exchange import CLOSED, NOT_HTTP
from evsched.targets.files import OutOfFiles
from evsched.targets.http1 import Http1
from evsched.targets.http2 import Http2
from evsched.targets.names import Names, Resolve, resolve

_NEXT_AFTER: Final = 0.25
"""Seconds after which the next address of a host is tried too (RFC 8305). A machine without IPv6 must not wait long."""

_ADDRESSES: Final = 10
"""Addresses of a host that are tried. The owner of its name may give it thousands."""

_NO_FILES: Final = (errno.EMFILE, errno.ENFILE)
"""Errors by which the system allows no more files."""

_GOODBYE: Final = 1.0
"""Seconds for the server's part in the end of a TLS connection."""


class Connector:
    """Opens connections, to public addresses and to those in `networks`. `nat64`: see `may_connect`."""

    def __init__(
        self, networks: Sequence[Network], resolve: Resolve = resolve, nat64: Sequence[IPv6Network] = ()
    ) -> None:
        self._networks = networks
        self._nat64 = nat64
        self._names = Names(resolve)
        self._tls = ssl.create_default_context()
        self._tls.set_alpn_protocols(["h2", "http/1.1"])

    async def addresses(self, target: Target) -> list[Address]:
        """Return the addresses of a host that may be connected to; one at least.

        Raises:
            GiveUp: it has none.
            RetryLater: it cannot be found out at the moment.
        """
        found = await self._find(target)
        allowed = [address for address in found if may_connect(address, self._networks, self._nat64)]
        if not allowed:
            raise GiveUp(_refusal(target.host, found))
        return allowed

    async def _find(self, target: Target) -> list[Address]:
        try:
            return [ip_address(target.host)]  # without a thread, for which it might have to wait
        except ValueError:
            pass
        try:
            return [ip_address(text) for text in await self._names.find(target.host, target.port)]
        except OSError as error:
            raise RetryLater(None, f"the address of {target.host} cannot be found: {error.strerror}") from None

    async def connect(self, target: Target, addresses: Sequence[Address]) -> Connection:
        """Open a connection to the server of a URL, with TLS if the URL is https.

        Raises:
            RetryLater: the server does not answer, or is not trusted.
        """
        opened = await _open(target, addresses)
        loop = asyncio.get_running_loop()
        try:
            if target.scheme == "http":
                _, wire = await loop.create_connection(partial(Wire, Http1), sock=opened)
            else:
                _, wire = await loop.create_connection(
                    partial(Wire, _chosen),
                    sock=opened,
                    ssl=self._tls,
                    server_hostname=target.host,
                    ssl_shutdown_timeout=_GOODBYE,
                )
        except OSError as error:
            raise RetryLater(None, f"{target.origin} cannot be connected to by TLS{_why(error)}") from None
        return await _ready(wire.connection, target)


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
                f"{_why(error)}: name a file in the PEM format, or unset it"
            ) from None
    if (folders := environment.get("SSL_CERT_DIR")) is not None:
        for folder in folders.split(os.pathsep):
            if not (folder and Path(folder).is_dir()):
                raise ConfigError(
                    f"SSL_CERT_DIR is {folders!r:.200}, and {folder!r:.200} is not a folder: name folders of "
                    f"certificates, with {os.pathsep} in between, or unset it"
                )


def _chosen(transport: asyncio.Transport) -> Connection:
    """Make a connection of the version of HTTP that the server has chosen."""
    is_http2 = transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    return Http2(transport) if is_http2 else Http1(transport)


async def _ready(connection: Connection, target: Target) -> Connection:
    try:
        await connection.ready()
    except BaseException:
        connection.abort()
        raise
    if connection.gone:
        connection.abort()
        raise RetryLater(None, f"{target.origin} {CLOSED if connection.ended.is_set() else NOT_HTTP}")
    return connection


async def _open(target: Target, addresses: Sequence[Address]) -> socket.socket:
    """Connect to the first address that answers. Each is tried a little after the one before, or when that failed."""
    left, running, why = list(addresses[:_ADDRESSES]), set[asyncio.Task[socket.socket]](), ""
    failure = RetryLater
    try:
        while left or running:
            if left:
                running.add(asyncio.create_task(_open_one(left.pop(0), target.port)))
            wait = _NEXT_AFTER if left else None
            ended, _ = await asyncio.wait(running, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                running.remove(task)
                error = task.exception()
                if error is None:
                    return task.result()
                why = _why(error)
                failure = OutOfFiles if isinstance(error, OSError) and error.errno in _NO_FILES else RetryLater
    finally:
        for task in running:
            task.cancel()
            task.add_done_callback(_close_opened)
    raise failure(None, f"{target.origin} cannot be connected to{why}")


def _close_opened(task: asyncio.Task[socket.socket]) -> None:
    """Close what an address has answered that is not used."""
    if not task.cancelled() and task.exception() is None:
        task.result().close()


async def _open_one(address: Address, port: int) -> socket.socket:
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    opened = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # named, or asyncio sets no TCP_NODELAY
    try:
        opened.setblocking(False)
        await asyncio.get_running_loop().sock_connect(opened, (str(address), port))
    except BaseException:
        opened.close()
        raise
    return opened


def _refusal(host: str, found: Sequence[Address]) -> str:
    """Return why none of the addresses of a host may be connected to."""
    shown = ", ".join(map(str, found[:8]))
    if all(map(is_teredo, found)):
        return f"{host} has the Teredo address {shown}: requests are never sent there; give the host another address"
    return (
        f"{host} has the address {shown}, which is not public: to send requests there, start the worker with "
        "--http-network and the network of that address"
    )


def _why(error: BaseException | None) -> str:
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
