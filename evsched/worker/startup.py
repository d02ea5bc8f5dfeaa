"""The start of a worker: from the app's lifespan to the leases of its queues. It waits for Redis; `stop` ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from evsched import events
from evsched.errors import CannotStart
from evsched.execution.handlers import Handlers
from evsched.execution.program import Program
from evsched.runtime.loops import Runtime
from evsched.store.store import Store
from evsched.worker.queue_setup import QueueSetup


class Startup:
    """Starts one worker."""

    def __init__(self, runtime: Runtime, worker: str, program: Program, setup: QueueSetup, handlers: Handlers) -> None:
        self._runtime = runtime
        self._worker = worker
        self._program = program
        self._setup = setup
        self._handlers = handlers
        self._task: asyncio.Task[Any] | None = None
        """The task that waits for the start."""
        self._stopped = False
        self.done = False
        """Whether each queue was tried, and one at least is set up."""

    async def run(self, stack: AsyncExitStack, stores: Sequence[Store]) -> bool:
        """Enter the lifespan in `stack` and set up at least one queue; return False if it was stopped.

        Raises:
            CannotStart: the lifespan did not begin.
        """
        task = self._task = asyncio.current_task()
        try:
            try:
                self._handlers.state = await stack.enter_async_context(self._program.lifespan())
            # Whatever a user's lifespan raises is the user's mistake, and is reported in one line.
            except Exception as error:  # noqa: BLE001
                raise CannotStart(f"the app's lifespan did not begin: {type(error).__name__}: {error}") from None
            await self._setup.until_one(stores)
            self.done = True
            self._report([store.queue for store in stores])
            return True
        except asyncio.CancelledError:
            if not self._stopped or (task is not None and task.uncancel()):
                raise
            return False
        finally:
            self._task = None

    def _report(self, queues: list[str]) -> None:
        slots, tasks = self._runtime.config.concurrency, sorted(self._program.tasks)
        self._runtime.emit(events.WorkerStarted(worker=self._worker, queues=queues, slots=slots, tasks=tasks))

    def stop(self) -> None:
        """Cancel the start, if it has not ended."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
