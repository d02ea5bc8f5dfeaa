"""Jobs whose task the worker's app does not have: they wait on the schedule for a worker that has it.

During a deploy, workers with the old code and workers with the new code serve the same queue, so a task that is unknown
to one may be known to the next. The job is offered again, to whichever worker fetches it, after a time that grows. It
is given up when no worker of the queue has had the task for the setting `unknown_task_grace`: while one has it, which
is registered in Redis, only chance decides which worker fetches the job.
"""

from __future__ import annotations

import math
import random
from typing import Final

from evsched.durations import format_duration
from evsched.errors import StoreRefused, UnknownTask
from evsched.events import Emit, TaskUnknown
from evsched.execution.run import Run
from evsched.execution.run_store import RunStore
from evsched.execution.verdict import not_now
from evsched.jobs.job import Buried, Deferred, FetchedJob, Payload, shorten
from evsched.jobs.tasks import Tasks

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


class UnknownTasks:
    """Decides what becomes of jobs whose task is not in `tasks`, and reports each such task once.

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

    Of thousands of jobs, some hundred then come back in one batch. One by one, each would cost ten times as much.
    """
    step = 2.0 ** math.floor(math.log2(wait)) / 32
    return math.ceil(due / step) * step
