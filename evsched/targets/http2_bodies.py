"""The bodies of requests on a connection of HTTP/2, as far as they are not sent yet.

They share a window: the bytes that the server takes before it has confirmed some. Endpoints that do not read their
bodies use it up, and then no other request on the connection could send one. So a body is begun only where all of it
can be sent at once, and one that fits nowhere is begun on a connection without requests.
"""

from __future__ import annotations

from h2.connection import H2Connection


class Bodies:
    """The bodies on one connection."""

    def __init__(self, http2: H2Connection) -> None:
        self._h2 = http2
        self._left = dict[int, memoryview]()
        """What is not sent yet, by stream."""
        self._most = 0
        """The largest window that was seen: most servers enlarge it once, at the beginning."""

    def __contains__(self, stream: int) -> bool:
        return stream in self._left

    @property
    def window(self) -> int:
        """The bytes that the server would take if it had confirmed all."""
        self._most = max(self._most, self._h2.outbound_flow_control_window)
        return self._most

    def has_room(self, size: int, *, unused: bool) -> bool:
        """Return whether a body may be begun. `unused`: no request is under way.

        One that fits into no window is begun on an unused connection, if the server has confirmed most of what it got.
        """
        window = self._h2.outbound_flow_control_window
        if unused and size > self.window and window * 2 >= self.window:
            return True
        return size <= window - sum(map(len, self._left.values()))

    def begin(self, stream: int, body: bytes) -> None:
        """Send a body, as much of it as the server takes now."""
        self._left[stream] = memoryview(body)
        self.send()

    def forget(self, stream: int) -> None:
        """Send no more of a body."""
        self._left.pop(stream, None)

    def clear(self) -> None:
        """Send no more of any body."""
        self._left.clear()

    def send(self) -> None:
        """Send as much of the bodies as the server takes now."""
        for stream, body in list(self._left.items()):
            left = body
            while left and (room := self._room(stream)) > 0:
                self._h2.send_data(stream, bytes(left[:room]), end_stream=len(left) <= room)
                left = left[room:]
            if left:
                self._left[stream] = left
            else:
                del self._left[stream]

    def _room(self, stream: int) -> int:
        return min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size)
