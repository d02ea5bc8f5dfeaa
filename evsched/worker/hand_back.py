"""Handing back: what becomes of the jobs that a worker still holds in a queue when it ends."""

from __future__ import annotations

from evsched import events
from evsched.execution.run import Run
from evsched.transport.senders import SyncSender
from evsched.worker.held_runs import HeldRuns
from evsched.worker.outcomes import events_of
from evsched.worker.served_queue import ServedQueue


async def hand_back(served: ServedQueue, held: HeldRuns) -> int:
    """Write the ends of runs, put all other jobs back to ready, end the lease; return how many were put back.

    Raises:
        StoreDown, StoreRefused
    """
    store, worker, runtime = served.store, served.worker, served.runtime
    reason = f"worker {worker} was stopped"
    calls = [
        *store.end_runs(worker, held.ended),
        *store.end_runs(worker, held.give_up(reason + " while it ran")),
    ]
    held.stop_all()
    for call, ended in calls:
        lost = await runtime.sender.send(call)
        held.forget(ended)
        for event in events_of(served.queue, worker, ended, lost):
            runtime.emit(event)
    held.runs.clear()
    put, rest = 0, "more"
    while rest == "more":
        done = await runtime.sender.send(store.requeue(worker, reason, limit=runtime.config.batch))
        rest, queue = done.rest, served.queue
        put += len(done.ids)
        if done.ids:
            runtime.emit(events.JobsRequeued(queue=queue, worker=worker, ids=done.ids, cause="stopped", reason=reason))
        for job_id in done.cancelled:
            runtime.emit(events.JobAborted(queue=queue, id=job_id))
    return put


def hand_back_from_thread(
    served: ServedQueue, held: HeldRuns, sender: SyncSender, reason: str, stuck: Run | None = None
) -> int:
    """Do the same from a thread, for an event loop that is blocked; the process must end then.

    Raises:
        StoreDown, StoreRefused
    """
    store, worker = served.store, served.worker
    for ended in (held.ended, held.give_up(reason, stuck)):
        for call, _ in store.end_runs(worker, ended):
            sender.send(call)
    put, rest = 0, "more"
    while rest == "more":
        done = sender.send(store.requeue(worker, reason))
        rest = done.rest
        put += len(done.ids)
    return put
