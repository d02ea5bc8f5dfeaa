"""Named windows of a queue with shards: they are kept in the queue itself, and jobs wait for them in the shards.

A program that changes a window first writes it, and then reopens the jobs that wait for it, in each shard. A job that
is deferred by the old window after its shard was reopened would wait too long. So after each deferral the window is
read once more, and the shard is reopened if the window has changed.
"""

from __future__ import annotations

from collections.abc import Iterable

from evsched.errors import StoreRefused
from evsched.execution.run import Run
from evsched.jobs.job import Deferred
from evsched.store.store import Store
from evsched.worker.served_queue import ServedQueue


class ShardWindows:
    """Compares the windows by which a worker has deferred jobs of a queue. Of one that is no shard, it has none."""

    def __init__(self, served: ServedQueue) -> None:
        self._served = served
        whole = served.runtime.shards.whole(served.queue)
        self._keeper = None if whole == served.queue else Store(whole)
        self._used = set[tuple[str, str]]()
        """Name and text of the windows that are to be compared."""

    def note(self, ended: Iterable[Run]) -> None:
        """Note the windows of runs whose ends are written."""
        if self._keeper is not None:
            outcomes = (run.outcome for run in ended)
            self._used.update((one.window, one.text) for one in outcomes if isinstance(one, Deferred) and one.elsewhere)

    async def check(self) -> None:
        """Reopen the jobs whose windows have changed since they were read.

        Raises:
            StoreDown: the next call does the rest.
        """
        while self._used and self._keeper is not None:
            name, text = used = next(iter(self._used))
            try:
                if await self._served.runtime.sender.send(self._keeper.window(name)) != text:
                    await self._reopen(name)
            except StoreRefused:
                pass  # a key of the wrong type, which the next run of such a job reports
            self._used.discard(used)

    async def _reopen(self, name: str) -> None:
        left = 1
        while left:
            _, left = await self._served.runtime.sender.send(self._served.store.reopen(name))
