"""A whole system in the test's own event loop: a dispatcher, workers, and a recorder of their events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from msgspec.structs import replace

from evsched.app import App
from evsched.batches.keeper import BatchKeeper
from evsched.config import Config
from evsched.dispatcher.dispatcher import ClusterDispatcher, Dispatcher
from evsched.events import Events, WorkerStarted
from evsched.execution.precautions import AppSource
from evsched.process_events import Subscribed
from evsched.runtime.loops import Runtime
from evsched.transport.senders import BatchingSender
from evsched.transport.servers import topology
from evsched.worker.worker import Worker
from tests.support.recorder import Recorder


class System:
    """The parts of a running system that a test may use."""

    def __init__(self, config: Config, app: App, recorder: Recorder) -> None:
        # So that an event that is lost costs a test its patience, however short its lease is.
        config = replace(config, safety_cap=config.safety_cap or 30.0)
        self.config = config
        self.app = app
        self.recorder = recorder
        self.events = Events(recorder)
        self.sender = BatchingSender(config.url)
        self.runtime = Runtime(config, self.sender, self.events.emit, shards=app.shards)
        self.dispatcher = Dispatcher(self.runtime, [BatchKeeper])
        cluster = topology(config.url)
        self.cluster = None if cluster is None else ClusterDispatcher(self.runtime, cluster, [BatchKeeper])
        self.events.subscribe((self.cluster or self.dispatcher).on_event)
        self.workers: list[Worker] = []
        self._working: list[asyncio.Task[None]] = []
        self._dispatching: list[asyncio.Task[None]] = []

    def work(self, app: App | None = None) -> Worker:
        """Start one more worker, of another app if one is given."""
        app = app or self.app
        queues = list(self.config.queues or self.app.queues)
        source = None if app.origin is None else AppSource(app.origin)
        worker = Worker(self.runtime, app.program, queues, source=source)
        self.workers.append(worker)
        self._working.append(asyncio.create_task(worker.run()))
        return worker

    def dispatch(self) -> None:
        """Start the dispatcher."""
        self._dispatching.append(asyncio.create_task((self.cluster or self.dispatcher).run()))

    async def stop(self) -> None:
        """Stop the workers as SIGTERM does, cancel the rest, and raise the first failure."""
        for worker in self.workers:
            worker.stop()
        ended = await asyncio.gather(*self._working, return_exceptions=True)
        for task in self._dispatching:
            task.cancel()
        ended += await asyncio.gather(*self._dispatching, return_exceptions=True)
        await self.app.close()
        await self.sender.close()
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome


@asynccontextmanager
async def system(
    config: Config, app: App, recorder: Recorder | None = None, *, workers: int = 1, dispatch: bool = True
) -> AsyncGenerator[System]:
    """Run a system, which is ready when it is yielded."""
    recorder = recorder or Recorder()
    app.move_to(config.url)
    running = System(config, app, recorder)
    try:
        if dispatch:
            running.dispatch()
            await recorder.wait(Subscribed)
        for n in range(workers):
            running.work()
            await recorder.wait(WorkerStarted, count=n + 1)
        yield running
    finally:
        await running.stop()
