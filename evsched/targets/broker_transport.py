"""The transport to an AMQP broker: it refuses a frame that is too long, before it is read.

aiormq reads frames of up to 4 GiB, whatever length was agreed on. So a server that is no broker could fill the memory
of the worker. The length is known when the frame's end is asked for.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aio_pika import RobustConnection
from aio_pika.exceptions import AMQPConnectionError
from aiormq import TransportFactory
from yarl import URL

_MOST: Final = 4_194_304
"""Bytes of a frame. RabbitMQ's own limit is 131,072; a message that is returned is one of ours."""


class _Reader(asyncio.StreamReader):
    async def readexactly(self, n: int) -> bytes:
        if n > _MOST:
            raise ConnectionError(f"its frame has {n} bytes, more than {_MOST}: is it an AMQP broker?")
        return await super().readexactly(n)


class _Transport(TransportFactory):
    opened: asyncio.WriteTransport | None = None
    """What was opened last."""

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = str(url.host), url.port or 0  # aiormq has set the default port
        certificates = kwargs.pop("ssl_context_provider")
        ssl = await certificates.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        reader = _Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=ssl, **kwargs)
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        self.opened = transport
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class BrokerConnection(RobustConnection):
    """aio-pika's connection that reconnects by itself, over this transport."""

    def __init__(self, url: URL, loop: asyncio.AbstractEventLoop | None = None, **kwargs: Any) -> None:
        super().__init__(url, loop, **kwargs)
        self._factory = self.kwargs["transport_factory"] = _Transport()

    async def close_within(self, seconds: float) -> None:
        """Close the connection, by force after so many seconds: a broker that blocks it does not read the request."""
        closing = asyncio.ensure_future(self.close())
        await asyncio.wait([closing], timeout=seconds)
        if not closing.done() and self._factory.opened is not None:
            # aiormq would wait for minutes until what it has written before is gone.
            self._factory.opened.abort()
            await asyncio.wait([closing], timeout=seconds)
