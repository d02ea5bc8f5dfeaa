"""Jobs that wait because no worker of their queue knows their task: a deploy that is not complete, or a wrong name."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from evsched import keys
from evsched.diagnostics.finding import Finding
from evsched.durations import format_duration
from evsched.errors import StoreRefused
from evsched.jobs.job import JobStatus
from evsched.jobs.tasks import RESERVED
from evsched.store import server
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_LOOKED_AT: Final = 100
"""Jobs of a queue that are looked at: the next ones that are due. Workers offer such a job again within 36 s."""


async def unknown_tasks(sender: BatchingSender, queues: Sequence[str]) -> list[Finding]:
    """Return a finding for each task of which a queue has such jobs among the next ones that are due.

    Raises:
        StoreDown, StoreRefused
    """
    found = list[Finding]()
    for queue in queues:
        try:
            waiting = await _waiting(sender, Store(queue))
        except StoreRefused as error:
            if error.kind != "wrongtype":  # the audit reports that
                raise
            continue
        now = await sender.send(server.clock(keys.root(queue)))
        by_task = groupby(sorted(waiting, key=_task), _task)
        found += [_describe(queue, task, list(jobs), now) for task, jobs in by_task]
    return found


async def _waiting(sender: BatchingSender, store: Store) -> list[JobStatus]:
    front = await sender.send(store.front("schedule", _LOOKED_AT))
    ids = [job_id for job_id, _ in front if not job_id.startswith("{")]  # an inline job has not been offered yet
    statuses = await sender.send_all([store.look(job_id) for job_id in ids])
    return [status for status in statuses if status is not None and status.unknown_since is not None]


def _task(status: JobStatus) -> str:
    return (status.task or "?")[:200]


def _describe(queue: str, task: str, jobs: list[JobStatus], now: float) -> Finding:
    first = min(jobs, key=lambda status: status.unknown_since or now)
    since = format_duration(max(0.0, now - (first.unknown_since or now)))
    count = f"{len(jobs)} job{' waits' if len(jobs) == 1 else 's wait'}"
    what = f"{count} for a worker that knows task {task!r}, the first for {since}: {first.reason}"
    deploy = "do as the reason says" if task.startswith(RESERVED) else "deploy the task to a worker of this queue"
    mend = (
        f"{deploy}; or, if the name is wrong: evsched cancel {first.id} --queue "
        f"{queue}. If no worker has it for EVSCHED_UNKNOWN_TASK_GRACE (10 minutes by default), they are dead"
    )
    return Finding("unknown-task", "warning", what, f"queue {queue}", mend)
