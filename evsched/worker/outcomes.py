"""From outcome to event: what is emitted when the end of a run is written.

`store.end_runs` has the other half, from outcome to call. docs/design.md#outcomes says where a new outcome is added.
"""

from __future__ import annotations

from collections.abc import Sequence

from evsched import events
from evsched.events import Event
from evsched.execution.run import Run
from evsched.jobs.job import Aborted, Buried, Deferred, Done, Outcome, Requeued, Retried, Snoozed


def events_of(queue: str, worker: str, ended: Sequence[Run], lost: Sequence[str] = ()) -> list[Event]:
    """Return the events for runs that one call of `store.end_runs` has ended: all of them with one kind of outcome.

    `lost` is the call's reply: the ids of runs whose end was not written.
    """
    found = list[Event]()
    if lost:
        found += [_lost(queue, worker, run) for run in ended if run.job.id in lost]
        ended = [run for run in ended if run.job.id not in lost]
    if not ended:
        return found
    match ended[0].outcome:
        case Done():
            found.append(_completed(queue, worker, ended))
        case Requeued(reason=reason):
            found.append(_requeued(queue, worker, ended, reason))
        case _:
            found += [event_of(queue, worker, run, run.outcome) for run in ended if run.outcome is not None]
    return found


def event_of(queue: str, worker: str, run: Run, outcome: Outcome) -> Event:
    """Return the event for the end of one run."""
    job, task, took = run.job, run.task, run.took
    match outcome:
        case Done():
            return _completed(queue, worker, [run])
        case Retried(delay=delay, reason=reason, traceback=trace):
            return events.Retrying(
                queue=queue,
                id=job.id,
                task=task,
                attempt=job.attempt,
                delay=delay,
                reason=reason,
                seconds=took,
                traceback=trace,
            )
        case Buried(reason=reason, outcome=kind, traceback=trace):
            return events.JobBuried(
                queue=queue,
                id=job.id,
                task=task,
                attempt=job.attempt,
                reason=reason,
                outcome=kind,
                seconds=took,
                traceback=trace,
            )
        case Aborted():
            return events.JobAborted(queue=queue, id=job.id, task=task, attempt=job.attempt, seconds=took)
        case Deferred(due=due, cause=cause):
            return events.JobDeferred(queue=queue, id=job.id, task=task, due=due, cause=cause)
        case Snoozed(reason=reason):
            return events.JobSnoozed(
                queue=queue, id=job.id, task=task, attempt=job.attempt, reason=reason, seconds=took
            )
        case Requeued(reason=reason):
            return _requeued(queue, worker, [run], reason)


def _lost(queue: str, worker: str, run: Run) -> Event:
    end = "unknown" if run.repeated else "discarded"
    return events.RunLost(queue=queue, worker=worker, id=run.job.id, task=run.task, attempt=run.job.attempt, end=end)


def _completed(queue: str, worker: str, runs: Sequence[Run]) -> Event:
    ids, tasks = [run.job.id for run in runs], [run.task for run in runs]
    seconds, attempts = [run.took or 0.0 for run in runs], [run.job.attempt for run in runs]
    return events.Completed(queue=queue, worker=worker, ids=ids, tasks=tasks, seconds=seconds, attempts=attempts)


def _requeued(queue: str, worker: str, runs: Sequence[Run], reason: str) -> Event:
    return events.JobsRequeued(
        queue=queue, worker=worker, ids=[run.job.id for run in runs], cause="busy", reason=reason
    )
