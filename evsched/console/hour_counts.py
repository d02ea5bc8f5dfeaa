"""The counts of the jobs that ended, by hour, which all pages of a console share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from evsched.console.page import MeteredClient, Visit
from evsched.errors import StoreError
from evsched.store.history_calls import EndCount
from evsched.store.many_queues import read_hours

WEEK: Final = 7 * 24
"""Hours that the page of the history counts."""

_TASKS: Final = 2000
"""Names of tasks that are kept."""

_TOGETHER: Final = 3
"""Queues whose weeks are read at once: with one call, if their hours are not full."""

_REST: Final = 0.05
"""Seconds between two such readings that nobody waits for."""


class HourCounts:
    """Reads the counts. Hours that are over do not change, so they are read once."""

    def __init__(self) -> None:
        self._over = dict[tuple[str, int], list[EndCount]]()
        self.tasks = set[str]()
        """The names of tasks that were read, for completions."""
        self._task: asyncio.Task[None] | None = None

    async def read(self, client: MeteredClient, queue: str, hour: int, now: int) -> list[EndCount]:
        """Return the counts of a queue with its shards in an hour. `now`: the present hour."""
        known = self._over.get((queue, hour))
        if known is not None:
            return known
        parts = await asyncio.gather(*(client.send(store.hour(hour)) for store in client.stores(queue)))
        found = [one for part in parts for one in part]
        self._note(queue, hour, now, found)
        return found

    async def read_last(
        self, client: MeteredClient, queues: Sequence[str], now: int, hours: int
    ) -> dict[str, list[list[EndCount]]]:
        """Return the counts of each of the last hours by queue, the present one last: a few calls for all queues.

        An hour that Redis refuses to read has none.
        """
        wanted = [(queue, hour) for queue in queues for hour in range(now - hours + 1, now + 1)]
        known = {one: self._over[one] for one in wanted if one in self._over}
        parts = {queue: [store.queue for store in client.stores(queue)] for queue in queues}
        unknown = [(part, hour) for queue, hour in wanted if (queue, hour) not in known for part in parts[queue]]
        read = await read_hours(client.send, client.find_node, unknown)
        found: dict[str, list[list[EndCount]]] = {queue: [] for queue in queues}
        for queue, hour in wanted:
            counts = known.get((queue, hour))
            if counts is None:
                counts = [one for part in parts[queue] for one in read.get((part, hour), ())]
                if all((part, hour) in read for part in parts[queue]):
                    self._note(queue, hour, now, counts)
            found[queue].append(counts)
        return found

    def _note(self, queue: str, hour: int, now: int, found: list[EndCount]) -> None:
        if len(self.tasks) < _TASKS:
            self.tasks.update(one.task for one in found if one.task)
        if hour < now - 1:  # the clocks of hosts differ by less
            if len(self._over) > 50_000:
                self._over.clear()
            self._over[queue, hour] = found

    async def week(
        self, client: MeteredClient, queues: Sequence[str], now: int, seconds: float
    ) -> dict[str, list[list[EndCount]]]:
        """Return the counts of each of the last 168 hours by queue, the present one last.

        Queues that cannot be read within `seconds` are left out, and read meanwhile for the next one who asks.
        """
        until = time.monotonic() + seconds
        known = [queue for queue in queues if (queue, now - 2) in self._over]
        unknown = [queue for queue in queues if (queue, now - 2) not in self._over]
        found = await self.read_last(client, known, now, WEEK)
        while unknown and time.monotonic() < until:
            some, unknown = unknown[:_TOGETHER], unknown[_TOGETHER:]
            found |= await self.read_last(client, some, now, WEEK)
        if unknown:
            self._go_on(client, unknown, now)
        return found

    def _go_on(self, client: MeteredClient, queues: Sequence[str], now: int) -> None:
        async def read() -> None:
            for at in range(0, len(queues), _TOGETHER):
                try:
                    await self.read_last(client, queues[at : at + _TOGETHER], now, WEEK)
                except StoreError:
                    continue  # a page that asks for it says why
                await asyncio.sleep(_REST)

        if self._task is None or self._task.done():
            self._task = asyncio.create_task(read())

    async def close(self) -> None:
        """End the reading that nobody waits for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def hour_counts(visit: Visit) -> HourCounts:
    """Return the counts that all pages of a console share."""
    return visit.console.memory.setdefault("hours", HourCounts())
