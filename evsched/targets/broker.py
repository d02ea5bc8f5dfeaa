"""An AMQP broker: one connection for the worker, over which all its jobs publish, each until the broker confirms.

The connection is opened on first use, and again when it is lost. Messages that were not confirmed by then are sent
again by the next attempt of their jobs: the broker may get a message twice, but never not at all.

A broker that is low on memory or disk reads no more from the connection, says so (connection.blocked), and reads the
rest later. If jobs published meanwhile, each message would arrive once for each attempt. So nothing is published, and
the jobs are put off. A message that was published just before stays under way, and the next run of its job waits for
that one, if the same worker gets it.

Each channel has at most one message under way. A broker answers a message that it refuses by closing the channel: the
exchange is missing, the user may not write there, or the message is too large. All else under way on the channel would
be lost with it, and a later message on it would close the connection.

aiormq reads frames of up to 4 GiB, whatever length was agreed on, so a server that is not a broker could fill the
memory of the worker: a frame that is too long is refused before it is read. The sentences about errors are made of the
names in the payload and the kind of the error. They do not repeat the texts of the library or the server, which may
have a password.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, Final, TypeVar

from aiormq import Connection, TransportFactory, exceptions, spec
from aiormq.abc import AbstractChannel
from aiormq.exceptions import DeliveryError
from msgspec import Struct
from pamqp.exceptions import PAMQPException
from yarl import URL

from evsched.jobs.redaction import REDACTED
from evsched.jobs.steering import RetryLater, Snooze
from evsched.transport.redis_errors import PutOff

T = TypeVar("T")


def share(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task for all jobs: the log must not name the one that is the first to need it."""
    task = asyncio.get_running_loop().create_task(work, context=Context())
    task.add_done_callback(has_failed)
    return task


def has_failed(task: asyncio.Task[Any]) -> bool:
    """Return whether a task has ended without a result. Its error counts as seen, so that asyncio does not log it."""
    return task.done() and (task.cancelled() or task.exception() is not None)


_LONGEST_FRAME: Final = 4_194_304
"""Bytes of a frame. RabbitMQ's own limit is 131,072; a message that is returned is one of ours."""


class NoBroker(Exception):
    """The server sent data that is not AMQP."""


class _Reader(asyncio.StreamReader):
    async def readexactly(self, n: int) -> bytes:
        if n > _LONGEST_FRAME:
            raise NoBroker(f"its frame has {n} bytes, more than {_LONGEST_FRAME}: is it an AMQP broker?")
        return await super().readexactly(n)


class _Transport(TransportFactory):
    opened: asyncio.WriteTransport | None = None

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = str(url.host), url.port or 0  # aiormq has set the default port
        certificates = kwargs.pop("ssl_context_provider")
        ssl = await certificates.get_context() if url.scheme == "amqps" else None
        loop = asyncio.get_running_loop()
        reader = _Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, host, port, ssl=ssl, **kwargs)
        self.opened = transport
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


class BrokerConnection(Connection):
    """One connection. When it is lost, it stays so: open another."""

    FRAME_BUFFER_SIZE = 0
    """No limit for the frames that wait to be written. With one, aiormq does not answer a broker that closes a channel
    at a moment when the queue is full, and the channel's number could not be used again. The messages under way are
    limited by the number of channels."""

    def __init__(self, url: str) -> None:
        self._transport = _Transport()
        super().__init__(url, transport_factory=self._transport)
        self.pool: Channels
        """Its channels, when it is open."""

    async def close_within(self, seconds: float) -> None:
        """Close the connection, by force after this many seconds: a broker that blocks it does not read the request."""
        closing = asyncio.ensure_future(self.close())
        await asyncio.wait([closing], timeout=seconds)
        if not closing.done():
            self.abort()  # aiormq would wait for minutes until its earlier writes are sent
            await asyncio.wait([closing], timeout=seconds)

    def abort(self) -> None:
        if self._transport.opened is not None:
            self._transport.opened.abort()


NOT_CONFIRMED: Final = "lost the connection before it confirmed the message"

ERRORS: Final = (
    exceptions.AMQPError,
    PAMQPException,
    NoBroker,
    OSError,
    EOFError,
    RuntimeError,
    StopAsyncIteration,
    ValueError,
)
"""The errors of aiormq and the network."""


def of_connecting(error: BaseException) -> str:
    match error:
        case TimeoutError():
            return "did not answer: is it up, and is it an AMQP broker?"
        case NoBroker():
            return f"cannot be understood: {error}"
        case exceptions.AuthenticationError() | exceptions.ProbableAuthenticationError():
            return "refused the user or the password in its URL"
        case exceptions.InvalidFrameError() if "Connection.OpenOk" in str(error):
            return "has no virtual host of the name in its URL, or the user has no right to it"
        case exceptions.ConnectionClosed():
            return "closed the connection: its log says why"
        case exceptions.AMQPError() | PAMQPException() | StopAsyncIteration() | EOFError():
            return "ended the connection, or does not speak AMQP 0-9-1: is it an AMQP broker?"
        case OSError():
            # A negative number means that a name was not found. Without one, several addresses were tried.
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            return f"cannot be reached: {why or 'no address of it answers'}"
        case _:
            return "cannot be used: an AMQP broker with publisher confirms is needed"


def of_publishing(error: BaseException, exchange: str, routing_key: str, size: int) -> str:
    """Say why a message was not taken. `size`: bytes of its body."""
    to = f"exchange {exchange!r:.200}" if exchange else f"queue {routing_key!r:.200}"
    match error:
        case exceptions.PublishError() if exchange:
            bound = f"no queue is bound to {to} for the routing key {routing_key!r:.200}"
            return f"could not route the message: {bound}"
        case exceptions.PublishError():
            return f"could not route the message: there is no {to}"
        case exceptions.DeliveryError():
            return f"refused the message to {to}: a queue may be full"
        case exceptions.ChannelNotFoundEntity():
            return f"could not route the message: there is no {to}"
        case exceptions.ChannelAccessRefused():
            rights = "the user in its URL may not write there, or messages from outside may not go there"
            return f"refused the message to {to}: {rights}"
        case exceptions.ChannelPreconditionFailed():
            return f"refused the message to {to}: it has {size} bytes, which may be more than the broker allows"
        case exceptions.ChannelClosed():
            return f"refused the message to {to}: its log says why"
        case _:
            return NOT_CONFIRMED


_MOST_CHANNELS: Final = 64
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
        allowed = connection.connection_tune.channel_max or _MOST_CHANNELS
        self._free = asyncio.LifoQueue[_Slot]()
        for number in range(min(_MOST_CHANNELS, allowed), 0, -1):
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


CONFIRM_WITHIN: Final = 10.0
"""Seconds for a message: to connect, if there is no connection, and for the broker to confirm it."""

_CONNECT_WITHIN: Final = 8.0
"""Seconds to connect: less than for a message, so that the reason of its job says which of both failed."""

_LOOK: Final = 0.5
"""Seconds until a run whose message is not confirmed looks whether the connection is blocked."""

_KEPT: Final = 60.0
"""Seconds for which the end of a message that a run has left under way is kept: its job is put off for less."""

_CLOSE_WITHIN: Final = 3.0
"""Seconds to close the connection, before that is done by force."""

_PAUSE: Final = 1.0
"""Seconds after a failure to connect in which nobody tries again: all runs get the same reason."""

_PERSISTENT: Final = 2
"""The delivery mode of messages that outlive a restart of the broker."""


class _Unreachable(Exception):
    """There is no connection; the cause says why."""


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
        self.work = share(publish(self))


class Broker:
    """The connection to a broker. `name`: as the settings call it, for reasons, which never have the URL."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url
        self._connecting: asyncio.Task[BrokerConnection] | None = None
        self._sending: dict[str, _Sending] = {}
        """The messages under way, by the ids of their jobs: the next run of a job finds the message of the last."""
        self._put_off = PutOff()

    async def publish(
        self, exchange: str, routing_key: str, job: str, key: str, body: bytes, hidden: Collection[str] = ()
    ) -> None:
        """Publish the message of a job, and return when the broker has it on a queue.

        `exchange`: "" = to the queue of that routing key. `key`: the same for all attempts of the job, and for no other
        job. `hidden`: the names of redacted arguments.

        Raises:
            RetryLater: the broker cannot be reached, does not confirm in time, or does not take the message.
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
        except _Unreachable as error:
            raise self._failed(of_connecting(error.__cause__ or error)) from None
        except TimeoutError:
            raise self._failed(f"did not confirm the message within {CONFIRM_WITHIN:g} s") from None
        except asyncio.CancelledError:
            # A connection that breaks cancels the tasks that wait for it.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._failed(NOT_CONFIRMED) from None
        except ERRORS as error:
            shown = REDACTED if exchange and "to" in hidden else exchange
            shown_key = REDACTED if ("routing_key" if exchange else "to") in hidden else routing_key
            raise self._failed(of_publishing(error, shown, shown_key, len(body))) from None
        finally:
            if leaves:
                self._leave(sending)
            else:
                sending.work.cancel()
                self._forget(sending)

    async def close(self) -> None:
        """Close the connection, and with it the channels."""
        for sending in self._sending.values():
            sending.work.cancel()
        connecting, self._connecting = self._connecting, None
        if connecting is None:
            return
        connecting.cancel()
        await asyncio.wait([connecting])
        if not has_failed(connecting):
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
        connection = await self._connect()
        await connection.ready()
        async with connection.pool.take() as channel:
            sending.published = True
            await channel.basic_publish(
                message.body,
                exchange=message.exchange,
                routing_key=message.routing_key,
                properties=spec.Basic.Properties(
                    message_id=message.job, content_type="application/json", delivery_mode=_PERSISTENT
                ),
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
        if connecting is None or not connecting.done() or has_failed(connecting):
            return
        connection = connecting.result()
        if not connection.is_opened:
            return
        try:
            async with asyncio.timeout(0):  # it waits only while the connection is blocked
                await connection.ready()
        except TimeoutError:
            why = f"the broker {self._name} takes no messages now (connection.blocked): it is low on memory or disk"
            raise Snooze(self._put_off.refused(), why) from None
        self._put_off.accepted()

    async def _connect(self) -> BrokerConnection:
        """Return the connection. All who wait for it share one attempt to open it.

        Raises:
            _Unreachable: it failed.
        """
        connecting = self._connecting
        is_lost = connecting is not None and connecting.done() and not has_failed(connecting)
        if connecting is None or (is_lost and not connecting.result().is_opened):
            connecting = self._connecting = share(_open(self._url))
            connecting.add_done_callback(self._forget_failure)
        return await asyncio.shield(connecting)

    def _forget_failure(self, connecting: asyncio.Task[BrokerConnection]) -> None:
        """Have the next run after a pause connect again."""

        def forget() -> None:
            if self._connecting is connecting:
                self._connecting = None

        if has_failed(connecting):
            asyncio.get_running_loop().call_later(_PAUSE, forget)

    def _failed(self, why: str) -> RetryLater:
        return RetryLater(None, f"the broker {self._name} {why}")


async def _open(url: str) -> BrokerConnection:
    """Connect.

    Raises:
        _Unreachable: it failed.
    """
    connection = BrokerConnection(url)
    try:
        async with asyncio.timeout(_CONNECT_WITHIN):
            await connection.connect()
    except BaseException as error:
        connection.abort()
        if isinstance(error, ERRORS):
            raise _Unreachable from error
        raise
    connection.pool = Channels(connection)
    return connection
