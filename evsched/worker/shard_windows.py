"""Named windows of a queue with shards: they are kept in the queue itself, and jobs wait for them in the shards.

A program that changes a window first writes it, and then reopens the jobs that wait for it, in each shard. A job that
is deferred by the old window after its shard was reopened would wait too long. So after each deferral the window is
read once more, and the shard is reopened if the window has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from evsched.errors import StoreRefused
from evsched.execution.run import Run
from evsched.jobs.job import Deferred
from evsched.runtime.reconnect import Reconnect
from evsched.store.store import Store
from evsched.worker.exchange import ServedQueue

_LAST: Final = 1.0
"""Seconds for the last comparison when the worker stops."""


class ShardWindows:
    """Compares the windows by which a worker has deferred jobs. Does nothing if the queue is not a shard."""

    def __init__(self, served: ServedQueue) -> None:
        self._served = served
        whole = served.runtime.shards.whole(served.queue)
        self._keeper = None if whole == served.queue else Store(whole)
        self._used = set[tuple[str, str]]()
        """Name and text of the windows that are to be compared."""
        self._comparing: asyncio.Future[None] | None = None
        self._reconnect = Reconnect("worker, windows", served.runtime.emit, served.queue)

    def note(self, ended: Iterable[Run]) -> None:
        """Note the windows of runs whose ends are written, and compare them: apart, since their node may hang."""
        if self._keeper is None:
            return
        outcomes = (run.outcome for run in ended)
        self._used.update((one.window, one.text) for one in outcomes if isinstance(one, Deferred) and one.elsewhere)
        if self._used and (self._comparing is None or self._comparing.done()):
            if self._comparing is not None:
                self._comparing.result()  # a fault of evsched ends the worker
            self._comparing = asyncio.ensure_future(self._compare_all(self._keeper))

    async def close(self) -> None:
        """Compare the other windows, within a second."""
        if self._comparing is not None:
            await asyncio.wait([self._comparing], timeout=_LAST)
            self._comparing.cancel()

    async def _compare_all(self, keeper: Store) -> None:
        while self._used:
            async with self._reconnect:
                await self._compare(keeper, next(iter(self._used)))

    async def _compare(self, keeper: Store, used: tuple[str, str]) -> None:
        """Reopen the jobs of a window if it has changed since it was read.

        Raises:
            StoreDown
        """
        name, text = used
        with suppress(StoreRefused):  # a key of the wrong type, which the next run of such a job reports
            if await self._served.runtime.sender.send(keeper.window(name)) != text:
                await self._reopen(name)
        self._used.discard(used)

    async def _reopen(self, name: str) -> None:
        left = 1
        while left:
            _, left = await self._served.runtime.sender.send(self._served.store.reopen(name))
