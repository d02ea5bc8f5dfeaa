"""The control channels: they tell a worker at once that one of its jobs was cancelled, or that its status is requested.

The subscription costs nothing while it is silent, so it is not health-checked; heartbeats are the fallback. They report
cancellations too, later. When a heartbeat brings one that was not received here, the connection is dead and is rebuilt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from evsched import events, keys
from evsched.errors import StoreError
from evsched.runtime.loops import Runtime
from evsched.runtime.reconnect import Losses, Reconnect
from evsched.transport.subscription import Subscription


class ControlListener(Protocol):
    """What a worker does on a message of its control channels."""

    def cancelled(self, queue: str, job_id: str) -> None:
        """Stop the run of a job."""
        ...

    def status_requested(self, queue: str, channel: str) -> None:
        """Report the worker's status to a channel."""
        ...


class Control:
    """Subscribes to the control channels of one worker."""

    def __init__(self, runtime: Runtime, worker: str, queues: list[str], listener: ControlListener) -> None:
        self._runtime = runtime
        self._worker = worker
        self._listener = listener
        self._receivers = dict[bytes, tuple[str, Callable[[str, str], None]]]()
        """By channel."""
        self._add(queues)
        self._reconnect = Reconnect("worker, control channel", runtime.emit)
        self._losses = Losses()
        self._subscription: Subscription | None = None

    def _add(self, queues: Iterable[str]) -> None:
        for queue in queues:
            self._receivers[keys.control(queue, self._worker).encode()] = queue, self._listener.cancelled
            self._receivers[keys.status_requests(queue).encode()] = queue, self._listener.status_requested

    def add(self, queues: Iterable[str]) -> None:
        """Receive the messages of more queues."""
        self._add(queues)
        self.rebuild()

    async def run(self) -> None:
        """Receive until cancelled."""
        while True:
            self._subscription = Subscription(self._runtime.config.url)
            try:
                async with self._reconnect:
                    await self._subscription.open([], [channel.decode() for channel in self._receivers])
                if not self._reconnect.failures:
                    await self._receive(self._subscription)
            finally:
                await self._subscription.close()

    async def _receive(self, subscription: Subscription) -> None:
        """Receive until the connection is lost. If Redis is down, the next connection reports it."""
        self._losses.opened()
        self._runtime.emit(events.ControlOpened())
        try:
            async for channel, message in subscription.messages():
                queue, receive = self._receivers[channel]
                receive(queue, message.decode(errors="replace"))
        except StoreError as error:
            self._runtime.emit(events.RedisFailed(kind=error.kind))
            await asyncio.sleep(self._losses.wait())

    def rebuild(self) -> None:
        """Replace the connection: it did not bring a message that it should have."""
        if self._subscription is not None:
            self._subscription.cut()
