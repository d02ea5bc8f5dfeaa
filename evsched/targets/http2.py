"""A connection of HTTP/2, for many requests at a time, on the library h2.

A request is sent when the server has room for it (`has_room`); others wait in the pool, which can open another
connection. A request that is left, and one whose answer is not valid, is taken back from the server (RST_STREAM), and
the others go on. If the connection ends, those that are not to blame are disturbed: they can be sent again.
"""

from __future__ import annotations

import asyncio
from typing import Final, Literal

import h2.events
from h2.config import H2Configuration
from h2.errors import ErrorCodes
from h2.exceptions import DenialOfServiceError, H2Error, NoAvailableStreamIDError, ProtocolError
from h2.settings import SettingCodes, Settings

from evsched.targets.answer import Answer
from evsched.targets.connection import HEAD_MOST, Connection
from evsched.targets.exchange import CLOSED, NOT_HTTP, TOO_LARGE, TOO_MANY, Exchange, Unsent
from evsched.targets.http2_bodies import Bodies
from evsched.targets.http2_streams import Streams, status

STREAMS: Final = 100
"""Requests on one connection, if the server sets no lower limit. It need not set any (RFC 9113, 6.5.2)."""

_WINDOW: Final = 2**24
"""Bytes that may arrive for all requests before we confirm them. Each request may keep `answer.BODY_MOST` of them."""

_STRAYS_MOST: Final = 10_000
"""Parts that may arrive and belong to no request. When a hundred answers are cut, each may have 64 KiB on their way."""

_STRAYS_EACH: Final = 128
"""Parts that each request makes up for: 64 KiB of its answer, in frames of 512 bytes."""

_DATA: Final = 0
_GOAWAY: Final = 7
_WINDOW_UPDATE: Final = 8
_HEADER: Final = 9
"""Bytes of the header of a frame: 3 are its length, 1 its type (RFC 9113, 4.1)."""
_FRAME_MOST: Final = 2**14
"""Bytes of a frame, unless we allow more."""
_PART: Final = 128
"""Bytes of a frame that count for one part, if it is not a part of a body: a frame of headers or of settings costs the
more time the longer it is."""


class _TooManyStraysError(Exception):
    """More than `_STRAYS_MOST` parts belong to no request."""


class Http2(Connection):
    """A connection of HTTP/2."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._h2 = Streams(H2Configuration(client_side=True))
        self._h2.local_settings = Settings(
            client=True, initial_values={SettingCodes.ENABLE_PUSH: 0, SettingCodes.MAX_HEADER_LIST_SIZE: HEAD_MOST}
        )
        self._h2.decoder.max_header_list_size = HEAD_MOST  # h2 sets it when the server confirms the settings
        # Some servers refuse this one, which h2 sends unless told otherwise.
        del self._h2.local_settings[SettingCodes.ENABLE_CONNECT_PROTOCOL]
        self._arrived = bytearray()
        """The beginning of a frame."""
        self._streams = dict[int, Exchange]()
        self._bodies = Bodies(self._h2)
        self._requests = 0
        """How many were begun."""
        self._frame_of = 0
        """The stream to which the frame belongs that is being read; 0 = to none."""
        self._settled = asyncio.Event()
        """The server's settings have come, with its limit."""
        self._strays = 0
        """Parts that have arrived and belong to no request, as far as requests have not made up for them."""
        self._leaving = False
        """The requests that the server has are answered, and no others are sent."""
        self._doubtful = False
        """Nothing has arrived since a request was left without its answer: the server may have gone."""
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WINDOW)
        self._flush()

    @property
    def most(self) -> int:
        """How many requests it takes at a time."""
        return min(STREAMS, self._h2.remote_settings.max_concurrent_streams)

    @property
    def running(self) -> int:
        """How many requests are under way."""
        return len(self._streams)

    @property
    def window(self) -> int:
        """See `Connection`."""
        return self._bodies.window

    def has_room(self, size: int) -> bool:
        """See `Connection`."""
        if self.gone or self._leaving or self._doubtful or self._alone or len(self._streams) >= self.most:
            return False
        return not size or self._bodies.has_room(size, unused=not self._streams)

    @property
    def _alone(self) -> bool:
        return any(exchange.alone for exchange in self._streams.values())

    async def ready(self) -> None:
        """Wait for the server's settings: more requests than it allows would be refused."""
        await self._settled.wait()

    async def exchange(self, exchange: Exchange) -> Answer:
        """See `Connection`."""
        if not self.has_room(0):
            raise Unsent
        stream = self._begin(exchange)
        try:
            return await exchange.answer
        finally:
            if stream in self._streams:  # left before the answer was there
                self._doubtful = True
                self._h2.ping(bytes(8))
                self._end(stream)
                self._flush()

    def _keep(self, data: bytes) -> None:
        self._doubtful = False
        self._arrived += data

    def _read(self, most: int) -> bool:
        """See `Connection`."""
        try:
            left = most
            while left > 0 and (frame := self._next_frame()):
                left -= self._count(frame)
                if frame[3] == _GOAWAY:
                    self._leave(int.from_bytes(frame[_HEADER : _HEADER + 4]) & 0x7FFFFFFF)
                elif frame[3] == _WINDOW_UPDATE and frame[_HEADER:] == bytes(4) and self._frame_of:
                    self._reject(self._frame_of)  # h2 would end the connection
                else:
                    for event in self._h2.receive_data(frame):
                        self._take(event)
            self._bodies.send()
        except _TooManyStraysError:
            self._h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            return self._break(TOO_MANY)
        except DenialOfServiceError:
            return self._break(TOO_LARGE)
        except H2Error:
            return self._break(NOT_HTTP)
        self._flush()
        self.changed(self)
        return left <= 0

    def _lost(self, error: Exception | None) -> None:
        """See `Connection`."""
        self._fail(CLOSED, 0)
        super()._lost(error)

    def close(self) -> None:
        """See `Connection`."""
        if not self.gone:
            self._h2.close_connection()
            self._flush()
        super().close()

    def _begin(self, exchange: Exchange) -> int:
        request = exchange.request
        target = request.target
        try:
            stream = self._h2.get_next_available_stream_id()
        except NoAvailableStreamIDError:  # after 2 ** 30 requests
            self._leaving = True
            raise Unsent from None
        named = {":method": request.method, ":authority": target.authority, ":scheme": target.scheme}
        headers = [*named.items(), (":path", target.path), *exchange.headers.items()]
        self._h2.send_headers(stream, headers, end_stream=not request.content)
        self._streams[stream] = exchange
        self._requests += 1
        self._strays = max(0, self._strays - _STRAYS_EACH)
        if request.content:
            self._bodies.begin(stream, request.content)
        self._flush()
        return stream

    def _next_frame(self) -> bytes:
        """Return the next frame, or nothing if it has not arrived as a whole."""
        if len(self._arrived) < _HEADER:
            return b""
        length = int.from_bytes(self._arrived[:3])
        self._frame_of = int.from_bytes(self._arrived[5:_HEADER]) & 0x7FFFFFFF
        if length > _FRAME_MOST:
            raise ProtocolError("a frame that is too long")
        end = _HEADER + length
        if len(self._arrived) < end:
            return b""
        frame = bytes(self._arrived[:end])
        del self._arrived[:end]
        return frame

    def _count(self, frame: bytes) -> int:
        """Count a frame for the request to which it belongs. Return how many parts it counts for.

        Raises:
            _TooManyStraysError: too many belong to none.
        """
        parts = 1 if frame[3] == _DATA else 1 + (len(frame) - _HEADER) // _PART
        stream = self._frame_of
        if stream not in self._streams:
            self._strays += parts
            if self._strays > _STRAYS_MOST:
                raise _TooManyStraysError
        elif not self._streams[stream].count(parts):
            self._end(stream)
        return parts

    def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RemoteSettingsChanged():
                self._settled.set()
            case h2.events.ResponseReceived(stream_id=int(stream), headers=headers) if stream in self._streams:
                found = [(bytes(name), bytes(value)) for name, value in headers or ()]
                self._streams[stream].begin(status(found), [one for one in found if one[0][:1] != b":"])
            case h2.events.DataReceived(stream_id=int(stream), data=data, flow_controlled_length=length):
                self._h2.acknowledge_received_data(length or 0, stream)
                if stream in self._streams and not self._streams[stream].add(data or b""):
                    self._end(stream)
            case h2.events.StreamEnded(stream_id=int(stream)) if stream in self._streams:
                self._streams[stream].end()
                # A body that the answer did not wait for is not sent to its end.
                self._end(stream, reset=ErrorCodes.CANCEL if stream in self._bodies else None)
            case h2.events.StreamReset(stream_id=int(stream), error_code=code) if stream in self._streams:
                if not event.remote_reset:  # by h2, because of an answer that is not valid
                    self._streams[stream].reject(NOT_HTTP)
                elif code == ErrorCodes.REFUSED_STREAM:
                    self._streams[stream].refuse()
                else:
                    self._streams[stream].fail(f"reset the request before it had answered: {_error(code)}")
                self._end(stream, reset=None)
            case _:
                pass

    def _leave(self, last: int) -> None:
        """Take note of GOAWAY: the server has not looked at requests after the stream `last`, and answers the others.

        h2 does not get this frame, because it would read nothing after it.
        """
        self._leaving = True
        for stream in [stream for stream in self._streams if stream > last]:
            self._streams[stream].refuse()
            self._end(stream, reset=None)
        if not self._streams:
            self.close()

    def _reject(self, stream: int) -> None:
        """End a request whose stream is not valid."""
        if stream in self._streams:
            self._streams[stream].reject(NOT_HTTP)
            self._end(stream, reset=ErrorCodes.PROTOCOL_ERROR)

    def _end(self, stream: int, *, reset: ErrorCodes | None = ErrorCodes.CANCEL) -> None:
        """Forget a request. `reset`: tell the server that we do, and why."""
        del self._streams[stream]
        self._bodies.forget(stream)
        if reset is not None and not self.gone:
            self._h2.reset_stream(stream, reset)
        if not self._streams and (self._leaving or self._doubtful):
            self.close()
        self._rest()

    def _break(self, why: str) -> Literal[False]:
        """Close the connection, because of what has arrived on it. Return that nothing is left to read."""
        self._arrived.clear()
        self._fail(why, self._frame_of)
        self._flush()
        self.abort()
        return False

    def _fail(self, why: str, guilty: int) -> None:
        """End all requests. `guilty`: the stream by whose fault; 0 = it is not known."""
        self._leaving = True
        self._settled.set()
        for stream, exchange in self._streams.items():
            if stream == guilty or self._requests == 1:
                exchange.fail(why)
            else:
                exchange.disturb(why)
        self._streams.clear()
        self._bodies.clear()

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if not self.gone:  # what arrived before its end is read after it
            self._transport.write(data)


def _error(code: ErrorCodes | int | None) -> str:
    """Return the name of an error of HTTP/2."""
    return code.name if isinstance(code, ErrorCodes) else f"error {code}"
