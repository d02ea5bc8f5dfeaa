"""A TCP proxy between a client and Redis that can be slow, deaf, cut or reset on demand.

    async with Proxy("/tmp/x/redis.sock") as proxy:
        client = Redis(host=proxy.host, port=proxy.port)
        proxy.swallow("down")    # replies vanish, the link stays up: half-open
        ...
        proxy.heal()

"up" is from client to server, "down" from server to client. A setting applies to open and to new links, until `heal`.
What was swallowed stays lost.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self, cast

from tests.support.patience import PATIENCE

Direction = Literal["up", "down"]
BOTH: tuple[Direction, Direction] = ("up", "down")


class Proxy:
    """Listen on a free port of 127.0.0.1 and forward to `target`: (host, port), or the path of a unix socket.

    Without back-pressure: what one end sends faster than the other reads is held in memory here.
    """

    host = "127.0.0.1"

    def __init__(self, target: str | tuple[str, int]) -> None:
        self.target = target
        self.port = 0
        self.accepted = 0  # links since the start, so that a test can see that a client has reconnected
        self.received = dict.fromkeys(BOTH, 0)  # bytes since the start, forwarded or not
        self._delay = dict.fromkeys(BOTH, 0.0)
        self._swallow = dict.fromkeys(BOTH, False)
        self._left: dict[Direction, int | None] = dict.fromkeys(BOTH)  # bytes until the cut
        self._ends: set[_End] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: list[asyncio.Future[None]] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _End(self, "up"), self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._opening:
            task.cancel()
        self.reset()
        await self.until(lambda: not self._ends and not self._opening)
        await self._server.wait_closed()

    @property
    def links(self) -> int:
        """How many connections clients hold open now."""
        return sum(end.direction == "up" for end in self._ends)

    def delay(self, seconds: float, *directions: Direction) -> None:
        """Delay all data from now on by `seconds`, in the given directions, or in both."""
        for direction in directions or BOTH:
            self._delay[direction] = seconds

    def swallow(self, *directions: Direction) -> None:
        """Accept data and drop it, and drop the close of a link too, as a router does that has lost its state."""
        for direction in directions or BOTH:
            self._swallow[direction] = True

    def forget(self) -> None:
        """Drop all that comes over the open links from now on, also their close; new links are forwarded."""
        for end in self._ends:
            end.forgotten = True

    def cut_after(self, count: int, direction: Direction) -> None:
        """Let `count` more bytes through, over all links, then reset the link that carried the last; once."""
        self._left[direction] = count

    def heal(self) -> None:
        """Forward everything at once again. Data that is already delayed still arrives at its time."""
        self._delay = dict.fromkeys(BOTH, 0.0)
        self._swallow = dict.fromkeys(BOTH, False)
        self._left = dict.fromkeys(BOTH)

    def reset(self) -> None:
        """End all links with RST, or with a close on a unix socket, which has no RST; new links are accepted."""
        for end in list(self._ends):
            end.reset()

    async def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until `condition` holds; it is checked whenever a link opens, ends or receives bytes.

        Raises:
            TimeoutError: it did not hold within `seconds`.
        """
        async with asyncio.timeout(seconds):
            while not condition():
                change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(change)
                await change

    def opened(self, end: "_End") -> None:
        """Register a new end; for a client's end, also connect to the target."""
        self._ends.add(end)
        if end.direction == "up":
            self.accepted += 1
            task = asyncio.get_running_loop().create_task(self._open(end))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            task.add_done_callback(lambda _: self._wake())
        self._wake()

    def ended(self, end: "_End") -> None:
        """Remove an end that was closed."""
        self._ends.discard(end)
        self._wake()

    def admit(self, direction: Direction, data: bytes) -> tuple[bytes, bool]:
        """Count `data`; return the part of it that passes, and whether the link is cut after that."""
        self.received[direction] += len(data)
        self._wake()
        if self._swallow[direction]:
            return b"", False
        left = self._left[direction]
        if left is None:
            return data, False
        if len(data) < left:
            self._left[direction] = left - len(data)
            return data, False
        self._left[direction] = None
        return data[:left], True

    def is_deaf(self, direction: Direction) -> bool:
        """Return whether this direction drops its data."""
        return self._swallow[direction]

    def lag(self, direction: Direction) -> float:
        """Return the delay of this direction, in seconds."""
        return self._delay[direction]

    async def _open(self, client: "_End") -> None:
        loop = asyncio.get_running_loop()
        try:
            if isinstance(self.target, str):
                await loop.create_unix_connection(lambda: _End(self, "down", client), self.target)
            else:
                await loop.create_connection(lambda: _End(self, "down", client), *self.target)
        except OSError:  # no server there: end the client's link, as the target would have
            client.reset()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)


class _End(asyncio.Protocol):
    """One end of a link. What it receives waits in `_held` until its time, and then goes to the peer."""

    def __init__(self, proxy: Proxy, direction: Direction, peer: "_End | None" = None) -> None:
        self.direction: Direction = direction
        self.forgotten = False
        self._proxy = proxy
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        # The time and the bytes, or how the link ends. They stay in order even if the delay changes meanwhile.
        self._held: deque[tuple[float, bytes | Literal["close", "reset"]]] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._proxy.opened(self)
        peer = self._peer
        if peer is not None:
            peer._peer = self
            peer._pass(asyncio.get_running_loop().time())

    def data_received(self, data: bytes) -> None:
        data, cut = self._proxy.admit(self.direction, data)
        if data and not self.forgotten:
            self._hold(data)
        if cut:
            self._hold("reset")

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxy.ended(self)
        if not (self.forgotten or self._proxy.is_deaf(self.direction)):
            self._hold("close" if exc is None else "reset")

    def reset(self) -> None:
        """End this connection with RST."""
        if self._transport is None or self._transport.is_closing():
            return
        raw: socket.socket = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the other end closed it first
            # With SO_LINGER of 0 s, close() discards unsent data and sends RST.
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def _hold(self, what: bytes | Literal["close", "reset"]) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        when = max(now + self._proxy.lag(self.direction), self._held[-1][0] if self._held else now)
        self._held.append((when, what))
        if when <= now:
            self._pass(now)
        else:
            loop.call_at(when, self._pass, when)

    def _pass(self, now: float) -> None:
        """Give the peer the data whose time has come. While there is no peer yet, keep all."""
        peer = self._peer
        if peer is None or peer._transport is None:
            return
        while self._held and self._held[0][0] <= now:
            _, what = self._held.popleft()
            if what == "reset":
                peer.reset()
                self.reset()
            elif what == "close":
                peer._transport.close()
            else:
                peer._transport.write(what)
