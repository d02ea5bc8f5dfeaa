"""The status reporter: it reports the runs of a worker, and where the code of one is, on request.

The asker publishes the name of its own reply channel to the queue's `status` channel; each worker of the queue sends
one message there. Without a request nothing is sent, and a batch of jobs costs a few additions.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import sys
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from types import FrameType
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec import Meta, Struct

from evsched import events, keys
from evsched.errors import StoreError
from evsched.events import Event
from evsched.execution.failure import Stack, stack_of, stack_of_frames
from evsched.execution.run import Run
from evsched.runtime.loops import Runtime
from evsched.store.store import Store
from evsched.worker.consumer import QueueConsumer
from evsched.worker.slots import FetchPause

_RECENT: Final = 1000
"""Starts whose lateness is kept for each queue. If there are more between two requests, the newest are reported."""

_SHOWN: Final = 50
"""Runs that one report names, the longest first: more than a terminal shows."""

_NAME: Final = 200
"""Characters of a task's name in a report. It comes from the payload, and may be as long as that."""

_MOST: Final = 1e10
"""Seconds: JSON knows no infinity, which is the lateness of a job that was due at -inf."""

_DEEP: Final = 200
"""Frames of coroutines that are followed."""

_LINKS: Final = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
"""Where coroutines, generators and async generators have their frame, and what they wait for."""

Count = Annotated[int, Meta(ge=0, le=2**53)]


class Running(Struct, frozen=True):
    """One run in a report; `seconds` since it was handed out."""

    id: str
    task: str
    attempt: Count
    seconds: float


class WorkerStatus(Struct, frozen=True):
    """A worker's report for one queue. The counts are since its start."""

    worker: str
    queue: str
    slots: Count
    busy: Count
    """Busy slots, of all its queues: they share the slots."""
    started: Count
    done: Count
    failed: Count
    """Runs that are to be tried again, and jobs given up."""
    lateness: list[float]
    """Seconds from the due to the start, of the newest `started`. The growth of `started` says how many are new."""
    running: Count
    runs: list[Running]
    """The longest of `running`."""
    not_fetching: FetchPause | None = None
    """Why it fetches nothing from this queue now, however many slots are free; None = it fetches when it has a slot."""


class RunStack(Struct, frozen=True):
    """Where the handler of a run is now."""

    worker: str
    queue: str
    id: str
    attempt: Count
    seconds: float
    stack: str
    """As of a traceback, at most 4 KiB; empty if only evsched's own code is seen, as for a handler in a process."""


class _Tally:
    """Counts of the runs of one queue."""

    __slots__ = ("done", "failed", "lateness", "started")

    def __init__(self) -> None:
        self.started = self.done = self.failed = 0
        self.lateness = deque[float](maxlen=_RECENT)


class StatusReporter:
    """Reports for one worker, to whose events it subscribes."""

    def __init__(self, runtime: Runtime, worker: str, consumers: Mapping[str, QueueConsumer]) -> None:
        self._worker = worker
        self._slots = runtime.config.concurrency
        self._sender = runtime.sender
        self._consumers = consumers
        self._tallies = defaultdict[str, _Tally](_Tally)
        self._requests = set[tuple[str, str, str]]()
        """Queue, channel, and the id of the job whose stack is asked for; empty = the status is."""
        self._replying: asyncio.Task[None] | None = None

    def on_event(self, event: Event) -> None:
        """Count the runs that the worker's consumers report."""
        if isinstance(event, events.Started):
            tally = self._tallies[event.queue]
            tally.started += len(event.lateness)
            tally.lateness.extend(event.lateness)
        elif isinstance(event, events.Completed):
            self._tallies[event.queue].done += len(event.ids)
        elif isinstance(event, events.Retrying | events.JobBuried):
            self._tallies[event.queue].failed += 1

    def requested(self, queue: str, message: str) -> None:
        """Report to a channel, if it is one for reports. Requests that come together are served together.

        A message with the id of a job asks for the stack of its run: the worker replies that runs it.
        """
        channel, _, job_id = message.partition(" ")
        if not keys.is_status_reply(queue, channel):
            return
        self._requests.add((queue, channel, job_id))
        if self._replying is None or self._replying.done():
            self._replying = asyncio.get_running_loop().create_task(self._reply())

    async def _reply(self) -> None:
        # While Redis is down nothing can be reported; `evsched top` asks again.
        with contextlib.suppress(StoreError):
            while self._requests:
                requests, self._requests = self._requests, set[tuple[str, str, str]]()
                reports = [
                    (queue, channel, self.stack(queue, job_id) if job_id else self.status(queue))
                    for queue, channel, job_id in requests
                ]
                calls = [
                    Store(queue).reply_status(channel, msgspec.json.encode(report))
                    for queue, channel, report in reports
                    if report is not None
                ]
                await self._sender.send_all(calls)

    def status(self, queue: str) -> WorkerStatus:
        """Return the report for a queue."""
        tally, now = self._tallies[queue], time.monotonic()
        runs = self._running(queue)
        longest = heapq.nsmallest(_SHOWN, runs, key=lambda run: run.delivery.sent)
        return WorkerStatus(
            worker=self._worker,
            queue=queue,
            slots=self._slots,
            busy=sum(len(self._running(name)) for name in self._consumers),
            started=tally.started,
            done=tally.done,
            failed=tally.failed,
            lateness=[round(min(late, _MOST), 6) for late in tally.lateness],
            running=len(runs),
            runs=[
                Running(run.job.id, run.task[:_NAME], run.job.attempt, round(now - run.delivery.sent, 3))
                for run in longest
            ],
            not_fetching=self._consumers[queue].demand.not_fetching,
        )

    def stack(self, queue: str, job_id: str) -> RunStack | None:
        """Return where the run of a job is; None if this worker does not run it."""
        run = next((run for run in self._running(queue) if run.job.id == job_id), None)
        if run is None:
            return None
        seconds = round(time.monotonic() - run.delivery.sent, 3)
        return RunStack(self._worker, queue, job_id, run.job.attempt, seconds, _stack_of(run).traceback)

    def _running(self, queue: str) -> list[Run]:
        return [run for run in self._consumers[queue].held.runs.values() if run.work is not None]

    def close(self) -> None:
        """Report no more."""
        if self._replying is not None:
            self._replying.cancel()


def _stack_of(run: Run) -> Stack:
    """Return the code that a run is in. For the event loop's thread: an async handler waits meanwhile.

    A handler in a process of its own is not seen: the code is that which waits for it.
    """
    module = "" if run.prepared is None else run.prepared.task.module
    if run.thread:
        frame = sys._current_frames().get(run.thread)  # pyright: ignore[reportPrivateUsage]
        return Stack() if frame is None else stack_of(frame, module)
    return Stack() if run.work is None else stack_of_frames(_frames(run.work), module)


def _frames(work: asyncio.Task[Any]) -> list[tuple[FrameType, int]]:
    """Return the frames of a task that waits, the outermost first, and of the tasks that it waits for."""
    found, waits = list[tuple[FrameType, int]](), cast("Any", work)
    while isinstance(waits, asyncio.Task) and len(found) < _DEEP:
        one = cast("Any", waits).get_coro()
        while one is not None and len(found) < _DEEP:
            names = next((names for names in _LINKS if hasattr(one, names[0])), None)
            if names is None:
                break
            frame, one = (getattr(one, name) for name in names)
            if frame is not None:
                found.append((frame, frame.f_lineno))
        # `gather` waits for several tasks: the first that has not ended stands for them.
        future: Any = getattr(cast("Any", waits), "_fut_waiter", None)
        waits = next((child for child in getattr(future, "_children", ()) if not child.done()), future)
    return found
