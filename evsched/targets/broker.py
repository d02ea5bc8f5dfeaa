"""An AMQP broker: one connection for the worker, over which all its jobs publish, each until the broker confirms.

The connection is opened on first use, and reconnects by itself. What was not confirmed when it broke is sent again by
the next attempt of its job, so the broker may get it twice, but never not at all.

A broker that is low on memory or disk reads no more from the connection, says so (connection.blocked), and reads the
rest later. If jobs published meanwhile, each message would arrive once for each attempt. So nothing is published, and
the jobs are put off. A message that was published just before stays under way, and the next run of its job waits for
that one, if the same worker gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

import aio_pika
from aio_pika import exceptions
from aiormq.abc import AbstractChannel
from msgspec import Struct

from evsched.jobs.steering import RetryLater, Snooze
from evsched.targets.broker_transport import BrokerConnection
from evsched.transport.backoff import PutOff

CONFIRM_WITHIN: Final = 10.0
"""Seconds for a message: to connect, if there is no connection, and for the broker to confirm it."""

_LOOK: Final = 0.5
"""Seconds until a run whose message is not confirmed looks whether the connection is blocked."""

_KEPT: Final = 60.0
"""Seconds for which the end of a message that a run has left under way is kept: its job is put off for less."""

_CLOSE_WITHIN: Final = 3.0
"""Seconds to close the connection, before that is done by force."""

T = TypeVar("T")


class _Message(Struct, frozen=True):
    job: str
    """The id of its job."""
    key: str
    """The same for all attempts of the job, and for no other job."""
    exchange: str
    routing_key: str
    body: bytes


class _Sending:
    """A message that is under way."""

    def __init__(self, message: _Message, publish: Callable[[_Sending], Coroutine[Any, Any, None]]) -> None:
        self.message = message
        self.published = False
        """It may be on its way to the broker: it cannot be called back."""
        self.left = False
        """The run has ended that published it."""
        self.work = _share(publish(self))


class Broker:
    """The connection to a broker. `name`: as the settings call it, for reasons, which never have the URL."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url
        self._password = unquote(urlsplit(url).password or "")
        self._connecting: asyncio.Task[BrokerConnection] | None = None
        self._opening: dict[str, asyncio.Task[AbstractChannel]] = {}
        """The channels, by exchange: a broker closes the channel of a message to an exchange that it does not have."""
        self._sending: dict[str, _Sending] = {}
        """The messages under way, by the ids of their jobs: it is by their ids that returned ones are told apart."""
        self._put_off = PutOff()

    async def publish(self, exchange: str, routing_key: str, job: str, key: str, body: bytes) -> None:
        """Publish the message of a job, and return when the broker has it on a queue.

        `exchange`: "" = to the queue of that routing key. `key`: the same for all attempts of the job, and for no other
        job.

        Raises:
            RetryLater: the broker cannot be reached, does not confirm in time, or has no queue for the message.
            Snooze: the broker takes no messages now.
        """
        sending, leaves = self._begin(_Message(job, key, exchange, routing_key, body)), False
        try:
            async with asyncio.timeout(CONFIRM_WITHIN):
                while not sending.work.done():
                    await self._check_open()
                    await asyncio.wait([sending.work], timeout=_LOOK)
            sending.work.result()
        except Snooze:
            leaves = sending.published
            raise
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
            if leaves:
                self._leave(sending)
            else:
                sending.work.cancel()
                self._forget(sending)
            self._drop_closed()

    async def close(self) -> None:
        """Close the connection, and with it the channels."""
        for sending in self._sending.values():
            sending.work.cancel()
        connecting, self._connecting = self._connecting, None
        if connecting is None:
            return
        connecting.cancel()
        await asyncio.wait([connecting])
        if not connecting.cancelled() and connecting.exception() is None:
            await connecting.result().close_within(_CLOSE_WITHIN)

    # The messages under way.

    def _begin(self, message: _Message) -> _Sending:
        """Return a message that is under way: since now, or since an earlier run of its job.

        Raises:
            RetryLater: another message of the same id is under way.
        """
        known = self._sending.get(message.job)
        if known is not None and known.message == message:
            return known
        if known is not None and not known.work.done():
            raise RetryLater(None, "a message of another job of the same id is under way")
        sending = self._sending[message.job] = _Sending(message, self._publish)
        return sending

    async def _publish(self, sending: _Sending) -> None:
        message = sending.message
        channel = await self._channel(message.exchange)
        properties = aio_pika.Message(
            message.body,
            message_id=message.job,
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        ).properties
        sending.published = True
        await channel.basic_publish(
            message.body,
            exchange=message.exchange,
            routing_key=message.routing_key,
            properties=properties,
            mandatory=True,
        )

    def _leave(self, sending: _Sending) -> None:
        """Keep a message for the next run of its job, also for a while after it has ended."""
        if not sending.left:
            sending.left = True
            loop = asyncio.get_running_loop()
            sending.work.add_done_callback(lambda _: loop.call_later(_KEPT, self._forget, sending))

    def _forget(self, sending: _Sending) -> None:
        if self._sending.get(sending.message.job) is sending:
            del self._sending[sending.message.job]

    async def _check_open(self) -> None:
        """Check that the broker takes messages.

        Raises:
            Snooze: it has blocked the connection.
        """
        connecting = self._connecting
        if connecting is None or not connecting.done() or _has_failed(connecting):
            return
        transport = connecting.result().transport
        if transport is None:
            return
        try:
            async with asyncio.timeout(0):  # it waits only while the connection is blocked
                await transport.ready()
        except TimeoutError:
            why = f"the broker {self._name} takes no messages now (connection.blocked): it is low on memory or disk"
            raise Snooze(self._put_off.refused(), why) from None
        self._put_off.accepted()

    # All who wait for the connection, or for a channel, share one attempt to open it.

    async def _channel(self, exchange: str) -> AbstractChannel:
        connection = await self._connection()
        await connection.ready()
        opening = self._opening.get(exchange)
        if opening is None or _has_failed(opening) or (opening.done() and opening.result().is_closed):
            opening = self._opening[exchange] = _share(_open_channel(connection))
        return await asyncio.shield(opening)

    async def _connection(self) -> BrokerConnection:
        if self._connecting is None or _has_failed(self._connecting):
            self._connecting = _share(
                aio_pika.connect_robust(self._url, timeout=CONFIRM_WITHIN, connection_class=BrokerConnection)
            )
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
        if isinstance(error, exceptions.InvalidFrameError) and "Connection.OpenOk" in str(error):
            return "it has no virtual host of the name in the URL, or the user has no right to it"
        text = f"{type(error).__name__}: {error}"
        return text.replace(self._password, "***") if self._password else text


async def _open_channel(connection: BrokerConnection) -> AbstractChannel:
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
