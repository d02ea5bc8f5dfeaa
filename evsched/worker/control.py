"""The control channels: they tell a worker at once that one of its jobs was cancelled, or that its status is requested.

The subscription costs nothing while it is silent, so it is not health-checked; heartbeats are the fallback. They carry
cancellations too, later. When a heartbeat brings one that was not received here, the connection is dead and is rebuilt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from evsched import events, keys
from evsched.config import Config
from evsched.errors import StoreError
from evsched.events import Emit
from evsched.runtime.reconnect import Losses, Reconnect
from evsched.transport.connection import Subscription


class Control:
    """Hears for one worker.

    `stop(queue, id)` is called for each job that is to stop, `requested(queue, channel)` for each status request.
    """

    def __init__(
        self,
        config: Config,
        worker: str,
        queues: list[str],
        emit: Emit,
        stop: Callable[[str, str], object],
        requested: Callable[[str, str], object],
    ) -> None:
        self._config = config
        self._told = {
            **{keys.control(queue, worker).encode(): (queue, stop) for queue in queues},
            **{keys.status_requests(queue).encode(): (queue, requested) for queue in queues},
        }
        self._emit = emit
        self._reconnect = Reconnect("worker, control channel", emit)
        self._losses = Losses()
        self._subscription: Subscription | None = None

    async def run(self) -> None:
        """Hear until cancelled."""
        while True:
            self._subscription = Subscription(self._config.url)
            try:
                async with self._reconnect:
                    await self._subscription.open([], [channel.decode() for channel in self._told])
                if not self._reconnect.failures:
                    await self._listen(self._subscription)
            finally:
                await self._subscription.close()

    async def _listen(self, subscription: Subscription) -> None:
        """Hear until the link is lost. That is one link: whether Redis is down is for the next to find out."""
        self._losses.opened()
        self._emit(events.ControlOpened())
        try:
            async for channel, message in subscription.messages():
                queue, tell = self._told[channel]
                tell(queue, message.decode(errors="replace"))
        except StoreError as error:
            self._emit(events.RedisFailed(kind=error.kind))
            await asyncio.sleep(self._losses.wait())

    def renew(self) -> None:
        """Build the link anew: it did not bring what it should have."""
        if self._subscription is not None:
            self._subscription.cut()
