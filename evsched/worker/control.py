"""The control channels: how a worker hears at once that a job of its own was cancelled, and that the roll is called.

It is one subscription that costs nothing while it is silent: nobody proves that it is alive. The heartbeat carries
cancellations too, later; when it brings one that was not heard here, the link is dead, and is built anew.
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

    `stop(queue, id)` is called for each job that is to stop, `called(queue, channel)` for each call of the roll.
    """

    def __init__(
        self,
        config: Config,
        worker: str,
        queues: list[str],
        emit: Emit,
        stop: Callable[[str, str], object],
        called: Callable[[str, str], object],
    ) -> None:
        self._config = config
        self._told = {
            **{keys.control(queue, worker).encode(): (queue, stop) for queue in queues},
            **{keys.roll(queue).encode(): (queue, called) for queue in queues},
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
            self._emit(events.RedisFailed(error.kind))
            await asyncio.sleep(self._losses.wait())

    def renew(self) -> None:
        """Build the link anew: it did not bring what it should have."""
        if self._subscription is not None:
            self._subscription.cut()
