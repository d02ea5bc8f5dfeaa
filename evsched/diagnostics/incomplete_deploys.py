"""Deploys that are not complete: workers that do not know the task of a job, or run another release of evsched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from evsched import keys
from evsched.diagnostics.finding import Finding
from evsched.durations import format_duration
from evsched.errors import StoreRefused
from evsched.jobs.record import JobStatus
from evsched.jobs.tasks import RESERVED
from evsched.runtime.new_id import release_of
from evsched.store import server
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender

_LOOKED_AT: Final = 100
"""Jobs of a queue that are examined: the next ones that are due. Workers offer such a job again within 36 s."""


async def incomplete_deploys(sender: BatchingSender, queues: Sequence[str]) -> list[Finding]:
    """Return a finding for each unknown task among the next jobs of each queue, and one if several releases run.

    Raises:
        StoreDown, StoreRefused
    """
    found, members = list[Finding](), set[str]()
    for queue in queues:
        store = Store(queue)
        try:
            found += await _unknown_tasks(sender, store)
            survey, parents = await sender.send_all([store.survey(), store.parents()])
        except StoreRefused as error:
            if error.kind != "wrongtype":  # the audit reports that
                raise
            continue
        members |= {lease.worker for lease in survey.leases} | {parent for parent, _ in parents}
    return found + _releases(members)


async def _unknown_tasks(sender: BatchingSender, store: Store) -> list[Finding]:
    waiting = await _waiting(sender, store)
    now = await sender.send(server.clock(keys.root(store.queue)))
    by_task = groupby(sorted(waiting, key=_task), _task)
    return [_describe(store.queue, task, list(jobs), now) for task, jobs in by_task]


def _releases(members: set[str]) -> list[Finding]:
    """Report that workers, and parents that stand by, run several releases."""
    found = Counter(release_of(member) or "unknown" for member in members)
    if len(found) < 2:
        return []
    what = "workers of several releases run: " + ", ".join(f"{found[name]} of {name}" for name in sorted(found))
    mend = "restart those of the older release; `evsched workers` lists them, and docs/upgrade.md has the order"
    return [Finding("releases", "warning", what, "workers", mend)]


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
