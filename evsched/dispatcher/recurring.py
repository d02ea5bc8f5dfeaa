"""The recurring loop: decides when to look at the recurrences of each queue.

`occurrences.py` then puts the occurrences on the schedule.
"""

from __future__ import annotations

import time
from typing import Final

from evsched.dispatcher.occurrences import Occurrences
from evsched.dispatcher.queue_search import Search
from evsched.dispatcher.redis_clock import RedisClock
from evsched.dispatcher.served_queues import ServedQueues
from evsched.errors import StoreError
from evsched.runtime.pulse import Pulse
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.runtime.runtime import Runtime
from evsched.runtime.timetable import Timetable
from evsched.runtime.wakeup import Wakeup

_CAP: Final = 300.0
"""Seconds after which the loop looks at a queue with recurrences even without an event, and searches for others."""


class Recurring:
    """Looks at the recurrences of the queues that are served."""

    def __init__(self, runtime: Runtime, clock: RedisClock, served: ServedQueues) -> None:
        self._occurrences = Occurrences(runtime, clock)
        self._search = Search(runtime, served, _CAP, lambda seen: seen.recurs)
        self._wakeup = Wakeup()
        self._reconnect = Reconnect("recurring", runtime.emit)
        self._refused = Reconnects("recurring", runtime.emit)
        self._queues = Timetable[str]()
        """When to look at the queues that have recurrences."""
        self._looked_at = set[str]()
        """The queues that were looked at since `look`."""
        self._to_rewind = set[str]()
        """Queues whose `rewind` failed, and must be repeated."""

    @property
    def pulse(self) -> Pulse:
        """The pulse of its loop."""
        return self._reconnect.pulse

    def look_at(self, queue: str) -> None:
        """Look at a queue's recurrences now: they have changed."""
        self._queues.plan(queue, 0.0)
        self._wakeup.ring()

    def look_for(self, queue: str) -> None:
        """Look whether a new queue has recurrences."""
        self._search.add(queue)
        self._wakeup.ring()

    def look(self) -> None:
        """Look at all queues: events may have been missed, or Redis's clock was set."""
        self._looked_at.clear()
        self._search.restart()
        self._wakeup.ring()

    async def run(self) -> None:
        """Look at recurrences until cancelled."""
        while True:
            async with self._reconnect:
                await self._look()
            if self._reconnect.failures:
                continue
            until = min(self._search.at(), self._queues.next())
            self.pulse.expect(max(0.0, until - time.monotonic()))
            await self._wakeup.sleep(until)

    async def _look(self) -> None:
        """Look at the queues for which it is time.

        Raises:
            StoreDown, StoreRefused: the failure concerns all queues.
        """
        if self._search.at() <= time.monotonic():
            for queue in await self._search.find():
                if queue not in self._looked_at or queue not in self._queues:
                    self._queues.plan(queue, 0.0)
        while (queue := self._queues.take(time.monotonic())) is not None:
            fresh = queue not in self._looked_at
            self._looked_at.add(queue)
            try:
                rest = await self._pass(queue, fresh)
            except BaseException:
                self._looked_at.discard(queue)
                self._queues.plan(queue, 0.0)
                raise
            # Without recurrences that continue, an event or the search says when there are some. An event that arrived
            # during the pass may have made it earlier.
            self._queues.bring_forward(queue, time.monotonic() + rest)

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
        return rest if rest == float("inf") else min(rest, _CAP)
