"""Names of hosts for the connections of targets: a test says which addresses they have, or runs a DNS server."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import cast

from aiohttp.abc import AbstractResolver, ResolveResult

from evsched.targets.session import Names, numeric

Find = Callable[[str], Sequence[str] | Awaitable[Sequence[str]] | None]
"""Returns the addresses of a host; None: as the system knows them."""


class FoundNames(AbstractResolver):
    """Finds the addresses that a test says."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._system = Names()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = self._find(host)
        addresses = await found if inspect.isawaitable(found) else found
        if addresses is None:
            return await self._system.resolve(host, port, family)
        return [numeric(host, address, port) for address in addresses]

    async def close(self) -> None:
        await self._system.close()


def names(find: Find) -> Callable[[], AbstractResolver]:
    return lambda: FoundNames(find)


def on_loopback(host: str) -> Sequence[str] | None:
    """Find every host of the domain `test` on this machine."""
    return ["127.0.0.1"] if host.endswith(".test") else None


class DnsServer(asyncio.DatagramProtocol):
    """A DNS server that answers with those IPv4 addresses, and not at all for a name under `dead.test`."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.asked = list[str]()
        self.unanswered = asyncio.Semaphore(0)
        """Released when a name under `dead.test` is asked for the first time."""
        self._addresses = [socket.inet_aton(address) for address in addresses]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        end, labels = 12, list[str]()
        while length := data[end]:
            labels.append(data[end + 1 : end + 1 + length].decode())
            end += 1 + length
        name, question = ".".join(labels).lower(), data[12 : end + 5]
        is_new = name not in self.asked
        self.asked.append(name)
        if name.endswith(".dead.test"):
            if is_new:
                self.unanswered.release()
            return
        found = self._addresses if question[-4:-2] == b"\x00\x01" else []  # type A
        head = data[:2] + b"\x81\x80\x00\x01" + len(found).to_bytes(2) + bytes(4)
        answers = [b"\xc0\x0c\x00\x01\x00\x01" + bytes(4) + b"\x00\x04" + address for address in found]
        self._transport.sendto(head + question + b"".join(answers), addr)


@asynccontextmanager
async def dns(*addresses: str) -> AsyncGenerator[tuple[DnsServer, Callable[[], AbstractResolver]]]:
    """Run a DNS server; yield it, and a factory of resolvers that ask it."""
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(lambda: DnsServer(addresses), ("127.0.0.1", 0))
    port = transport.get_extra_info("sockname")[1]
    try:
        yield server, lambda: Names([f"127.0.0.1:{port}"])
    finally:
        transport.close()
