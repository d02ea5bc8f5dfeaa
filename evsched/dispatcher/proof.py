"""The proof that the subscription works: a canary's message arrives in time, and its keyspace event before it.

A `dispatch` carries the canary: it changes a key of its own, then publishes a message. If no message comes, the
connection is half open. If the message comes without the event, Redis sends no keyspace events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from evsched import events
from evsched.runtime.runtime import Runtime


class Proof:
    """When the next proof is wanted, the one that is on its way, and what the last one showed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._new = True
        """The subscription has not been proved yet: the next step does it, whatever was received before."""
        self._last = 0.0
        """When anything was last received, by the monotonic clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._event_came = False
        self._proven: bool | None = None
        self.mend = ""
        """What to do if Redis sends no events."""

    @property
    def failed(self) -> bool:
        """The last canary's event did not arrive: Redis sends no keyspace events."""
        return self._proven is False

    def restart(self) -> None:
        """Ask for a proof at once: the subscription is new."""
        self._new = True

    def at(self) -> float:
        """Return when the next proof is wanted, by the monotonic clock: after a silence, or at once if it is new."""
        if self._timer is not None:
            return float("inf")
        return 0.0 if self._new else self._last + self._runtime.config.probe_interval

    def expect(self, silent: Callable[[], None]) -> None:
        """Note that a canary is being sent. `silent` is called if its message does not arrive in time."""
        if self._timer is None:
            self._new = False
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._runtime.config.reply_timeout, self._end, silent)

    def _end(self, silent: Callable[[], None]) -> None:
        self._timer = None
        silent()

    def cancel(self) -> None:
        """Expect the canary no longer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def received(self) -> None:
        """Note that something was received, so that the connection works."""
        self._last = time.monotonic()

    def event_came(self) -> None:
        """Note that a canary's keyspace event arrived."""
        self._event_came = True

    def message_came(self) -> None:
        """End the proof: the event must have arrived before this message."""
        self.cancel()
        came, self._event_came = self._event_came, False
        if came != self._proven:
            self._proven = came
            self._runtime.emit(events.NotificationsProven() if came else events.NotificationsMissing(mend=self.mend))
