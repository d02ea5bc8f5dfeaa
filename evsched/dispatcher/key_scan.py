"""The scan of all keys for queues that only a ZADD has created, in slices that cost Redis a few per cent of its time.

A scan also finds the lists of workers that have no lease, and gives them one, so that the janitor judges them like any
other.
"""

from __future__ import annotations

import time
from typing import Final

from evsched.dispatcher.served_queues import NewQueues
from evsched.errors import StoreError, StoreRefused
from evsched.runtime.reconnect import Reconnects
from evsched.runtime.runtime import Runtime
from evsched.store import server
from evsched.store.store import Store

_PAUSE: Final = 0.01
"""Seconds between two slices: 1,000 keys take 0.3 ms of Redis's time, and a million keys are scanned in 10 s."""

_SELDOM: Final = 10
"""Safety caps between two slices when nothing indicates that a queue was missed. It may have been all the same: SWAPDB,
for example, sends no event."""


class KeyScan:
    """Scans all keys once, then one slice at a time, at long intervals.

    `at` is when the next slice is due, by the monotonic clock.
    """

    def __init__(self, runtime: Runtime, queues: NewQueues) -> None:
        self._runtime = runtime
        self._queues = queues
        self._refused = Reconnects("finder", runtime.emit)
        self._cursor = 0
        self._under_way = False
        """A slice is being read."""
        self._wanted = 1
        """How many scans must still end; 2 = one that began before the last gap in the events, and one more."""
        self.at = 0.0

    def restart(self) -> None:
        """Scan all keys from now on: a scan that is under way has passed some of them."""
        self._wanted = 2 if self._cursor or self._under_way else 1
        self.at = 0.0

    def ensure(self) -> None:
        """Scan all keys, unless a scan is under way."""
        if not self._wanted:
            self._wanted, self.at = 1, 0.0

    async def step(self) -> None:
        """Scan one slice. If a call about one queue alone fails, that is reported, and the other queues are served.

        Raises:
            StoreDown, StoreRefused: the failure concerns all queues.
        """
        self._under_way = True
        try:
            found = await self._runtime.sender.send(server.scan(self._cursor))
        finally:
            self._under_way = False
        self._cursor = found.next
        named = self._runtime.config.queues
        for queue in sorted(found.queues.intersection(named) if named else found.queues):
            self._queues.serve(queue)
        for queue in sorted({queue for queue, _ in found.held if not named or queue in named}):
            reconnect = self._refused.of(queue)
            try:
                await self._lease(Store(queue), [worker for name, worker in found.held if name == queue])
            except StoreError as error:
                reconnect.refused(error)
            else:
                reconnect.passed()
        now = time.monotonic()
        if self._cursor == 0:
            self._wanted = max(self._wanted - 1, 0)
        if self._wanted:
            self.at = now + _PAUSE
        elif named:
            self.at = float("inf")  # the queues are known: the scan was only for their workers' lists
        else:
            self.at = now + _SELDOM * self._runtime.times.safety_cap

    async def _lease(self, store: Store, workers: list[str]) -> None:
        """Give a lease to each of these workers of a queue, which have lists, if it has none.

        Raises:
            StoreDown
            StoreRefused: Redis refused one of them at least, after all were tried.
        """
        leased = {lease.worker for lease in (await self._runtime.sender.send(store.survey())).leases}
        refusal: StoreRefused | None = None
        for worker in sorted(set(workers) - leased):
            try:
                await self._runtime.sender.send(store.heartbeat(worker, self._runtime.times.lease, fresh=True))
            except StoreRefused as error:
                refusal = error  # the key of one worker has the wrong type
        if refusal is not None:
            raise refusal
