"""A connection of HTTP/1.1, for one request at a time.

An answer is told from the next one by its place alone. So a connection on which anything arrived that nobody asked for
is not used again: the next job would get it as its answer.
"""

from __future__ import annotations

import asyncio
import select
from typing import Final

import h11

from evsched.targets.answer import Answer
from evsched.targets.connection import HEAD_MOST, Connection
from evsched.targets.exchange import CLOSED, NOT_HTTP, TOO_LARGE, Exchange, Unsent

_TOO_LARGE: Final = 431
"""The status by which h11 says that a head has more than `HEAD_MOST` bytes."""


class Http1(Connection):
    """A connection of HTTP/1.1."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MOST)
        self._current: Exchange | None = None
        self._used = False
        self._reused = False
        """The request under way is not the first one."""
        self._answering = False
        """Something has arrived since the request was sent."""
        self._otherwise = NOT_HTTP
        """Why a request fails if what has arrived is not valid."""
        self._arrivals = select.poll()
        self._arrivals.register(transport.get_extra_info("socket"), select.POLLIN)

    @property
    def most(self) -> int:
        """One."""
        return 1

    @property
    def running(self) -> int:
        """One, or none."""
        return int(self._current is not None)

    def has_room(self, size: int) -> bool:
        """Return whether it is idle. Close it if something has arrived: an end, or an answer that nobody asked for."""
        if self.gone or self._current is not None:
            return False
        if self._arrivals.poll(0):
            self.close()
            return False
        return True

    async def ready(self) -> None:
        """Return at once: nothing has to arrive first."""

    async def exchange(self, exchange: Exchange) -> Answer:
        """See `Connection`."""
        if self.gone:
            raise Unsent
        self._current, self._reused, self._used = exchange, self._used, True
        self._answering = False
        request = exchange.request
        head = h11.Request(
            method=request.method,
            target=request.target.path,
            headers=[("host", request.target.authority), *exchange.headers.items()],
        )
        parts = [self._h11.send(head), self._h11.send(h11.Data(data=request.content)) if request.content else b""]
        self._transport.write(b"".join([part or b"" for part in (*parts, self._h11.send(h11.EndOfMessage()))]))
        self._read_on()
        try:
            return await exchange.answer
        finally:
            if self._current is exchange:  # left before the answer was there
                self._current = None
                self.abort()

    def received(self, data: bytes) -> None:
        """See `Connection`."""
        if self._current is None and self._used:
            self.close()
            return
        super().received(data)

    def _keep(self, data: bytes) -> None:
        self._answering = True
        self._h11.receive_data(data)

    def _lost(self, error: Exception | None) -> None:
        """See `Connection`. A body without a length ends with the connection.

        Many servers close a connection that was idle for a while. A request that crosses this was not looked at.
        """
        if self._current is not None and self._reused and not self._answering:
            self._current.disturb(CLOSED)
            self._leave()
        if self._current is not None and error is None:
            self._otherwise = CLOSED
            self._h11.receive_data(b"")
            self._read(2)  # the end, if it is one, comes after a last part of the body
        self._fail(CLOSED)
        super()._lost(error)

    def _read(self, most: int) -> bool:
        """See `Connection`."""
        left = most
        while (current := self._current) is not None:
            if left <= 0:
                return True
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                self._fail(TOO_LARGE if error.error_status_hint == _TOO_LARGE else self._otherwise)
                return False
            if not isinstance(event, h11.Event) or isinstance(event, h11.ConnectionClosed):  # nothing is left
                if left == most and not current.count(1):
                    self._leave()
                return False
            parts = _parts(event)
            left -= parts
            if current.count(parts):
                self._take(current, event)
            else:
                self._leave()
        return False

    def _take(self, current: Exchange, event: h11.Event) -> None:
        match event:
            case h11.Response(status_code=status, headers=headers):
                names = {name for name, _ in headers}
                if sum(len(name) + len(value) for name, value in headers) > HEAD_MOST:  # h11 has the rest of the bound
                    self._fail(TOO_LARGE)
                elif {b"content-length", b"transfer-encoding"} <= names:  # RFC 9112, 6.3: likely an attack
                    self._fail(NOT_HTTP)
                else:
                    current.begin(status, headers)
            case h11.Data(data=data):
                if not current.add(bytes(data)):
                    self._leave()
            case h11.EndOfMessage():
                self._end(current)
            case _:
                pass

    def _leave(self) -> None:
        """Read no more of an answer."""
        self._current = None
        self.abort()

    def _end(self, exchange: Exchange) -> None:
        self._current = None
        exchange.end()
        surplus, _ = self._h11.trailing_data
        kept = self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE
        if kept and not surplus and not self._transport.get_write_buffer_size():
            self._h11.start_next_cycle()
            self._rest()
        else:
            self.close()

    def _fail(self, why: str) -> None:
        if self._current is not None:
            self._current.fail(why)
            self._leave()


def _parts(event: h11.Event) -> int:
    """Return how many parts of an answer an event counts for: each header is one."""
    return 1 + len(event.headers) if isinstance(event, h11.InformationalResponse | h11.Response) else 1
