"""The recovery of the jobs that a worker process held when it died: its parent puts them back at once.

Nobody but the parent knows at once that the process is gone. For all others the worker is dead when its lease has
ended, and then a janitor does the same. Which of the two puts a job back is decided by `requeue`, which removes the job
from the worker's list. The parent leaves the lease alone: a BLMOVE of the dead process may still wait in Redis and move
another job into that list, which the janitor finds when the lease ends.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

from evsched import events
from evsched.config import Config
from evsched.events import Emit
from evsched.lease import Times
from evsched.process.reports import Ready
from evsched.runtime.reconnect import Reconnect
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_NO_LEASE = b"none"
"""What `requeue` takes for the lease of a worker that has none."""


class Recovery:
    """Puts back what ended worker processes held."""

    def __init__(self, config: Config, emit: Emit) -> None:
        self._times, self._batch = Times(config), config.batch
        self._emit = emit
        self._running = set[asyncio.Task[None]]()

    def begin(self, worker: Ready, code: int, count: Counter[str]) -> asyncio.Task[None]:
        """Put back what a worker held whose process has ended with `code`; add to `count` how many jobs, by queue.

        While Redis is down it tries again, until a janitor has long done it.
        """
        task = asyncio.ensure_future(self._put_back_all(worker, code, count))
        self._running.add(task)  # asyncio itself holds no reference to a task
        task.add_done_callback(self._running.discard)
        return task

    async def _put_back_all(self, worker: Ready, code: int, count: Counter[str]) -> None:
        reason = f"worker {worker.worker} died: its process {_describe(code)}"
        sender = BatchingSender(worker.url, reply_timeout=self._times.reply_timeout)
        try:
            async with asyncio.timeout(self._times.lease):
                async with asyncio.TaskGroup() as group:
                    for queue in worker.queues:
                        group.create_task(self._put_back(sender, Store(queue), worker.worker, reason, count))
        except TimeoutError:
            pass
        finally:
            await sender.close()

    async def _put_back(
        self, sender: BatchingSender, store: Store, worker: str, reason: str, count: Counter[str]
    ) -> None:
        """Put back the jobs of one queue, whatever becomes of the others."""
        reconnect, done = Reconnect("recovery", self._emit, store.queue), False
        while not done:
            async with reconnect:
                await self._try(sender, store, worker, reason, count)
                done = True

    async def _try(self, sender: BatchingSender, store: Store, worker: str, reason: str, count: Counter[str]) -> None:
        """Put back what the worker's list of one queue holds.

        Raises:
            StoreDown, StoreRefused: some may have been put back.
        """
        survey, held = await sender.send_all([store.survey(), store.held(worker)])
        lease, rest = next((one.end for one in survey.leases if one.worker == worker), _NO_LEASE), ""
        while held and rest != "moved":  # moved: a janitor was quicker
            # The last ones first, each slice to the front of ready: so their order stays.
            held, ids = held[: -self._batch], held[-self._batch :]
            done = await sender.send(store.requeue(worker, reason, ids=ids, lease=lease))
            rest, queue = done.rest, store.queue
            count[queue] += len(done.ids)
            if done.ids:
                self._emit(events.JobsRequeued(queue=queue, worker=worker, ids=done.ids, cause="died", reason=reason))
            for job_id in done.cancelled:
                self._emit(events.JobAborted(queue=queue, id=job_id))


def _describe(code: int) -> str:
    """Say how a process ended, by its exit code; a negative one is the signal that ended it."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
