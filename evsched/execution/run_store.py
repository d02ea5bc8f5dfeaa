"""The calls to Redis before a run begins: to read its window, since when its task is unknown, and to mark it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from evsched.errors import NO_ENTRY, StoreDown, StoreRefused
from evsched.execution.run import Run
from evsched.jobs.job import Mark
from evsched.jobs.record import unknown_since
from evsched.runtime.loops import Runtime
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.store.store import Store
from evsched.transport.call import Call, T

_UNKNOWN_MOST: Final = 64
"""Bytes: room for two moments. A longer value is malformed, and is not read."""

_PATIENCE: Final = 0.5
"""Seconds that the runs of a queue wait in their slots for its windows. Then other jobs get these slots: the node that
keeps the windows may hang."""


class RunStore:
    """The executor's calls to Redis. Each one waits while Redis is down, unless it says otherwise.

    This one has no Redis: no windows are kept, and no marks are needed.
    """

    async def read_window(self, queue: str, name: str) -> str | None:
        """Return the window that is kept under a name; None = no window has that name.

        Raises:
            StoreDown: the node that keeps the window has not answered for half a second.
            StoreRefused: it cannot be read.
        """
        return None

    async def unknown_since(self, run: Run) -> float | None:
        """Return since when workers have not known the task of a job, Unix seconds; None = this one is the first.

        Raises:
            StoreRefused: it cannot be read.
        """
        return None

    async def seek(self, run: Run, task: str) -> bool:
        """Note that this worker does not know a task; return whether another worker of the queue does.

        Raises:
            StoreRefused: it cannot be read.
        """
        return False

    async def mark(self, run: Run, mark: Mark) -> bool:
        """Write that a run is about to begin; return whether its job is still this worker's."""
        return True


class RedisRunStore(RunStore):
    """The RunStore of a worker."""

    def __init__(self, runtime: Runtime, worker: str) -> None:
        self._sender = runtime.sender
        self._worker = worker
        self._reconnect = Reconnect("worker", runtime.emit)
        self._marking = Reconnects("worker, marking runs", runtime.emit)
        self._windows = Reconnects("worker, windows", runtime.emit)
        self._unknown = Reconnects("worker, jobs of unknown tasks", runtime.emit)
        self._reading = dict[tuple[str, str], tuple[asyncio.Future[str | None], float]]()
        """The windows that are being read by queue and name, each with the time when it was asked for, by the clock of
        the loop."""

    async def mark(self, run: Run, mark: Mark) -> bool:
        store = Store(run.delivery.queue)
        while True:
            async with self._marking.of(store.queue):
                return not await self._sender.send(store.begin(self._worker, [(run.job, mark)]))

    async def read_window(self, queue: str, name: str) -> str | None:
        """Read a window. Runs that ask for it at the same time share one call.

        All windows of a queue are on one node, so runs wait for the one that was asked for first, and no longer.
        """
        now = asyncio.get_running_loop().time()
        if (queue, name) not in self._reading:
            reading = asyncio.ensure_future(self._read(self._windows.of(queue), Store(queue).window(name)))
            reading.add_done_callback(partial(self._has_read, queue, name))
            self._reading[queue, name] = reading, now
        reading, _ = self._reading[queue, name]
        first = min(asked for (of, _), (_, asked) in self._reading.items() if of == queue)
        try:
            async with asyncio.timeout_at(first + _PATIENCE):
                return await asyncio.shield(reading)  # a run that is stopped must not cancel the call of the others
        except TimeoutError:
            raise StoreDown(f"Redis gave no answer within {_PATIENCE:g} s", kind="timeout") from None

    def _has_read(self, queue: str, name: str, reading: asyncio.Future[str | None]) -> None:
        del self._reading[queue, name]
        if not reading.cancelled():
            reading.exception()  # retrieved here, since all the runs that asked may have been stopped

    async def unknown_since(self, run: Run) -> float | None:
        queue, job = run.delivery.queue, run.job
        store, refused = Store(queue), self._unknown.of(queue)
        if not 0 < await self._read(refused, store.unknown_size(job.id)) <= _UNKNOWN_MOST:
            return None
        return unknown_since(await self._read(refused, store.unknown(job.id)), job.due)

    async def seek(self, run: Run, task: str) -> bool:
        queue = run.delivery.queue
        return await self._read(self._unknown.of(queue), Store(queue).seek(task))

    async def _read(self, refused: Reconnect, call: Call[T]) -> T:
        """Send a call that changes no job; wait while Redis is down.

        Raises:
            StoreRefused: Redis refuses it, which is reported as a failure of `refused`.
        """
        error: StoreRefused
        while True:
            async with self._reconnect:
                try:
                    reply = await self._sender.send(call)
                except StoreRefused as met:
                    if met.kind in NO_ENTRY:
                        raise
                    error = met
                    break
                refused.passed()
                return reply
        refused.failed(error)
        raise error
