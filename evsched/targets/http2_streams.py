"""The library h2, except that an answer that is not valid ends its stream alone (RFC 9113, 8.1.1).

h2 ends the connection, so one faulty endpoint would fail all requests to its host. What harms the state that all
streams share, such as the compression of headers, still ends the connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import h2.connection
from h2.connection import AllowedStreamIDs
from h2.errors import ErrorCodes
from h2.events import Event, ResponseReceived, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError, StreamClosedError
from h2.stream import H2Stream, StreamClosedBy, StreamState
from hpack.struct import Header
from hyperframe.frame import Frame

_WITHOUT_BODY: Final = (204, 304)
"""Answers that have no body, whatever their Content-Length says (RFC 9110, 8.6)."""


class Streams(h2.connection.H2Connection):
    """A connection whose streams are `_Stream`. An answer that is not valid is a `StreamReset` that is not remote."""

    def _begin_new_stream(self, stream_id: int, allowed_ids: AllowedStreamIDs) -> H2Stream:
        super()._begin_new_stream(stream_id, allowed_ids)
        stream = self.streams[stream_id] = _Stream(
            stream_id,
            config=self.config,
            inbound_window_size=self.local_settings.initial_window_size,
            outbound_window_size=self.remote_settings.initial_window_size,
        )
        stream.max_outbound_frame_size = self.max_outbound_frame_size
        return stream


class _Stream(H2Stream):
    """One request and its answer."""

    def receive_headers(
        self, headers: Iterable[Header], end_stream: bool, header_encoding: bool | str | None
    ) -> tuple[list[Frame], list[Event]]:
        """Take headers, or trailers."""
        expected = self._expected_content_length
        try:
            received = super().receive_headers(headers, end_stream, header_encoding)
            match received[1][0]:
                case ResponseReceived(headers=found):
                    if status(found or ()) in _WITHOUT_BODY:
                        self._expected_content_length = None
                case TrailersReceived():  # h2 forgets the length that the head has told
                    self._expected_content_length = expected
                case _:
                    pass
            if end_stream:
                self._track_content_length(0, end_stream=True)
        except StreamClosedError:
            raise
        except ProtocolError:
            raise self._reset() from None
        return received

    def receive_data(self, data: bytes, end_stream: bool, flow_control_len: int) -> tuple[list[Frame], list[Event]]:
        """Take a part of a body."""
        try:
            return super().receive_data(data, end_stream, flow_control_len)
        except StreamClosedError:
            raise
        except ProtocolError:
            raise self._reset() from None

    def _reset(self) -> StreamClosedError:
        """Close the stream, and return the error for which h2 resets it."""
        self.state_machine.state = StreamState.CLOSED
        self.state_machine.stream_closed_by = StreamClosedBy.SEND_RST_STREAM
        return _MalformedError(self.stream_id)


class _MalformedError(StreamClosedError):
    """h2 resets the stream, and gives back the bytes that a body has taken of the window of the connection."""

    def __init__(self, stream_id: int) -> None:
        super().__init__(stream_id)
        self.error_code = ErrorCodes.PROTOCOL_ERROR
        self._events = [StreamReset(stream_id=stream_id, error_code=ErrorCodes.PROTOCOL_ERROR, remote_reset=False)]


def status(headers: Iterable[Header]) -> int:
    """Return the status of an answer.

    Raises:
        ProtocolError: it is not valid.
    """
    found = next((bytes(value) for name, value in headers if name == b":status"), b"")
    if len(found) != 3 or not found.isdigit() or found < b"200":
        raise ProtocolError("a status that is not valid")
    return int(found)
