"""The jobs in a worker's list of one queue, as far as the worker knows them.

fetched (to be started) -> runs (until their end is written) -> ended (their end is to be written)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from evsched.execution.run import Delivery, Run
from evsched.execution.running_runs import Hang
from evsched.execution.verdict import Failed, judge
from evsched.jobs.job import FetchedJob


class HeldRuns:
    """Keeps account; starts nothing and asks Redis nothing. For the event loop's thread, except `busy`."""

    def __init__(self) -> None:
        self.fetched: list[str] = []
        """Ids that are to be started; each has a slot."""
        self.runs: dict[str, Run] = {}
        """By id: the runs whose end is not written yet."""
        self.ended: list[Run] = []
        """The runs that have ended and whose end is to be written. A run whose end is being written is not included."""
        self.running = 0
        """How many of `runs` have not ended."""
        self._cancelled = set[str]()
        """Ids of unknown jobs that were cancelled during an exchange: its reply may contain their runs."""
        self._surplus = 0
        """How many times in a row Redis counted more jobs than are known."""

    @property
    def busy(self) -> bool:
        """Whether there are any. For any thread."""
        return bool(self.runs or self.fetched)

    def begin_exchange(self, limit: int) -> tuple[list[Run], list[str]]:
        """Take out what the next exchange is to write, `limit` at the most, and what it is to start."""
        ended, self.ended = self.ended[:limit], self.ended[limit:]
        fetched, self.fetched = self.fetched, []
        self._cancelled.clear()
        return ended, fetched

    def keep(self, ended: list[Run], fetched: list[str]) -> None:
        """Keep what an exchange could not write or start for the next one."""
        for run in ended:
            run.repeated = True
        self.ended += ended
        self.fetched = fetched + self.fetched

    def add(self, jobs: Iterable[FetchedJob], delivery: Delivery) -> list[Run]:
        """Make runs of jobs that were handed out; return those that are new.

        If a job was cancelled while it was on its way, its run is told to stop.
        """
        # By id: a job that Redis names twice is one run.
        new = {job.id: Run(job, delivery) for job in jobs if job.id not in self.runs}
        for job_id in self._cancelled & new.keys():
            new[job_id].stop("cancelled")
        self.runs.update(new)
        self.running += len(new)
        return list(new.values())

    def end(self, run: Run) -> None:
        """Note that a run has ended. Nothing is written for one that is lost or has no outcome."""
        if run.stop_reason == "lost":
            return
        self.running -= 1
        if run.outcome is not None:
            self.ended.append(run)

    def forget(self, ended: Iterable[Run]) -> None:
        """Drop runs whose end is written, or is not this worker's to write."""
        for run in ended:
            if self.runs.get(run.job.id) is run:
                del self.runs[run.job.id]

    def drop(self, written: list[Run]) -> None:
        """Drop runs that are in `ended`, but whose end turned out to be written."""
        self.ended = [run for run in self.ended if run not in written]
        self.forget(written)

    def cancel(self, job_id: str) -> bool:
        """Stop a run, since its job was cancelled; return False if it does not run, or was stopped before.

        Jobs that have not started are ended by `start`.
        """
        run = self.runs.get(job_id)
        if run is None:
            self._cancelled.add(job_id)
        if run is None or run.stop_reason in ("cancelled", "lost"):
            return False
        run.stop("cancelled")
        return True

    def unknown(self, listed: Sequence[str]) -> list[str]:
        """Return which of the ids in the worker's list are not known here."""
        known = {*self.runs, *self.fetched}
        return [job_id for job_id in dict.fromkeys(listed) if job_id not in known]

    def is_surplus(self, count: int) -> bool:
        """Note how many jobs Redis has in the worker's list; return whether it had more than are known twice in a row.

        Once may be a job that is on its way. Twice is a reply that was lost.
        """
        self._surplus = self._surplus + 1 if count > len(self.runs) + len(self.fetched) else 0
        if self._surplus < 2:
            return False
        self._surplus = 0
        return True

    def lose(self) -> int:
        """Stop and drop everything: it is not this worker's any more. Return the slots of what had not started."""
        slots = len(self.fetched)
        self.stop_all()
        self.runs.clear()
        self.ended.clear()
        self.fetched.clear()
        self.running = 0
        return slots

    def stop_all(self) -> None:
        """Stop all runs; what comes of them is dropped."""
        for run in self.runs.values():
            run.stop("lost")

    def give_up(self, reason: str, hang: Hang | None = None) -> list[Run]:
        """Return the runs that may not be handed back when the worker ends before them, each with an outcome.

        A run that is in the only attempt of its job has failed for `reason`. The one that hangs has failed if it is at
        fault, whatever attempt it is in.
        """
        ended = list[Run]()
        for run in list(self.runs.values()):
            prepared, own = run.prepared, hang if hang is not None and hang.run is run else None
            if prepared is not None and (run.in_only_attempt or (own is not None and own.fault)):
                run.outcome = judge(run.job, prepared, Failed(reason) if own is None else own.failed(reason))
                ended.append(run)
        return ended
