"""What Redis is told of runs on their way: that they have begun, and how far they are.

Neither is needed for a job to be right, so neither is waited for, and a run that is shorter than the first delay is not
written about at all.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from evsched.errors import StoreError
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender
from evsched.worker.run import Run

_MARK_AFTER: Final = 0.025
"""Seconds after which a run is marked as begun. When its worker dies later its attempt counts; if it dies before that,
nobody knows whether the run had begun."""

_BEGINS_WITHIN: Final = 1.0
"""Seconds after which a run that has not begun is not waited for any more: it waits for something that takes long."""

_PROGRESS: Final = 0.25
"""Seconds between two writes of the progress of runs."""


class Notes:
    """Writes about the runs in `held`. For the event loop's thread, but for `progressed`."""

    def __init__(self, sender: BatchingSender, store: Store, worker: str, held: dict[str, Run]) -> None:
        self._sender = sender
        self._store = store
        self._worker = worker
        self._held = held
        self._loop = asyncio.get_running_loop()
        self._marking: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None
        self._told = asyncio.Event()
        """No progress is on its way."""
        self._told.set()
        self._writing = set[asyncio.Task[None]]()

    def handed_out(self) -> None:
        """Note that there are new runs."""
        if self._marking is None:
            self._marking = self._loop.call_later(_MARK_AFTER, self._mark)

    def progressed(self) -> None:
        """Note that a run has told how far it is. For any thread."""
        self._loop.call_soon_threadsafe(self._tell)

    async def settle(self) -> None:
        """Wait until the progress that is on its way is written: it must not come after the last of its run."""
        await self._told.wait()

    def close(self) -> None:
        """Write no more."""
        if self._marking is not None:
            self._marking.cancel()
        for task in (self._telling, *self._writing):
            if task is not None:
                task.cancel()

    def _mark(self) -> None:
        self._marking = None
        now, begun, more = time.monotonic(), list[Run](), False
        for run in self._held.values():
            if run.marked or run.took is not None:
                continue
            if run.began and run.began <= now - _MARK_AFTER:
                run.marked = True
                begun.append(run)
            elif run.began or run.delivery.received > now - _BEGINS_WITHIN:
                more = True
        if begun:
            task = self._loop.create_task(self._write_marks(begun))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
        if more:
            self.handed_out()

    async def _write_marks(self, runs: list[Run]) -> None:
        try:
            await self._sender.send(self._store.begin(self._worker, [(run.job, "1") for run in runs]))
        except StoreError:
            for run in runs:
                run.marked = False
            self.handed_out()

    def _tell(self) -> None:
        if self._telling is None or self._telling.done():
            self._telling = self._loop.create_task(self._write_progress())

    async def _write_progress(self) -> None:
        while told := [(run, run.progress) for run in self._held.values() if run.progress is not None]:
            rows = [(run.job, progress) for run, progress in told]
            self._told.clear()
            try:
                await self._sender.send(self._store.progress(self._worker, rows))
            except StoreError:
                return  # Redis is away: the next one tells more, and the end of the run at the latest
            finally:
                self._told.set()
            for run, progress in told:
                if run.progress is progress:
                    run.progress = None
            await asyncio.sleep(_PROGRESS)
