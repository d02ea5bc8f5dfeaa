"""The recurring loop: decides when to look at the recurrences of each queue.

`occurrences.py` then puts the occurrences on the schedule.
"""

from __future__ import annotations

import time
from typing import Final

from evsched.dispatcher.occurrences import Occurrences
from evsched.dispatcher.redis_clock import RedisClock
from evsched.dispatcher.served_queues import ServedQueues
from evsched.errors import StoreError
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.runtime.runtime import Runtime
from evsched.runtime.wakeup import Wakeup

_CAP: Final = 300.0
"""Seconds after which the loop looks at a queue even without an event."""


class Recurring:
    """Looks at the recurrences of the queues that are served."""

    def __init__(self, runtime: Runtime, clock: RedisClock, served: ServedQueues) -> None:
        self._occurrences = Occurrences(runtime, clock)
        self._served = served
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("recurring", runtime.emit)
        self._refused = Reconnects("recurring", runtime.emit)
        self._at: dict[str, float] = {}
        """When to look at a queue, by the monotonic clock. A queue that is not in it has not been looked at since
        `look`."""
        self._to_rewind = set[str]()
        """Queues whose `rewind` failed, and must be repeated."""

    @property
    def pulse(self) -> Pulse:
        """The pulse of its loop."""
        return self._reconnect.pulse

    def look_at(self, queue: str) -> None:
        """Look at a queue's recurrences now: they have changed."""
        if queue in self._at:  # otherwise it is looked at anyway
            self._at[queue] = 0.0
        self._wakeup.ring()

    def look(self) -> None:
        """Look at all queues: events may have been missed, or Redis's clock was set."""
        self._at.clear()
        self._wakeup.ring()

    async def run(self) -> None:
        """Look at recurrences until cancelled."""
        while True:
            for queue in self._served.queues:
                if self._at.get(queue, 0.0) > time.monotonic():
                    continue
                fresh = queue not in self._at
                self._at[queue] = float("inf")  # an event that arrives during the pass sets it to 0
                async with self._reconnect:
                    self._look_by(queue, time.monotonic() + await self._pass(queue, fresh))
                if self._reconnect.failures:
                    self._at.pop(queue, None)
            until = min(self._at.get(queue, 0.0) for queue in self._served.queues)  # never empty
            self.pulse.expect(max(0.0, until - time.monotonic()))
            await self._wakeup.sleep(until)

    async def _pass(self, queue: str, fresh: bool) -> float:
        """Look at a queue; return the seconds until the next look.

        If this queue alone fails, it is looked at again later, and the others go on. `fresh`: this is the first
        pass since `look`, so recurrences that are too far ahead are moved back.

        Raises:
            StoreDown, StoreRefused: the failure concerns all queues.
        """
        reconnect = self._refused.of(queue)
        try:
            if fresh or queue in self._to_rewind:
                self._to_rewind.add(queue)
                await self._occurrences.rewind(queue)
                self._to_rewind.discard(queue)
            rest = await self._occurrences.step(queue)
        except StoreError as error:
            return reconnect.refused(error)
        reconnect.passed()
        return min(rest, _CAP)

    def _look_by(self, queue: str, at: float) -> None:
        if queue in self._at:  # otherwise `look` was called meanwhile
            self._at[queue] = min(self._at[queue], at)
