"""Connections to servers, opened to allowed addresses alone.

A name is resolved here, each address is judged, and the connection is opened to the very address that was judged. So a
DNS server that answers differently the next time has no effect. TLS checks the certificate against the host's name.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import Final, cast

import anyio
import anyio.to_thread
import httpcore

from evsched.jobs.steering import GiveUp, RetryLater
from evsched.targets.addresses import Address, Network, may_connect
from evsched.targets.url import Target

_NEXT_AFTER: Final = 3.0
"""Seconds after which the next address of a host is tried. A machine without IPv6 must not wait for it for long."""

_LOOKUPS: Final = 64
"""Names that are looked up at one time. Each takes a thread, for half a minute if no DNS server answers."""

Resolve = Callable[[str, int], Sequence[str]]
"""Returns the addresses of a host. It may block."""


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host, as the system knows them.

    Raises:
        OSError: there are none, or it cannot be found out.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Connector:
    """Opens connections, to public addresses and to those in `networks`."""

    def __init__(self, networks: Sequence[Network], resolve: Resolve = resolve) -> None:
        self._networks = networks
        self._resolve = resolve
        self._lookups = anyio.CapacityLimiter(_LOOKUPS)
        self._backend = cast(httpcore.AsyncNetworkBackend, httpcore.AnyIOBackend())
        self._tls = httpcore.default_ssl_context()
        self._tls.set_alpn_protocols(["h2", "http/1.1"])

    async def connect(self, target: Target) -> httpcore.AsyncNetworkStream:
        """Open a connection to the server of a URL, with TLS if the URL is https.

        Raises:
            GiveUp: it has no address that may be connected to.
            RetryLater: it has none at the moment, does not answer, or is not trusted.
        """
        stream = await self._open(target, await self._addresses(target))
        if target.scheme == "http":
            return stream
        try:
            return await stream.start_tls(self._tls, server_hostname=target.host)
        except httpcore.ConnectError as error:
            raise RetryLater(None, f"{target.origin} cannot be connected to by TLS{_why(error)}") from None
        except BaseException:  # cancelled: httpcore closes it after errors alone
            await stream.aclose()
            raise

    async def _addresses(self, target: Target) -> list[Address]:
        """Return the addresses of a host that may be connected to; one at least."""
        try:
            texts = await anyio.to_thread.run_sync(
                self._resolve, target.host, target.port, limiter=self._lookups, abandon_on_cancel=True
            )
        except OSError as error:
            raise RetryLater(None, f"the address of {target.host} cannot be found: {error.strerror}") from None
        found = [ip_address(text) for text in texts]
        allowed = [address for address in found if may_connect(address, self._networks)]
        if not allowed:
            shown = ", ".join(map(str, found[:8]))
            raise GiveUp(
                f"{target.host} has the address {shown}, which is not public: to send requests there, start the worker "
                "with --http-network and the network of that address"
            )
        return allowed

    async def _open(self, target: Target, addresses: Sequence[Address]) -> httpcore.AsyncNetworkStream:
        why = ""
        for address in addresses:
            is_last = address is addresses[-1]
            try:
                async with asyncio.timeout(None if is_last else _NEXT_AFTER):
                    return await self._backend.connect_tcp(str(address), target.port)
            except TimeoutError:
                why = ": it does not answer"
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                why = _why(error)
        raise RetryLater(None, f"{target.origin} cannot be connected to{why}")


def _why(error: BaseException | None) -> str:
    """Return the system's reason for an error, as the end of a sentence."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f": its certificate is not valid: {error.verify_message}"
        if isinstance(error, ssl.SSLError):
            return f": {error.reason or error}"
        if isinstance(error, OSError) and error.errno:
            return f": {os.strerror(error.errno)}"  # asyncio's own text is longer, and says less
        error = error.__cause__ or error.__context__
    return ""
