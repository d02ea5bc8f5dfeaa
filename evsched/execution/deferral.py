"""Why a job cannot begin in this worker now: its task is unknown, its handler is missing, or its window is closed.

Such a job goes back to the schedule (`Deferred`), and is offered again to any worker that fetches it.

`RunStore` has the calls to Redis before a run begins: for these questions, and to mark the run.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from evsched.display import format_duration
from evsched.errors import NO_ENTRY, ConfigError, StoreDown, StoreError, StoreRefused, UnknownTask
from evsched.events import Emit, HandlerNotFound, TaskUnknown
from evsched.execution.run import Run
from evsched.jobs.job import Buried, DeferCause, Deferred, FetchedJob, Mark, Payload, shorten
from evsched.jobs.record import unknown_since
from evsched.jobs.tasks import Tasks
from evsched.recurrence.windows import WINDOW_NAME, read_window
from evsched.runtime.loops import Runtime
from evsched.runtime.reconnect import Reconnect, Reconnects
from evsched.store.store import Store
from evsched.transport.call import Call, T

_SOON: Final = 5.0
"""Seconds until the next start of a job that cannot begin before somebody corrects something. Long enough to cost
little, and short enough to begin soon after the correction."""

_LOOK_AGAIN: Final = 1.0
"""Seconds from one process that looks for a missing handler to the next: each start costs much CPU time."""

_FIRST: Final = 0.3
"""Seconds until the job is offered again for the first time. Each further wait is about twice as long."""

_LONGEST: Final = 30.0
"""The longest wait, in seconds. So a job is offered some 27 times in ten minutes: thousands of them cost little."""

_LONGEST_KNOWN: Final = 5.0
"""The longest wait while another worker has the task, in seconds. Chance decides which worker fetches the job next."""

_NAME_MOST: Final = 200
"""Characters of a task's name that are compared and reported."""

_REPORTED_MOST: Final = 1000
"""Task names whose reasons are kept: a producer may invent any number of names."""


def not_now(now: float, reason: str, cause: DeferCause = "window") -> Deferred:
    """Return the outcome of a run that cannot begin yet: its job comes back in some seconds."""
    return Deferred(now + _SOON * random.uniform(0.8, 1.2), shorten(reason), cause=cause)  # noqa: S311 - no secret


class UnknownTasks:
    """Defers or gives up jobs whose task is not in `tasks`, and reports each such task once.

    During a deploy, workers with the old code and workers with the new code serve the same queue, so a task that is
    unknown to one may be known to the next. The job is offered again after a time that grows. It is given up when no
    worker of the queue has had the task for the setting `unknown_task_grace`: while one has it, which is registered in
    Redis, only chance decides which worker fetches the job.

    `grace`: seconds for which a job waits for a worker that knows its task; 0 = it is given up at once, if no other
    worker of the queue has the task.
    """

    def __init__(self, tasks: Tasks, store: RunStore, grace: float, emit: Emit) -> None:
        self._tasks = tasks
        self._store = store
        self._grace = grace
        self._emit = emit
        self._reasons = dict[str, str]()
        """By task. To find the nearest name takes much longer than the rest of a run."""

    async def judge(self, run: Run, payload: Payload) -> Deferred | Buried:
        """Return the outcome of a run whose task is unknown."""
        reason = self._reason(run.delivery.queue, payload.task)
        try:
            since = await self._store.unknown_since(run)
            known = await self._store.seek(run, payload.task[:_NAME_MOST])
        except StoreRefused as error:
            why = shorten(f"{reason}; since when it is unknown cannot be read: {error}")
            return not_now(run.delivery.redis_now(), why, "task")
        return judge_unknown(run.job, payload, reason, since, run.delivery.redis_now(), self._grace, known=known)

    def _reason(self, queue: str, task: str) -> str:
        name = task[:_NAME_MOST]
        if name not in self._reasons:
            if len(self._reasons) >= _REPORTED_MOST:
                self._reasons.clear()
            self._reasons[name] = self._explain(task)
            self._emit(TaskUnknown(queue=queue, task=name, reason=self._reasons[name], grace=self._grace))
        return self._reasons[name]

    def _explain(self, task: str) -> str:
        try:
            name = self._tasks.find(task).name
        except UnknownTask as error:
            return shorten(str(error))
        return f"task {name!r} was registered just now"


def judge_unknown(
    job: FetchedJob,
    payload: Payload,
    reason: str,
    since: float | None,
    now: float,
    grace: float,
    *,
    known: bool = False,
) -> Deferred | Buried:
    """Return the outcome of a run whose task is unknown `since` a moment; None = this worker is the first.

    `known`: another worker of the queue has the task. Then the job is not given up, and the time does not count: it is
    at most the longest wait, so it starts over when the last worker that has the task ends.

    The time counts from the first worker that did not know the task, and not from the job's due time: the job may have
    been due for long before a worker fetched it, because of a pause or a backlog. It counts up to the due time, so the
    time that the last worker took is not included.
    """
    if known:
        since = None if since is None else max(since, job.due - _LONGEST_KNOWN)
        reason = shorten(f"{reason}; another worker of the queue has it")
    waited = 0.0 if since is None else max(0.0, job.due - since)
    if waited >= grace and not known:
        nobody = f"; no worker that fetched the job in {format_duration(waited)} knew it" if waited else ""
        return Buried(shorten(reason + nobody), payload.reply, began=False)
    wait = min(_FIRST + waited, _LONGEST_KNOWN if known else _LONGEST)
    if payload.expires is not None:
        # Not so late that a worker that knows the task finds it expired.
        wait = min(wait, max(_FIRST, (payload.expires - now) / 2))
    due = _in_company(now + wait * random.uniform(0.8, 1.2), wait)  # noqa: S311 - no secret
    return Deferred(due, reason, cause="task", unknown_since=now if since is None else since)


def _in_company(due: float, wait: float) -> float:
    """Return a due time that jobs with similar waits share: a moment later, by up to a 32nd of the wait.

    If thousands of jobs wait, some hundred then come back in one batch. One by one, each would cost ten times as much.
    """
    step = 2.0 ** math.floor(math.log2(wait)) / 32
    return math.ceil(due / step) * step


class MissingHandlers:
    """Defers runs whose handlers a new process does not find, because the code on disk has changed.

    It reports each task once for each reason.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._missing: dict[str, tuple[str, float]] = {}
        """By task: why its handler was not found, and when the next process may look (monotonic clock)."""

    def known(self, run: Run) -> Deferred | None:
        """Return the outcome of a run whose handler was not found a moment ago; None = a process may look for it."""
        reason, look_again = self._missing.get(run.task, ("", 0.0))
        return not_now(run.delivery.redis_now(), reason, "code") if time.monotonic() < look_again else None

    def found_missing(self, run: Run, reason: str) -> Deferred:
        """Note that a process did not find the handler of a run; return the outcome of the run."""
        before, _ = self._missing.get(run.task, ("", 0.0))
        self._missing[run.task] = reason, time.monotonic() + _LOOK_AGAIN
        if before != reason:
            self._emit(HandlerNotFound(queue=run.delivery.queue, task=run.task, reason=reason))
        return not_now(run.delivery.redis_now(), reason, "code")


async def check_window(store: RunStore, run: Run, window: str, reply: bool) -> Deferred | Buried | None:
    """Return the outcome of a job whose window is closed now; None = it is open.

    `window` is the payload's: a window, or the name of a window in Redis. `reply`: it asks for one.
    """
    if not WINDOW_NAME.fullmatch(window):
        return judge_window(window, "", run.delivery.redis_now(), reply)
    try:
        text = await store.read_window(run.delivery.whole_queue, window)
    except StoreError as error:  # deferred without the window's name, since `defer` could not compare the text
        return not_now(run.delivery.redis_now(), f"its window {window!r} cannot be read: {error}")
    if text is None:
        return Buried(f"there is no window {window!r}: `evsched windows set {window} ...`, then revive it", reply)
    judged = judge_window(text, window, run.delivery.redis_now(), reply)
    if isinstance(judged, Deferred) and run.delivery.whole_queue != run.delivery.queue:
        return replace(judged, elsewhere=True)
    return judged


def judge_window(text: str, name: str, now: float, reply: bool) -> Deferred | Buried | None:
    """Return the outcome of a job by the text of its window. `name`, if it has one, is kept with a deferred job."""
    try:
        opens = read_window(text).next_open(now)
    except ConfigError as error:
        return Buried(shorten(str(error)), reply)
    if opens is None:
        return Buried(shorten(f"window {text!r} does not open again within two years"), reply)
    if opens <= now:
        return None
    return Deferred(opens, shorten(f"outside its window {text}"), name, text if name else "")


UNKNOWN_MOST: Final = 64
"""Bytes: room for two moments. A longer value is malformed, and is not read."""

_PATIENCE: Final = 0.5
"""Seconds that the runs of a queue wait in their slots for its windows. Then other jobs get these slots: the node that
keeps the windows may hang."""


class RunStore:
    """The executor's calls to Redis. Each one waits while Redis is down, unless it says otherwise.

    This one has no Redis: no windows are kept, and no marks are needed.
    """

    async def read_window(self, queue: str, name: str) -> str | None:
        """Return the window that is kept under a name; None = no window has that name.

        Raises:
            StoreDown: the node that keeps the window has not answered for half a second.
            StoreRefused: it cannot be read.
        """
        return None

    async def unknown_since(self, run: Run) -> float | None:
        """Return since when workers have not known the task of a job, Unix seconds; None = this one is the first.

        Raises:
            StoreRefused: it cannot be read.
        """
        return None

    async def seek(self, run: Run, task: str) -> bool:
        """Note that this worker does not know a task; return whether another worker of the queue does.

        Raises:
            StoreRefused: it cannot be read.
        """
        return False

    async def mark(self, queue: str, runs: Sequence[tuple[FetchedJob, Mark]]) -> list[str]:
        """Write that runs have begun, or are about to; return the ids of runs that this worker has lost."""
        return []


class RedisRunStore(RunStore):
    """The RunStore of a worker."""

    def __init__(self, runtime: Runtime, worker: str) -> None:
        self._sender = runtime.sender
        self._worker = worker
        self._reconnect = Reconnect("worker", runtime.emit)
        self._marking = Reconnects("worker, marking runs", runtime.emit)
        self._windows = Reconnects("worker, windows", runtime.emit)
        self._unknown = Reconnects("worker, jobs of unknown tasks", runtime.emit)
        self._reading = dict[tuple[str, str], tuple[asyncio.Future[str | None], float]]()
        """The windows that are being read by queue and name, each with the time when it was asked for, by the clock of
        the loop."""

    async def mark(self, queue: str, runs: Sequence[tuple[FetchedJob, Mark]]) -> list[str]:
        while True:
            async with self._marking.of(queue):
                return await self._sender.send(Store(queue).begin(self._worker, runs))

    async def read_window(self, queue: str, name: str) -> str | None:
        """Read a window. Runs that ask for it at the same time share one call.

        All windows of a queue are on one node, so runs wait for the one that was asked for first, and no longer.
        """
        now = asyncio.get_running_loop().time()
        if (queue, name) not in self._reading:
            reading = asyncio.ensure_future(self._read(self._windows.of(queue), Store(queue).window(name)))
            reading.add_done_callback(partial(self._has_read, queue, name))
            self._reading[queue, name] = reading, now
        reading, _ = self._reading[queue, name]
        first = min(asked for (of, _), (_, asked) in self._reading.items() if of == queue)
        try:
            async with asyncio.timeout_at(first + _PATIENCE):
                return await asyncio.shield(reading)  # a run that is stopped must not cancel the call of the others
        except TimeoutError:
            raise StoreDown(f"Redis gave no answer within {_PATIENCE:g} s", kind="timeout") from None

    def _has_read(self, queue: str, name: str, reading: asyncio.Future[str | None]) -> None:
        del self._reading[queue, name]
        if not reading.cancelled():
            reading.exception()  # retrieved here, since all the runs that asked may have been stopped

    async def unknown_since(self, run: Run) -> float | None:
        queue, job = run.delivery.queue, run.job
        store, refused = Store(queue), self._unknown.of(queue)
        if not 0 < await self._read(refused, store.unknown_size(job.id)) <= UNKNOWN_MOST:
            return None
        return unknown_since(await self._read(refused, store.unknown(job.id)), job.due)

    async def seek(self, run: Run, task: str) -> bool:
        queue = run.delivery.queue
        return await self._read(self._unknown.of(queue), Store(queue).seek(task))

    async def _read(self, refused: Reconnect, call: Call[T]) -> T:
        """Send a call that changes no job; wait while Redis is down.

        Raises:
            StoreRefused: Redis refuses it, which is reported as a failure of `refused`.
        """
        error: StoreRefused
        while True:
            async with self._reconnect:
                try:
                    reply = await self._sender.send(call)
                except StoreRefused as met:
                    if met.kind in NO_ENTRY:
                        raise
                    error = met
                    break
                refused.passed()
                return reply
        refused.failed(error)
        raise error
