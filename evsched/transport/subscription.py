"""A connection that receives messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final, cast

from redis import exceptions

from evsched import forks
from evsched.errors import StoreDown, StoreError
from evsched.transport.address import Host, parse
from evsched.transport.connection import route
from evsched.transport.links import CONNECT, abort, descriptors, new_link, pack
from evsched.transport.redis_errors import MOVED, link_error

_MESSAGES: Final = (b"pmessage", b"message", b"smessage")
"""The first words of messages to a subscriber. Other replies confirm a subscription, or its end."""


_SLOT_GONE: Final = b"sunsubscribe"
"""The first word of a reply by which a node says that a slot has moved away. We never send this command ourselves."""


def _ignore() -> None:
    pass


class Subscription:
    """A connection subscribed to patterns and channels. It waits without a limit: its user must test that it lives."""

    def __init__(self, url: str, *, node: Host | None = None) -> None:
        address = parse(url)
        self._route = route(url, node=node)
        self._connection = new_link(address.scheme, **address.options, db=address.db)
        self._confirmations: deque[Callable[[], None]] = deque()
        """The callbacks for confirmations that are still to arrive."""
        self.rest = 0.0
        """Seconds to wait before each read, so that one read receives more messages."""
        forks.hold(self)

    def descriptors(self) -> Iterable[int]:
        """Return the descriptor of its socket: a forked child that held it would keep the connection open."""
        return descriptors(self._connection)

    async def open(self, patterns: Sequence[str], channels: Sequence[str], shard_channels: Sequence[str] = ()) -> None:
        """Connect and subscribe; returns when Redis has confirmed every subscription.

        Messages that come before the last confirmation are dropped: the user looks at Redis when this returns. Messages
        of `shard_channels` stay on the node of a cluster that owns their slot; elsewhere they are channels like others.

        Raises:
            StoreDown, StoreRefused
        """
        link, left = self._connection, len(patterns) + len(channels) + len(shard_channels)
        try:
            async with asyncio.timeout(2 * CONNECT):
                await self._route.connect(link)
                for command, names in (("PSUBSCRIBE", patterns), ("SUBSCRIBE", channels)):
                    if names:
                        await link.send_command(command, *names, check_health=False)
                for name in shard_channels:  # one each, because the channels of one command must be of one slot
                    await link.send_command("SSUBSCRIBE", name, check_health=False)
                while left:
                    message = cast(list[Any], await link.read_response())
                    left -= message[0] not in _MESSAGES
        except TimeoutError:
            self._route.lost()
            await self.close()
            raise StoreDown(f"no subscription within {2 * CONNECT:g} s", kind="timeout") from None
        except (exceptions.RedisError, OSError) as error:
            self._route.lost()
            await self.close()
            raise link_error(error, self._route.node) from None
        except StoreError:
            await self.close()
            raise

    async def messages(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Yield (channel, message) until the connection is closed.

        Raises:
            StoreDown: when the connection is closed.
        """
        received = 0
        async for message in self._received():
            if message[0] in _MESSAGES:
                yield message[-2], message[-1]
            elif message[0] == _SLOT_GONE:
                self._route.lost()
                await self.close()
                raise StoreDown("another node of the cluster has the slot of a channel now", kind=MOVED)
            else:
                self._confirmations.popleft()()
            received += 1
            if received % 64 == 0:
                # Messages in the parser's buffer are read without a pause: let other tasks of the loop run.
                await asyncio.sleep(0)

    async def _received(self) -> AsyncIterator[list[Any]]:
        """Yield messages and confirmations until the connection is closed."""
        link = self._connection
        # Data received together with a message comes from the parser: redis-py does much more for each message.
        parser = cast(Any, link)._parser._reader
        try:
            while True:
                if self.rest:
                    await asyncio.sleep(self.rest)
                message = cast(Any, await link.read_response())
                while isinstance(message, list):
                    yield cast(list[Any], message)
                    message = parser.gets()
                if isinstance(message, Exception):
                    raise message
        except (exceptions.RedisError, OSError) as error:
            self._route.lost()
            await self.close()
            raise link_error(error, self._route.node) from None

    def subscribe(self, patterns: Sequence[str], channels: Sequence[str], confirmed: Callable[[], None]) -> None:
        """Subscribe to more. `messages` calls `confirmed()` when Redis has confirmed all: later messages arrive."""
        self._change((("PSUBSCRIBE", *patterns), ("SUBSCRIBE", *channels)), confirmed)

    def unsubscribe(self, patterns: Sequence[str], channels: Sequence[str], confirmed: Callable[[], None]) -> None:
        """End some subscriptions. `messages` calls `confirmed()` after the last message that was on its way."""
        self._change((("PUNSUBSCRIBE", *patterns), ("UNSUBSCRIBE", *channels)), confirmed)

    def _change(self, commands: Sequence[tuple[str, ...]], confirmed: Callable[[], None]) -> None:
        """Send commands of a verb and names, except those without names; Redis confirms each name."""
        writer = cast(Any, self._connection)._writer
        if writer is None:
            return  # the reader notices that the connection is closed
        for words in commands:
            if len(words) > 1:
                writer.write(pack(words))
                self._confirmations.extend([_ignore] * (len(words) - 1))
        self._confirmations[-1] = confirmed

    def ping(self, answered: Callable[[], None]) -> None:
        """Test the connection: `messages` calls `answered()` when Redis answers."""
        self._change((("PING", ""),), answered)

    def cut(self) -> None:
        """Close the socket while a reader waits, which then raises StoreDown."""
        abort(self._connection)

    async def close(self) -> None:
        """Close the connection, without waiting for anything."""
        await self._connection.disconnect(nowait=True)
