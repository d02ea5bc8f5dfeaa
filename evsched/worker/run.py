"""A run: one job in a worker's hands, from when it was handed out to its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from evsched.jobs.current_job import CurrentJob, Progress
from evsched.jobs.job import FetchedJob
from evsched.jobs.retry import Retry


class Run:
    """A run in a worker's hands: `(job.id, job.attempt)` names it."""

    __slots__ = (
        "abandoned",
        "aborted",
        "began",
        "came_back",
        "current",
        "deadline",
        "ends",
        "handed",
        "job",
        "late",
        "marked",
        "now",
        "on_begin",
        "policy",
        "progress",
        "queue",
        "reply",
        "report",
        "task",
        "took",
        "work",
    )

    def __init__(
        self, queue: str, job: FetchedJob, now: float, handed: float, report: Callable[[], None] | None = None
    ) -> None:
        self.queue = queue
        self.job = job
        self.now = now
        """When Redis handed it out, by Redis's clock."""
        self.handed = handed
        """The same by this host's monotonic clock."""
        self.task = "?"
        self.began = 0.0
        """When its handler did, by the monotonic clock; 0 = it has not."""
        self.marked = False
        """Redis knows that it has begun."""
        self.policy: Retry | None = None
        """The job's, once its payload is read."""
        self.reply = False
        """Its payload asks for one."""
        self.on_begin: Callable[[Run], None] | None = None
        """Called when its handler begins, if it did not at once."""
        self.came_back = False
        """There was no room for it to begin."""
        self.took: float | None = None
        """Seconds that the handler ran, once it has ended."""
        self.ends = True
        """Cancelling its asyncio task ends it; not so with a thread."""
        self.report = report
        self.progress: Progress | None = None
        self.current: CurrentJob | None = None
        self.work: asyncio.Task[None] | None = None
        self.deadline = float("inf")
        """By the monotonic clock: when the timeout passes."""
        self.late: str | None = None
        """The timeout has passed: what to say of it."""
        self.aborted = False
        """The job was cancelled: that is what comes of the run."""
        self.abandoned = False
        """The job is not this worker's any more: whatever comes of the run is forgotten."""

    @property
    def only_attempt(self) -> bool:
        """Its handler has begun, and must not be begun again by itself: the job has one attempt."""
        return self.policy is not None and self.policy.attempts == 1 and self.began > 0 and self.took is None

    def tell(self, progress: Progress) -> None:
        """Note how far the run is. For any thread."""
        self.progress = progress
        if self.report is not None:
            self.report()

    def stop(self) -> None:
        """Tell the run to stop.

        An async handler is cancelled where it waits, a process is ended, a thread must look at `cancelled`. A run that
        has not begun sees it when it begins.
        """
        if self.current is None:
            return
        self.current.stopped = "lost" if self.abandoned else "cancelled" if self.aborted else "timeout"
        if self.work is not None and self.ends:
            self.work.cancel()

    def abort(self) -> None:
        """Stop the run: its job was cancelled."""
        if not self.aborted:
            self.aborted = True
            self.stop()

    def abandon(self) -> None:
        """Stop the run, and forget what comes of it."""
        self.abandoned = True
        self.stop()
