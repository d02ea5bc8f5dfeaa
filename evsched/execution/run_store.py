"""What a run needs of Redis before it begins: the window that its job names, and the mark that it begins."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from evsched.errors import NO_ENTRY, StoreRefused
from evsched.execution.run import Run
from evsched.jobs.job import Mark
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.runtime.runtime import Runtime
from evsched.store.store import Store


class RunStore(Protocol):
    """What the executor asks of Redis. Either call waits while Redis is away."""

    async def read_window(self, queue: str, name: str) -> str | None:
        """Return the window that is kept under a name; None = there is none.

        Raises:
            StoreRefused: it cannot be read.
        """
        ...

    async def mark(self, run: Run, mark: Mark) -> bool:
        """Write that a run is about to begin; return whether its job is still this worker's."""
        ...


class NoRunStore:
    """A RunStore without Redis: no windows are kept, and no marks are needed."""

    async def read_window(self, queue: str, name: str) -> str | None:
        """Return None."""
        return None

    async def mark(self, run: Run, mark: Mark) -> bool:
        """Return True."""
        return True


class RedisRunStore:
    """The RunStore of a worker."""

    def __init__(self, runtime: Runtime, worker: str) -> None:
        self._sender = runtime.sender
        self._worker = worker
        self._reconnect = Reconnect("worker", runtime.emit)
        self._marking = Reconnects("worker, marking runs", runtime.emit)
        self._refused = Reconnects("worker, windows", runtime.emit)
        self._reading = dict[tuple[str, str], asyncio.Future[str | None]]()

    async def mark(self, run: Run, mark: Mark) -> bool:
        """Mark a run, as `RunStore.mark`."""
        store = Store(run.delivery.queue)
        while True:
            async with self._marking.of(store.queue):
                return not await self._sender.send(store.begin(self._worker, [(run.job, mark)]))

    async def read_window(self, queue: str, name: str) -> str | None:
        """Read a window, as `RunStore.read_window`. Runs that ask for it at the same time share one call."""
        reading = self._reading.get((queue, name))
        if reading is None:
            reading = self._reading[queue, name] = asyncio.ensure_future(self._read(queue, name))
            reading.add_done_callback(partial(self._has_read, queue, name))
        return await asyncio.shield(reading)  # a run that is stopped must not cancel the call of the others

    def _has_read(self, queue: str, name: str, reading: asyncio.Future[str | None]) -> None:
        del self._reading[queue, name]
        if not reading.cancelled():
            reading.exception()  # retrieved here, since all the runs that asked may have been stopped

    async def _read(self, queue: str, name: str) -> str | None:
        refused, store = self._refused.of(queue), Store(queue)
        error: StoreRefused
        while True:
            async with self._reconnect:
                try:
                    window = await self._sender.send(store.window(name))
                except StoreRefused as met:
                    if met.kind in NO_ENTRY:
                        raise
                    error = met
                    break
                refused.passed()
                return window
        refused.failed(error)
        raise error
