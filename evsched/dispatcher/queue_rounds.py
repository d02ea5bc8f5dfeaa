"""Visits to the queues that a loop looks after, such as those with workers, out of all that are served."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from evsched.errors import MOVING, StoreError
from evsched.runtime.loops import Runtime, Timetable, Wakeup
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.store.dispatcher_calls import GLANCE_MOST, Seen
from evsched.store.store import Store


class QueueRounds:
    """Visits each queue when its time has come. If a queue alone fails, the others are visited all the same.

    It finds them by a call that glances at many queues: all that `served()` returns once in `interval` seconds, and new
    ones soon. `needs(seen)`: returns whether to visit a queue. `visit(queue)`: returns the seconds to the next visit;
    inf = an event or a glance will say when.
    """

    def __init__(
        self,
        who: str,
        runtime: Runtime,
        served: Callable[[], list[str]],
        interval: float,
        needs: Callable[[Seen], bool],
        visit: Callable[[str], Awaitable[float]],
    ) -> None:
        self._runtime = runtime
        self._served = served
        self._interval = interval
        self._needs = needs
        self._visit = visit
        self._wakeup = Wakeup()
        self._reconnect = Reconnect(who, runtime.emit)
        self.pulse = self._reconnect.pulse
        self._refused = Reconnects(who, runtime.emit)
        self._new = set[str]()
        """The queues to glance at soon."""
        self._all_at = 0.0
        """When to glance at all."""
        self._visits = Timetable[str]()

    def add(self, queue: str) -> None:
        """Glance at a new queue soon."""
        self._new.add(queue)
        self._wakeup.ring()

    def restart(self) -> None:
        """Glance at all queues soon, and visit again all that need it."""
        self._all_at, self._visits = 0.0, Timetable[str]()
        self._wakeup.ring()

    def visit_by(self, queue: str, at: float) -> None:
        """Visit a queue at that moment of the monotonic clock, or earlier if that is planned."""
        if self._visits.bring_forward(queue, at):
            self._wakeup.ring()

    async def run(self) -> None:
        """Visit queues until cancelled."""
        while True:
            async with self._reconnect:
                await self._round()
            if not self._reconnect.failures:
                at = min(self._glance_at(), self._visits.next())
                self.pulse.expect(max(0.0, at - time.monotonic()))
                await self._wakeup.sleep(at)

    def _glance_at(self) -> float:
        return 0.0 if self._new else self._all_at

    async def _round(self) -> None:
        """Visit the queues for which it is time.

        Raises:
            StoreDown, StoreRefused: the failure concerns all queues.
        """
        if self._glance_at() <= time.monotonic():
            await self._find()
        while (queue := self._visits.take(time.monotonic())) is not None:
            visits, rest = self._visits, 0.0
            try:
                rest = await self._pass(queue)
            finally:
                if visits is self._visits:  # else `restart` was called meanwhile: the next glance finds the queue
                    visits.bring_forward(queue, time.monotonic() + rest)

    async def _pass(self, queue: str) -> float:
        """Visit a queue; return the seconds to its next visit.

        Raises:
            StoreDown, StoreRefused: the failure concerns all queues.
        """
        self.pulse.expect()
        reconnect = self._refused.of(queue)
        try:
            rest = await self._visit(queue)
        except StoreError as error:
            return reconnect.refused(error)
        reconnect.passed()
        return rest

    async def _find(self) -> None:
        """Plan visits to the queues that need one and have none planned.

        Raises:
            StoreDown, StoreRefused: the next call glances at the same queues again.
        """
        now, new = time.monotonic(), self._new
        whole, self._new = self._all_at <= now, set[str]()
        if whole:
            self._all_at = now + self._interval
        queues = [queue for queue in (self._served() if whole else sorted(new)) if queue not in self._visits]
        try:
            for first in range(0, len(queues), GLANCE_MOST):
                for queue in await self._glance(queues[first : first + GLANCE_MOST]):
                    self._visits.bring_forward(queue, 0.0)
        except BaseException:
            self._new |= new
            if whole:
                self._all_at = 0.0
            raise

    async def _glance(self, queues: list[str]) -> list[str]:
        try:
            glance = await self._runtime.sender.send(Store(queues[0]).glance(queues))
        except StoreError as error:
            if error.kind != MOVING:
                raise
            return queues  # the slot of the first moves in a cluster: visit each by itself
        return [queue for queue, seen in glance.seen.items() if self._needs(seen)]
