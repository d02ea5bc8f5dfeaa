"""Why a job cannot begin in this worker now: its task is unknown, its handler is missing, or its window is closed.

Such a job goes back to the schedule (`Deferred`), and is offered again to any worker that fetches it.
"""

from __future__ import annotations

import math
import random
import time
from typing import Final

from msgspec.structs import replace

from evsched.display import format_duration
from evsched.errors import ConfigError, StoreError, StoreRefused, UnknownTask
from evsched.events import Emit, HandlerNotFound, TaskUnknown
from evsched.execution.run import Run
from evsched.execution.run_store import RunStore
from evsched.jobs.job import Buried, DeferCause, Deferred, FetchedJob, Payload, shorten
from evsched.jobs.tasks import Tasks
from evsched.recurrence.windows import WINDOW_NAME, read_window

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
