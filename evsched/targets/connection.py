"""A connection to a server: what HTTP/1.1 and HTTP/2 have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from evsched.targets.answer import Answer
from evsched.targets.exchange import Exchange

HEAD_MOST: Final = 64 * 1024
"""Bytes of the headers of an answer."""


class Connection(ABC):
    """A connection on a transport, to which whoever reads the transport passes what arrives."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.gone = False
        """It is closed, or is being closed: nothing can be sent."""
        self.ended = asyncio.Event()
        """Set when it is closed."""
        self.idle_since = asyncio.get_running_loop().time()
        """When the last request on it ended."""
        self.changed: Callable[[Connection], None] = lambda _: None
        """Called when it may have room for another request, and when it has gone or ended."""
        self._transport = transport

    @property
    @abstractmethod
    def most(self) -> int:
        """How many requests it takes at a time."""

    @property
    @abstractmethod
    def running(self) -> int:
        """How many requests are under way."""

    @abstractmethod
    def has_room(self) -> bool:
        """Return whether another request may be sent now. Close a connection that proves to be unusable."""

    @abstractmethod
    async def exchange(self, exchange: Exchange) -> Answer:
        """Send a request, and return its answer. It is under way as soon as this is called.

        Raises:
            Unsent: it can be sent again, on another connection.
            RetryLater: no answer came, or none that is valid.
        """

    @abstractmethod
    def received(self, data: bytes) -> None:
        """Take what has arrived."""

    def lost(self, error: Exception | None) -> None:
        """Take note that it is closed. `error`: None if the server, or this side, has closed it in the regular way."""
        self.gone = True
        self.ended.set()
        self.changed(self)

    @abstractmethod
    async def ready(self) -> None:
        """Wait until requests may be sent, or it has gone."""

    def close(self) -> None:
        """Close it when what was written is sent. Requests under way end without an answer."""
        if not self.gone:
            self.gone = True
            self._transport.close()
            self.changed(self)

    def abort(self) -> None:
        """Close it at once."""
        self.gone = True
        self._transport.abort()
        self.changed(self)

    def _rest(self) -> None:
        """Take note that a request has ended."""
        self.idle_since = asyncio.get_running_loop().time()
        self.changed(self)


class Wire(asyncio.Protocol):
    """What arrives on a transport. `choose`: makes the connection, when TLS has told the version of HTTP."""

    connection: Connection

    def __init__(self, choose: Callable[[asyncio.Transport], Connection]) -> None:
        self._choose = choose

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make the connection."""
        assert isinstance(transport, asyncio.Transport)
        self.connection = self._choose(transport)

    def data_received(self, data: bytes) -> None:
        """Pass it on."""
        self.connection.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass it on."""
        self.connection.lost(exc)
