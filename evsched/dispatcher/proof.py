"""The proof that the subscription works: a canary's message arrives in time, and its keyspace event before it.

A `dispatch` carries the canary: it changes a key of its own, then publishes a message. If no message comes, the
connection is half open. If the message comes without the event, Redis sends no keyspace events.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from evsched import events
from evsched.runtime.pulse import Pulse
from evsched.runtime.runtime import Runtime


class Proof:
    """When the next canary is wanted, the one that is under way, and what the last one showed.

    The watcher reports what it receives. The dispatch loop sends the canaries.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._silent: Callable[[], None] | None = None
        """Called if a canary's message does not arrive in time; None = there is no subscription."""
        self._pulse: Pulse | None = None
        self._new = True
        """The subscription has not been proved yet: the next step carries a canary, whatever was received before."""
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

    def begin(self, pulse: Pulse, silent: Callable[[], None]) -> None:
        """Ask for a proof at once, because the subscription is new.

        `pulse`: that of the loop that reads its messages. `silent()` is called if a canary's message does not arrive.
        """
        self._new, self._pulse, self._silent = True, pulse, silent

    def end(self) -> None:
        """Ask for no more proofs, because the subscription has ended."""
        self._pulse = self._silent = None
        self._cancel()

    def at(self) -> float:
        """Return when the next canary is wanted, by the monotonic clock; inf = no canary is wanted.

        It is wanted after a silence, and at once if the subscription is new.
        """
        if self._silent is None or self._timer is not None:
            return float("inf")
        return 0.0 if self._new else self._last + self._runtime.times.probe_interval

    def expect(self) -> None:
        """Note that a canary is being sent: it must arrive within the reply timeout."""
        if self._silent is not None and self._timer is None:
            self._new = False
            self._timer = asyncio.get_running_loop().call_later(self._runtime.times.reply_timeout, self._timed_out)

    def _timed_out(self) -> None:
        self._timer = None
        if self._silent is not None:
            self._silent()

    def unsent(self) -> None:
        """Note that a canary may not have been sent: it proves nothing if none arrives. Another one is sent later."""
        self._cancel()
        self.received()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def received(self) -> None:
        """Note that something was received, so that the connection works."""
        self._last = time.monotonic()
        self.await_message()

    def await_message(self) -> None:
        """Tell the pulse when the next message arrives at the latest: that of the canary that follows a silence."""
        if self._pulse is not None:
            times = self._runtime.times
            self._pulse.expect(times.probe_interval + times.reply_timeout)

    def event_came(self) -> None:
        """Note that a canary's keyspace event arrived."""
        self._event_came = True

    def message_came(self) -> None:
        """End the proof: the event must have arrived before this message."""
        self._cancel()
        came, self._event_came = self._event_came, False
        if came != self._proven:
            self._proven = came
            self._runtime.emit(events.NotificationsProven() if came else events.NotificationsMissing(mend=self.mend))
