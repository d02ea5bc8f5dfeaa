"""Lost replies: how a worker finds the jobs in its list that it does not know of, and the ends that are written.

If the reply to a BLMOVE or a `start` is lost, the jobs that it named stay in the worker's list in Redis, where nobody
runs them. So the list itself is read: at the start, after each failure, when `start` did not hand out a job that it was
asked for, and when heartbeats count more jobs than are known.

If the reply to the end of a run is lost, the end is sent again, and finds the run gone. But the job's id may have been
scheduled again, dispatched, and started by the same exchange, as a run with the same number. The repeated end would end
that one. So before an end is repeated, the record is asked when its job was started last.

A repeated end that finds the run gone was written the first time, or the lease was lost before. So the record is asked
after it too: if the job was not started since, and is as this end would leave it, the end is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from evsched.errors import StoreRefused
from evsched.execution.run import Run
from evsched.jobs.job import Aborted, Buried, Deferred, Done, Requeued, Retried, Snoozed
from evsched.store.worker_calls import Fetched, LastRun
from evsched.worker.held_runs import HeldRuns
from evsched.worker.served_queue import ServedQueue
from evsched.worker.slots import Share


class LostReplies:
    """Compares the worker's list with the jobs that it knows of."""

    def __init__(self, served: ServedQueue, held: HeldRuns, share: Share) -> None:
        self._served = served
        self._held = held
        self._share = share
        self.suspected = True
        """The list may hold jobs that are not known here. At the start it may."""

    def look_for(self, asked: Sequence[str], reply: Fetched) -> None:
        """Look at what `start` did of the jobs that it was asked for: those that it left out may not have fitted."""
        if asked and not self._held.runs.keys() >= {*asked} - {job_id for job_id, _ in reply.buried}:
            self.suspected = True

    async def drop_written(self) -> list[Run]:
        """Drop and return the ended runs whose jobs this worker has started again since: their ends are written.

        Raises:
            StoreDown
        """
        ended = list(self._held.ended)  # others end meanwhile
        again = await asyncio.gather(*(self._started_again(run) for run in ended))
        written = [run for run, was in zip(ended, again, strict=True) if was]
        self._held.drop(written)
        return written

    async def written(self, lost: Sequence[Run]) -> list[Run]:
        """Return those of the runs, all reported as lost, whose ends were written before they were sent again.

        The others may be written too: a record that is gone, or that belongs to a newer job or run, does not tell.
        """
        repeated = [run for run in lost if run.repeated]
        found = await asyncio.gather(*(self._last_run(run) for run in repeated), return_exceptions=True)
        return [
            run
            for run, last in zip(repeated, found, strict=True)
            if isinstance(last, LastRun) and _is_end_of(run, last)
        ]

    async def _started_again(self, run: Run) -> bool:
        try:
            last = await self._last_run(run)
        except StoreRefused:
            return False  # its key is not a hash any more, and the end will say so
        return last.worker == self._served.worker and last.started > run.delivery.now

    async def _last_run(self, run: Run) -> LastRun:
        return await self._served.runtime.sender.send(self._served.store.last_run(run.job.id))

    async def find(self) -> None:
        """Read the list. Start the jobs that are not known, as far as there are slots, and hand back the others.

        Raises:
            StoreDown, StoreRefused
        """
        sender, store, worker = self._served.runtime.sender, self._served.store, self._served.worker
        unknown = self._held.unknown(await sender.send(store.held(worker)))
        kept = [job_id for job_id in unknown if self._share.reserve_one()]
        self._held.fetched += kept
        if len(kept) < len(unknown):
            await sender.send(store.requeue(worker, "no slot was free", ids=unknown[len(kept) :]))
        self.suspected = False


def _is_end_of(run: Run, last: LastRun) -> bool:
    """Whether a record is as the end of this run leaves it. `requeue` deletes `started`, and so does `defer`."""
    if not 0.0 < last.started <= run.delivery.now:
        return False
    match run.outcome:
        case Done():
            return last.outcome == "done"
        case Buried(outcome=outcome):
            return last.outcome == outcome
        case Aborted():
            return last.outcome == "cancelled"
        case Retried() | Snoozed():
            return last.outcome is None and last.worker is None
        case Deferred() | Requeued() | None:
            return False
