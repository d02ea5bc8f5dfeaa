"""A connection to a server: what HTTP/1.1 and HTTP/2 have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Final

from evsched.targets.answer import Answer
from evsched.targets.exchange import Exchange

HEAD_MOST: Final = 256 * 1024
"""Bytes of the headers of an answer. With more of them, a connection is closed: they cannot be read past."""

_TURN: Final = 32
"""Parts of answers that are read in one turn of the event loop: about a millisecond. So a server that sends thousands
of tiny parts at once delays the requests to others by no more than that at a time."""


class Connection(ABC):
    """A connection on a transport, to which the reader of the transport passes what arrives."""

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
        self._next_turn: asyncio.Handle | None = None
        """Reads what is left of what has arrived. Nothing more is received until then."""
        self._at_end: Callable[[], None] | None = None
        """Called when it is closed, and all that arrived before is read."""

    @property
    @abstractmethod
    def most(self) -> int:
        """How many requests it takes at a time."""

    @property
    @abstractmethod
    def running(self) -> int:
        """How many requests are under way."""

    @property
    def allows_none(self) -> bool:
        """Whether the server allows no request on it at the moment. It is not closed, and may allow some later."""
        return self.most == 0 and not self.running and not self.gone

    @property
    def window(self) -> int:
        """How many bytes of bodies it takes at a time; of HTTP/1.1, any number of bytes of one body."""
        return 0

    @abstractmethod
    def has_room(self, size: int) -> bool:
        """Return whether another request may be sent now. Close a connection that proves to be unusable.

        `size`: the bytes of its body.
        """

    @abstractmethod
    async def exchange(self, exchange: Exchange) -> Answer:
        """Send a request, and return its answer. It is under way as soon as this is called.

        Raises:
            Unsent: it can be sent again, on another connection.
            Disturbed: it can be sent again, on a connection of its own.
            RetryLater: no answer came, or none that is valid.
        """

    def received(self, data: bytes) -> None:
        """Take what has arrived."""
        if not self.gone:
            self._keep(data)
            self._read_on()

    def lost(self, error: Exception | None) -> None:
        """Take note that it is closed. `error`: None if the server, or this side, has closed it in the regular way."""
        self.gone = True
        self._at_end = partial(self._lost, error)
        self._read_on()

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

    @abstractmethod
    def _keep(self, data: bytes) -> None:
        """Keep what has arrived until it is read."""

    @abstractmethod
    def _read(self, most: int) -> bool:
        """Read up to so many parts of what has arrived. Return whether more is left."""

    def _read_on(self) -> None:
        """Read what has arrived, a part of it in each turn of the event loop."""
        if self._next_turn is None:
            self._take_turn()

    def _take_turn(self) -> None:
        self._next_turn = None
        if self._read(_TURN):
            self._next_turn = asyncio.get_running_loop().call_soon(self._take_turn)
        if not self._transport.is_closing():
            if self._next_turn is None:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()
        if self._next_turn is None and self._at_end is not None:
            self._at_end()

    def _lost(self, error: Exception | None) -> None:
        """Take note that nothing more can arrive. `error`: as `lost` has it."""
        self.ended.set()
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
