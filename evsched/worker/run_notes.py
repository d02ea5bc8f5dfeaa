"""The notes of runs that go on: that they have begun, how far they are, and what they keep for later runs.

No job depends on the first two, so nothing waits for them. A handler waits until what it keeps is in Redis.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Final

from evsched.errors import CannotOpen, StoreError, StoreRefused
from evsched.execution.run import Run
from evsched.jobs.kept import Keep, KeptAnswer, Question, Recall, WaitFor
from evsched.jobs.sealed import About, PayloadCodec, open_steps, open_text, seal_value
from evsched.runtime.reconnect import Reconnect
from evsched.worker.exchange import ServedQueue

_MARK_AFTER: Final = 0.025
"""Seconds after which a run is marked as begun. If its worker dies later, the attempt counts. If it dies before,
it is not known whether the run had begun."""

_BEGINS_WITHIN: Final = 1.0
"""Seconds after which the timer no longer waits for a run to begin: the run waits for something that takes long."""

_INTERVAL: Final = 0.25
"""Seconds between two writes of the progress of runs."""


class ProgressWriter:
    """Writes the marks and the progress of `runs` that have not ended: that they have begun, and how far they are.

    No job depends on these writes, so nothing waits for them, and a run that ends before the first delay causes none.
    For the event loop's thread; `progressed` is for any thread.
    """

    def __init__(self, served: ServedQueue, runs: Mapping[str, Run]) -> None:
        self._served = served
        self._runs = runs
        self._loop = asyncio.get_running_loop()
        self._mark_timer: asyncio.TimerHandle | None = None
        self._marking = set[asyncio.Task[None]]()
        self._writing: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """No progress is being written."""
        self._settled.set()

    def handed_out(self) -> None:
        """Note that there are new runs."""
        if self._mark_timer is None:
            self._mark_timer = self._loop.call_later(_MARK_AFTER, self._mark)

    def rest(self) -> None:
        """Note that all runs have ended: none is to be marked, so the timer need not wake the worker."""
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None

    def progressed(self) -> None:
        """Note that a run has reported progress. For any thread."""
        self._loop.call_soon_threadsafe(self._write)

    async def settle(self) -> None:
        """Wait until the progress that is being written has arrived, so that the last of a run is written last."""
        await self._settled.wait()

    def close(self) -> None:
        """Write no more."""
        self.rest()
        for task in (self._writing, *self._marking):
            if task is not None:
                task.cancel()

    def _mark(self) -> None:
        """Mark the runs that began long enough ago; set the timer again if there are others."""
        self._mark_timer = None
        now, begun, more = time.monotonic(), list[Run](), False
        for run in self._runs.values():
            if run.marked or run.took is not None:
                continue
            if run.entered and run.began <= now - _MARK_AFTER:
                run.marked = True
                begun.append(run)
            elif run.began or run.delivery.sent > now - _BEGINS_WITHIN:
                more = True
        if begun:
            task = self._loop.create_task(self._write_marks(begun))
            self._marking.add(task)
            task.add_done_callback(self._marking.discard)
        if more:
            self.handed_out()

    async def _write_marks(self, runs: list[Run]) -> None:
        store, worker = self._served.store, self._served.worker
        try:
            await self._served.runtime.sender.send(store.begin(worker, [(run.job, "1") for run in runs]))
        except StoreError:
            for run in runs:
                run.marked = False
            self.handed_out()

    def _write(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = self._loop.create_task(self._write_progress())

    async def _write_progress(self) -> None:
        store, worker = self._served.store, self._served.worker
        while reports := [(run, run.progress) for run in self._runs.values() if run.progress is not None]:
            rows = [(run.job, progress) for run, progress in reports]
            self._settled.clear()
            try:
                await self._served.runtime.sender.send(store.progress(worker, rows))
            except StoreError:
                return  # Redis is down; the next report writes it, or the end of the run
            finally:
                self._settled.set()
            for run, progress in reports:
                if run.progress is progress:
                    run.progress = None
            await asyncio.sleep(_INTERVAL)


class StepKeeper:
    """Answers the questions of the runs of one queue. `codec`: seals the results of steps; opens them, and signals."""

    def __init__(self, served: ServedQueue, codec: PayloadCodec | None) -> None:
        self._served = served
        self._codec = codec
        self._loop = asyncio.get_running_loop()
        self._reconnect = Reconnect("worker, steps", served.runtime.emit, served.queue)

    def ask(self, run: Run, question: Question) -> Future[KeptAnswer]:
        """Ask Redis a question of a run. For any thread."""
        return asyncio.run_coroutine_threadsafe(self._ask(run, question), self._loop)

    async def _ask(self, run: Run, question: Question) -> KeptAnswer:
        if self._codec is None:
            return await self._send(run, question)
        if isinstance(question, Keep) and not question.name.startswith("@"):
            about = About("step", question.name, run.job.id)
            question = Keep(question.name, seal_value(self._codec, about, question.value))
        answer = await self._send(run, question)
        try:
            if isinstance(question, WaitFor) and answer.how == "come":
                opened = open_text(self._codec, About("signal", question.signal, run.job.id), answer.value)
                return KeptAnswer("come", opened)
            if isinstance(question, Recall) and answer.how == "kept":
                return KeptAnswer("kept", open_steps(self._codec, run.job.id, answer.value))
        except CannotOpen as error:
            return KeptAnswer("refused", f"what the job has kept cannot be read: {error}".encode())
        return answer

    async def _send(self, run: Run, question: Question) -> KeptAnswer:
        call = self._served.store.answer(self._served.worker, run.job, question)
        while True:
            async with self._reconnect:
                try:
                    return await self._served.runtime.sender.send(call)
                except StoreRefused as error:
                    return KeptAnswer("refused", str(error).encode(errors="replace"))
