"""A TCP proxy between a client and Redis that can be slow, deaf, cut or reset on demand.

    async with Proxy("/tmp/x/redis.sock") as proxy:
        client = Redis(host=proxy.host, port=proxy.port)
        proxy.swallow("down")    # replies vanish, the link stays up: half-open
        ...
        proxy.heal()

"up" is from client to server, "down" from server to client. What is set holds for the links that are open and
for those to come, until `heal`. What was swallowed stays lost.
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
        self.accepted = 0  # links since the start, so that a test can tell that a client came again
        self.taken = dict.fromkeys(BOTH, 0)  # bytes since the start, whatever became of them
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
        """Hold all that comes from now on back for `seconds`, in the directions named, or both."""
        for direction in directions or BOTH:
            self._delay[direction] = seconds

    def swallow(self, *directions: Direction) -> None:
        """Accept and drop, the end of a link too: as when a router on the way has lost its state."""
        for direction in directions or BOTH:
            self._swallow[direction] = True

    def cut_after(self, count: int, direction: Direction) -> None:
        """Let `count` more bytes through, over all links, then reset the link that carried the last; once."""
        self._left[direction] = count

    def heal(self) -> None:
        """Forward at once and whole again. What a delay holds back already still comes when it was to."""
        self._delay = dict.fromkeys(BOTH, 0.0)
        self._swallow = dict.fromkeys(BOTH, False)
        self._left = dict.fromkeys(BOTH)

    def reset(self) -> None:
        """End all links with RST (a unix socket has none: there it is a close); new ones are accepted."""
        for end in list(self._ends):
            end.reset()

    async def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until `condition` holds; it is looked at whenever a link opens, ends or brings bytes.

        Raises:
            TimeoutError: it did not within `seconds`.
        """
        async with asyncio.timeout(seconds):
            while not condition():
                change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(change)
                await change

    def opened(self, end: "_End") -> None:
        """Take note of a new end; of a client's, open the other to the target."""
        self._ends.add(end)
        if end.direction == "up":
            self.accepted += 1
            task = asyncio.get_running_loop().create_task(self._open(end))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            task.add_done_callback(lambda _: self._tell())
        self._tell()

    def ended(self, end: "_End") -> None:
        """Take note that an end is closed."""
        self._ends.discard(end)
        self._tell()

    def admit(self, direction: Direction, data: bytes) -> tuple[bytes, bool]:
        """Count `data`; answer what of it passes, and whether the link is then cut."""
        self.taken[direction] += len(data)
        self._tell()
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
        """Tell whether this direction drops what it is given."""
        return self._swallow[direction]

    def lag(self, direction: Direction) -> float:
        """Answer the delay set for this direction, seconds."""
        return self._delay[direction]

    async def _open(self, client: "_End") -> None:
        loop = asyncio.get_running_loop()
        try:
            if isinstance(self.target, str):
                await loop.create_unix_connection(lambda: _End(self, "down", client), self.target)
            else:
                await loop.create_connection(lambda: _End(self, "down", client), *self.target)
        except OSError:  # no server there: the client gets what it would have got from the target, an end
            client.reset()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for change in waiting:
            if not change.done():
                change.set_result(None)


class _End(asyncio.Protocol):
    """One end of a link. What it receives waits in `held` for its time, then goes to the peer."""

    def __init__(self, proxy: Proxy, direction: Direction, peer: "_End | None" = None) -> None:
        self.direction: Direction = direction
        self._proxy = proxy
        self._peer = peer
        self._transport: asyncio.Transport | None = None
        # When, and what: bytes, or how the link ends. In order, however the delay is changed meanwhile.
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
        if data:
            self._hold(data)
        if cut:
            self._hold("reset")

    def connection_lost(self, exc: Exception | None) -> None:
        self._proxy.ended(self)
        if not self._proxy.is_deaf(self.direction):
            self._hold("close" if exc is None else "reset")

    def reset(self) -> None:
        """End this connection with RST."""
        if self._transport is None or self._transport.is_closing():
            return
        raw: socket.socket = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the other end was quicker
            # Linger on, for 0 s: close() then discards what is unsent and sends RST.
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
        """Give the peer what is due. While there is no peer yet, all is kept."""
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
