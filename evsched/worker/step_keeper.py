"""The worker's part of what runs keep for later runs: it asks Redis their questions, and waits while Redis is down."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from evsched.errors import StoreRefused
from evsched.execution.run import Run
from evsched.jobs.kept import KeptAnswer, Question
from evsched.runtime.reconnect import Reconnect
from evsched.worker.exchange import ServedQueue


class StepKeeper:
    """Answers the questions of the runs of one queue."""

    def __init__(self, served: ServedQueue) -> None:
        self._served = served
        self._loop = asyncio.get_running_loop()
        self._reconnect = Reconnect("worker, steps", served.runtime.emit, served.queue)

    def ask(self, run: Run, question: Question) -> Future[KeptAnswer]:
        """Ask Redis a question of a run. For any thread."""
        return asyncio.run_coroutine_threadsafe(self._ask(run, question), self._loop)

    async def _ask(self, run: Run, question: Question) -> KeptAnswer:
        call = self._served.store.answer(self._served.worker, run.job, question)
        while True:
            async with self._reconnect:
                try:
                    return await self._served.runtime.sender.send(call)
                except StoreRefused as error:
                    return KeptAnswer("refused", str(error).encode(errors="replace"))
