"""The control channel: how a worker hears at once that a job of its own was cancelled.

It is a subscription that costs nothing while it is silent: nobody proves that it is alive. The beat carries the same,
later; when it brings something that was not heard here, the link is dead, and is built anew.
"""

from __future__ import annotations

from collections.abc import Callable

from evsched import keys
from evsched.config import Config
from evsched.connection import Subscription
from evsched.events import Emit
from evsched.outage import Outage


class Control:
    """Hears for one worker: `stop(queue, id)` is called for each job that is to stop."""

    def __init__(
        self, config: Config, worker: str, queues: list[str], emit: Emit, stop: Callable[[str, str], None]
    ) -> None:
        self._config = config
        self._queues = {keys.control(queue, worker).encode(): queue for queue in queues}
        self._stop = stop
        self._outage = Outage("worker, control channel", emit)
        self._subscription: Subscription | None = None

    async def run(self) -> None:
        """Hear until cancelled."""
        while True:
            async with self._outage:
                self._subscription = Subscription(self._config.url)
                try:
                    await self._subscription.open([], [channel.decode() for channel in self._queues])
                    self._outage.passed()
                    async for channel, message in self._subscription.messages():
                        self._stop(self._queues[channel], message.decode(errors="replace"))
                finally:
                    await self._subscription.close()

    def renew(self) -> None:
        """Build the link anew: it did not bring what it should have."""
        if self._subscription is not None:
            self._subscription.cut()
