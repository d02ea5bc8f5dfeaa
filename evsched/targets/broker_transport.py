"""The connection to an AMQP broker: it refuses a frame that is too long, before it is read.

aiormq reads frames of up to 4 GiB, whatever length was agreed on. So a server that is no broker could fill the memory
of the worker. The length is known when the frame's end is asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, Self

from aiormq import Connection, TransportFactory
from yarl import URL

_MOST: Final = 4_194_304
"""Bytes of a frame. RabbitMQ's own limit is 131,072; a message that is returned is one of ours."""


class NoBroker(Exception):
    """The server sends what no AMQP broker sends."""


class _Reader(asyncio.StreamReader):
    async def readexactly(self, n: int) -> bytes:
        if n > _MOST:
            raise NoBroker(f"its frame has {n} bytes, more than {_MOST}: is it an AMQP broker?")
        return await super().readexactly(n)


class _Transport(TransportFactory):
    opened: asyncio.WriteTransport | None = None

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = str(url.host), url.port or 0  # aiormq has set the default port
        certificates = kwargs.pop("ssl_context_provider")
        ssl = await certificates.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        reader = _Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=ssl, **kwargs)
        self.opened = transport
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class BrokerConnection(Connection):
    """One connection. When it is lost, it stays so: open another."""

    FRAME_BUFFER_SIZE = 0
    """No limit for the frames that wait to be written. With one, aiormq does not answer a broker that closes a channel
    at a moment when the queue is full, and the channel's number could not be used again. The messages under way are
    limited by the number of channels."""

    def __init__(self, url: str) -> None:
        self._transport = _Transport()
        super().__init__(url, transport_factory=self._transport)

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect. Raises whatever aiormq and the network raise."""
        connection = cls(url)
        try:
            await connection.connect()
        except BaseException:
            connection.abort()
            raise
        return connection

    async def close_within(self, seconds: float) -> None:
        """Close the connection, by force after so many seconds: a broker that blocks it does not read the request."""
        closing = asyncio.ensure_future(self.close())
        await asyncio.wait([closing], timeout=seconds)
        if not closing.done():
            self.abort()  # aiormq would wait for minutes until what it has written before is gone
            await asyncio.wait([closing], timeout=seconds)

    def abort(self) -> None:
        """Close the socket at once."""
        if self._transport.opened is not None:
            self._transport.opened.abort()
