"""An AMQP broker: one connection for the worker, over which all its jobs publish, each until the broker confirms.

The connection is opened on first use, and again when it is lost. What was not confirmed when it was lost is sent again
by the next attempt of its job, so the broker may get it twice, but never not at all.

A broker that is low on memory or disk reads no more from the connection, says so (connection.blocked), and reads the
rest later. If jobs published meanwhile, each message would arrive once for each attempt. So nothing is published, and
the jobs are put off. A message that was published just before stays under way, and the next run of its job waits for
that one, if the same worker gets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from aiormq import spec
from msgspec import Struct

from evsched.jobs.steering import RetryLater, Snooze
from evsched.targets import broker_errors
from evsched.targets.broker_channels import Channels
from evsched.targets.broker_transport import BrokerConnection
from evsched.targets.shared_work import has_failed, share
from evsched.transport.redis_errors import PutOff

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


class _Connected(Struct, frozen=True):
    connection: BrokerConnection
    channels: Channels


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
        self._connecting: asyncio.Task[_Connected] | None = None
        self._sending: dict[str, _Sending] = {}
        """The messages under way, by the ids of their jobs: the next run of a job finds the message of the last."""
        self._put_off = PutOff()

    async def publish(self, exchange: str, routing_key: str, job: str, key: str, body: bytes) -> None:
        """Publish the message of a job, and return when the broker has it on a queue.

        `exchange`: "" = to the queue of that routing key. `key`: the same for all attempts of the job, and for no other
        job.

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
            raise self._failed(broker_errors.of_connecting(error.__cause__ or error)) from None
        except TimeoutError:
            raise self._failed(f"did not confirm the message within {CONFIRM_WITHIN:g} s") from None
        except asyncio.CancelledError:
            # A connection that breaks cancels those who wait for it.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise self._failed(broker_errors.NOT_CONFIRMED) from None
        except broker_errors.ERRORS as error:
            raise self._failed(broker_errors.of_publishing(error, exchange, routing_key, len(body))) from None
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
            await connecting.result().connection.close_within(_CLOSE_WITHIN)

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
        connected = await self._connect()
        await connected.connection.ready()
        async with connected.channels.take() as channel:
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
        connection = connecting.result().connection
        if not connection.is_opened:
            return
        try:
            async with asyncio.timeout(0):  # it waits only while the connection is blocked
                await connection.ready()
        except TimeoutError:
            why = f"the broker {self._name} takes no messages now (connection.blocked): it is low on memory or disk"
            raise Snooze(self._put_off.refused(), why) from None
        self._put_off.accepted()

    async def _connect(self) -> _Connected:
        """Return the connection. All who wait for it share one attempt to open it.

        Raises:
            _Unreachable: it failed.
        """
        connecting = self._connecting
        is_lost = connecting is not None and connecting.done() and not has_failed(connecting)
        if connecting is None or (is_lost and not connecting.result().connection.is_opened):
            connecting = self._connecting = share(_open(self._url))
            connecting.add_done_callback(self._forget_failure)
        return await asyncio.shield(connecting)

    def _forget_failure(self, connecting: asyncio.Task[_Connected]) -> None:
        """Have the next run after a pause connect again."""

        def forget() -> None:
            if self._connecting is connecting:
                self._connecting = None

        if has_failed(connecting):
            asyncio.get_running_loop().call_later(_PAUSE, forget)

    def _failed(self, why: str) -> RetryLater:
        return RetryLater(None, f"the broker {self._name} {why}")


async def _open(url: str) -> _Connected:
    try:
        async with asyncio.timeout(_CONNECT_WITHIN):
            connection = await BrokerConnection.open(url)
    except broker_errors.ERRORS as error:
        raise _Unreachable from error
    return _Connected(connection, Channels(connection))
