"""An AMQP broker: one connection for the worker, over which all its jobs publish, each until the broker confirms.

The connection is opened on first use, and reconnects by itself. What was not confirmed when it broke is sent again by
the next attempt of its job, so the broker may get it twice, but never not at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import aio_pika
from aio_pika import exceptions
from aio_pika.abc import AbstractRobustConnection
from aiormq.abc import AbstractChannel

from evsched.jobs.steering import RetryLater

CONFIRM_WITHIN: Final = 10.0
"""Seconds for a message: to connect, if there is no connection, and for the broker to confirm it."""


T = TypeVar("T")


class Broker:
    """The connection to a broker. `name`: as the settings call it, for reasons, which never have the URL."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url
        self._password = unquote(urlsplit(url).password or "")
        self._connecting: asyncio.Task[AbstractRobustConnection] | None = None
        self._opening: dict[str, asyncio.Task[AbstractChannel]] = {}
        """The channels, by exchange: a broker closes the channel of a message to an exchange that it does not have."""
        self._sending = set[str]()
        """The ids of the messages that are under way: it is by their ids that returned ones are told apart."""

    async def publish(self, exchange: str, routing_key: str, message_id: str, body: bytes) -> None:
        """Publish a message, and return when the broker has it on a queue. `exchange`: "" = to the queue of that key.

        Raises:
            RetryLater: the broker cannot be reached, does not confirm in time, or has no queue for the message.
        """
        if message_id in self._sending:
            raise RetryLater(None, "a job of the same id in another queue is publishing")
        self._sending.add(message_id)
        try:
            async with asyncio.timeout(CONFIRM_WITHIN):
                await self._publish(exchange, routing_key, message_id, body)
        except TimeoutError:
            raise self._failed(f"did not confirm the message within {CONFIRM_WITHIN:g} s") from None
        except exceptions.PublishError:
            where = f"there is no queue {routing_key!r:.200}"
            if exchange:
                where = f"no queue is bound to exchange {exchange!r:.200} for the routing key {routing_key!r:.200}"
            raise self._failed(f"could not route the message: {where}") from None
        except exceptions.DeliveryError:
            raise self._failed("refused the message: the queue may be full") from None
        except asyncio.CancelledError:
            # A connection that breaks cancels those who wait for it.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._failed("lost the connection before it confirmed the message") from None
        except (*exceptions.CONNECTION_EXCEPTIONS, ValueError) as error:
            raise self._failed(f"failed: {self._text(error)}") from None
        finally:
            self._sending.discard(message_id)
            self._drop_closed()

    async def close(self) -> None:
        """Close the connection, and with it the channels."""
        connecting, self._connecting = self._connecting, None
        if connecting is None:
            return
        connecting.cancel()
        await asyncio.wait([connecting])
        if not connecting.cancelled() and connecting.exception() is None:
            await connecting.result().close()

    async def _publish(self, exchange: str, routing_key: str, message_id: str, body: bytes) -> None:
        channel = await self._channel(exchange)
        message = aio_pika.Message(
            body,
            message_id=message_id,
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        await channel.basic_publish(
            body, exchange=exchange, routing_key=routing_key, properties=message.properties, mandatory=True
        )

    # All who wait for the connection, or for a channel, share one attempt to open it.

    async def _channel(self, exchange: str) -> AbstractChannel:
        connection = await self._connection()
        await connection.ready()
        opening = self._opening.get(exchange)
        if opening is None or _has_failed(opening) or (opening.done() and opening.result().is_closed):
            opening = self._opening[exchange] = _share(_open_channel(connection))
        return await asyncio.shield(opening)

    async def _connection(self) -> AbstractRobustConnection:
        if self._connecting is None or _has_failed(self._connecting):
            self._connecting = _share(aio_pika.connect_robust(self._url, timeout=CONFIRM_WITHIN))
        return await asyncio.shield(self._connecting)

    def _drop_closed(self) -> None:
        """Forget channels that are closed: payloads may name any number of exchanges that do not exist."""
        self._opening = {
            name: opening
            for name, opening in self._opening.items()
            if not opening.done() or not (_has_failed(opening) or opening.result().is_closed)
        }

    def _failed(self, why: str) -> RetryLater:
        return RetryLater(None, f"the broker {self._name} {why}")

    def _text(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}"
        return text.replace(self._password, "***") if self._password else text


async def _open_channel(connection: AbstractRobustConnection) -> AbstractChannel:
    transport = connection.transport
    if transport is None:
        raise ConnectionError("the connection is lost")
    return await transport.connection.channel(publisher_confirms=True, on_return_raises=True)


def _share(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task for all jobs: the log must not name the one that is the first to need it."""
    task = asyncio.get_running_loop().create_task(work, context=Context())
    task.add_done_callback(_has_failed)
    return task


def _has_failed(task: asyncio.Task[Any]) -> bool:
    """Return whether a task has ended without a result. Its error counts as seen, so that asyncio does not log it."""
    return task.done() and (task.cancelled() or task.exception() is not None)
