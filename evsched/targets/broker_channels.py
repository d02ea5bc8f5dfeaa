"""The channels of a connection to an AMQP broker: each has at most one message under way.

A broker answers a message that it does not take by closing the channel: the exchange is missing, the user may not write
there, or the message is too large. What else was under way on the channel is lost with it, and what is published on it
afterwards closes the connection. So a message has its channel alone until it is confirmed or refused. A failure that it
causes is its own then, and reaches no other message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from aiormq.abc import AbstractChannel
from aiormq.exceptions import DeliveryError

from evsched.targets.broker_transport import BrokerConnection
from evsched.targets.shared_work import has_failed, share

_MOST: Final = 64
"""Channels of a connection, so messages that are under way at a time. Each is a process in RabbitMQ, which allows
2,047 channels unless it is configured otherwise."""


class _Slot:
    """Room for one channel, of a number that no other has."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.channel: AbstractChannel | None = None


class Channels:
    """The channels of one connection, which are opened on first use."""

    def __init__(self, connection: BrokerConnection) -> None:
        self._connection = connection
        allowed = connection.connection_tune.channel_max or _MOST
        self._free = asyncio.LifoQueue[_Slot]()
        for number in range(min(_MOST, allowed), 0, -1):
            self._free.put_nowait(_Slot(number))
        self._closing = set[asyncio.Task[Any]]()

    @asynccontextmanager
    async def take(self) -> AsyncGenerator[AbstractChannel]:
        """Yield an open channel for one message. Wait for one if all have a message under way."""
        slot = await self._free.get()
        channel = await self._open(slot)
        reusable = False
        try:
            yield channel
            reusable = True
        except DeliveryError:  # the message was returned or not accepted; the channel is as before
            reusable = True
            raise
        finally:
            if reusable:
                self._free.put_nowait(slot)
            else:
                # The message may still be under way, and have the broker close the channel later.
                closing = share(self._close(slot, channel))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def _open(self, slot: _Slot) -> AbstractChannel:
        if slot.channel is not None and not slot.channel.is_closed:
            return slot.channel
        opening: asyncio.Task[AbstractChannel] = share(
            self._connection.channel(slot.number, publisher_confirms=True, on_return_raises=True)
        )
        try:
            channel = await asyncio.shield(opening)
        except BaseException:
            opening.add_done_callback(lambda _: self._opened(slot, opening))
            raise
        slot.channel = channel
        return channel

    def _opened(self, slot: _Slot, opening: asyncio.Task[AbstractChannel]) -> None:
        """Put back a channel whose message did not wait until it was open."""
        slot.channel = None if has_failed(opening) else opening.result()
        self._free.put_nowait(slot)

    async def _close(self, slot: _Slot, channel: AbstractChannel) -> None:
        """Close a channel, and then allow another of its number."""
        await channel.close()
        slot.channel = None
        self._free.put_nowait(slot)
