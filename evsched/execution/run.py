"""A run: one job in a worker, from the reply that handed it out to its outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from evsched.execution.prepare import NoTask, Prepared, prepare, read_payload
from evsched.jobs.current_job import CurrentJob, Progress
from evsched.jobs.job import Buried, FetchedJob, Forwarded, Outcome
from evsched.jobs.tasks import Hooks, Tasks

StopReason = Literal["timeout", "cancelled", "lost"]
"""Why a run is to stop: its timeout has passed; its job was cancelled; its job is not this worker's any more."""

_PRECEDENCE: Final[dict[StopReason | None, int]] = {None: 0, "timeout": 1, "cancelled": 2, "lost": 3}


class Delivery(Struct, frozen=True):
    """One reply of `start`: what the runs that it handed out have in common."""

    queue: str
    now: float
    """When Redis handed them out, by its clock."""
    sent: float
    """When the call of `start` was sent, by this host's monotonic clock; at most a round trip before `now`."""
    on_progress: Callable[[], None] | None = None
    """Called when one of the runs has reported progress, from any thread."""
    shard_of: str | None = None
    """The queue of which `queue` is a shard; None = it is none."""

    @property
    def whole_queue(self) -> str:
        """The queue as the program knows it, without its shards."""
        return self.shard_of or self.queue

    def redis_now(self) -> float:
        """Return the present time by Redis's clock; at most a round trip ahead of it."""
        return self.now + time.monotonic() - self.sent


class Run:
    """A run; `(job.id, job.attempt)` names it. One object for each job, so it is as small as it can be.

    Each group of attributes below has one writer. `job` and `delivery` are what was handed out, and do not change. The
    executor sets the attributes of the second group, and the consumer those of the third. The handler sets `progress`,
    from any thread, and nothing else. To stop a run, call `stop` in the event loop's thread.
    """

    __slots__ = (
        "began",
        "cancellable",
        "current",
        "delivery",
        "hooks",
        "job",
        "marked",
        "on_begin",
        "outcome",
        "prepared",
        "progress",
        "repeated",
        "stop_reason",
        "task",
        "thread",
        "took",
        "work",
    )

    def __init__(self, job: FetchedJob, delivery: Delivery) -> None:
        self.job: Final = job
        self.delivery: Final = delivery

        self.task = "?"
        """The name of the task; "?" until the payload is read."""
        self.hooks: Hooks | None = None
        """The hooks of the task, if the task is known."""
        self.prepared: Prepared | None = None
        self.current: CurrentJob | None = None
        """What the handler sees of the run."""
        self.marked = False
        """Redis knows, or will soon, that the run has begun. `ProgressWriter` writes this too."""
        self.began = 0.0
        """When the handler began, by the monotonic clock; 0 = it has not."""
        self.took: float | None = None
        """Seconds that the handler ran; None until it has ended."""
        self.cancellable = True
        """Cancelling `work` ends the handler. False for a thread."""
        self.thread = 0
        """The thread that runs the handler, if the handler has one of its own; else 0."""
        self.outcome: Outcome | None = None
        """What came of the run. None until it has ended, and for good if it is lost."""

        self.work: asyncio.Task[None] | None = None
        self.on_begin: Callable[[Run], None] | None = None
        """Called when the handler begins, if that is not at once."""

        self.repeated = False
        """Its end was sent before, and no reply came: it may be written already."""

        self.progress: Progress | None = None
        """What the handler reported last. `ProgressWriter` sets it back to None when that is written."""
        self.stop_reason: StopReason | None = None

    @property
    def reply(self) -> bool:
        """Whether the payload asks for a reply."""
        return self.prepared is not None and self.prepared.payload.reply

    @property
    def in_only_attempt(self) -> bool:
        """The handler is running, and the job has one attempt: it must not be run again."""
        prepared = self.prepared
        return prepared is not None and prepared.policy.attempts == 1 and self.began > 0 and self.took is None

    def report_progress(self, progress: Progress) -> None:
        """Note how far the run is. For any thread."""
        self.progress = progress
        if self.delivery.on_progress is not None:
            self.delivery.on_progress()

    def prepare(self, tasks: Tasks) -> Prepared | NoTask | Buried:
        """Read the payload and find the task; return what can be run, or why nothing can."""
        payload = read_payload(self.job)
        if isinstance(payload, Buried):
            return payload
        self.task = payload.task
        prepared = prepare(tasks, self.job, payload, self.delivery.redis_now())
        if isinstance(prepared, Prepared):
            self.prepared, self.hooks = prepared, prepared.task.hooks
        elif task := tasks.get(payload.task):
            self.hooks = task.hooks
        return prepared

    def end(self, outcome: Outcome | None) -> None:
        """Keep the outcome, unless the run was given up and has one; drop what a run needs only until it has ended.

        `current` refers to the run, and so does `work`, whose context has `current`. They would live until the garbage
        collector finds them.
        """
        if self.outcome is None:
            self.outcome = outcome
        self.prepared = self.current = self.work = None

    def refuse(self, why: str) -> None:
        """Note that Redis has refused the message with which the run ends: it ends in another way."""
        if isinstance(self.outcome, Forwarded):
            self.outcome = self.outcome.refused(why)

    def put_off(self, delay: float, why: str) -> None:
        """Note that Redis takes no message now, so that the run ends without one, and its job runs again later."""
        if isinstance(self.outcome, Forwarded):
            self.outcome = self.outcome.put_off(delay, why)

    def stop(self, reason: StopReason) -> None:
        """Tell the run to stop. "lost" takes precedence over "cancelled", and that over "timeout".

        An async handler is cancelled where it waits, a process is ended, and a thread must look at `cancelled`. A run
        that has not begun looks at `stop_reason` before it begins.
        """
        if _PRECEDENCE[reason] > _PRECEDENCE[self.stop_reason]:
            self.stop_reason = reason
        if self.current is None:
            return
        self.current.stopped = self.stop_reason
        if self.work is not None and self.cancellable:
            self.work.cancel()
