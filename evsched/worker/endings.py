"""The ends of runs: the call that writes an outcome, and the event that tells it.

A new outcome is added in three places: its value in job.py, its verb in lua/ with its method of the store, and here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from evsched import events
from evsched.events import Event
from evsched.jobs.job import Aborted, Buried, Deferred, Done, Outcome, Retried, Returned
from evsched.store.store import Store
from evsched.transport.call import Call
from evsched.worker.run import Run

Ended = list[tuple[Run, Outcome]]

NO_ROOM: Final = "no process of the pool was free"

_VERBS: Final = {
    Done: Store.complete,
    Retried: Store.retry,
    Buried: Store.bury,
    Aborted: Store.abort,
    Deferred: Store.defer,
}


def end_calls(store: Store, worker: str, ended: Ended) -> list[tuple[Call[Any], Ended]]:
    """Return the calls that write the ends of runs, each with the runs that it ends; one call for each kind of end."""
    # Before the end is: then nobody's run it is any more, and what was told last would be lost.
    told = [(run.job, run.progress) for run, _ in ended if run.progress is not None]
    calls: list[tuple[Call[Any], Ended]] = [(store.progress(worker, told), [])] if told else []
    kinds: dict[type[Outcome], Ended] = {}
    for run, outcome in ended:
        kinds.setdefault(type(outcome), []).append((run, outcome))
    for kind, verb in _VERBS.items():
        if kind in kinds:
            rows: Any = [(run.job, outcome) for run, outcome in kinds[kind]]
            calls.append((verb(store, worker, rows), kinds[kind]))
    if Returned in kinds:
        ids = [run.job.id for run, _ in kinds[Returned]]
        calls.append((store.requeue(worker, NO_ROOM, ids=ids), kinds[Returned]))
    return calls


def end_events(queue: str, worker: str, ended: Ended, lost: list[str]) -> Iterator[Event]:
    """Yield what to tell of runs whose end is written, but of the `lost` ids, which were not this worker's any more."""
    done, back = list[Run](), list[str]()
    for run, outcome in ended:
        job_id, task, attempt, took = run.job.id, run.task, run.job.attempt, run.took
        if job_id in lost:
            yield events.RunLost(queue, worker, job_id, task, attempt)
        elif isinstance(outcome, Done):
            done.append(run)
        elif isinstance(outcome, Retried):
            reason, trace = outcome.reason, outcome.traceback
            yield events.Retrying(queue, job_id, task, attempt, outcome.delay, reason, took, trace)
        elif isinstance(outcome, Buried):
            reason, trace = outcome.reason, outcome.traceback
            yield events.JobBuried(queue, job_id, task, attempt, reason, outcome.outcome, took, trace)
        elif isinstance(outcome, Aborted):
            yield events.JobAborted(queue, job_id, task, attempt, took)
        elif isinstance(outcome, Deferred):
            yield events.JobDeferred(queue, job_id, task, outcome.due)
        else:
            back.append(job_id)
    if back:
        yield events.Requeued(queue, worker, back, "busy", NO_ROOM)
    if done:
        ids, tasks = [run.job.id for run in done], [run.task for run in done]
        seconds, attempts = [run.took or 0.0 for run in done], [run.job.attempt for run in done]
        yield events.Completed(queue, worker, ids, tasks, seconds, attempts)
