"""Handing back: what becomes of the jobs that a worker still holds in a queue when it ends.

It is written once for the event loop and for a thread that acts in place of a blocked one, as a generator: it yields
calls, and is sent the reply to each, or thrown the error. So both write the same and emit the same events.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from evsched import events
from evsched.errors import StoreError
from evsched.events import Emit
from evsched.execution.hang import Hang
from evsched.store.run_ends import NotEnded, PutBack
from evsched.transport.call import Call
from evsched.transport.senders import SyncSender
from evsched.worker.exchange import lacks_memory
from evsched.worker.held_runs import HeldRuns
from evsched.worker.outcomes import events_of
from evsched.worker.served_queue import ServedQueue


async def hand_back(served: ServedQueue, held: HeldRuns) -> int:
    """Write the ends of runs, put all other jobs back to ready, end the lease; return how many were put back.

    Raises:
        StoreDown, StoreRefused
    """
    reason = f"worker {served.worker} was stopped"
    steps = _hand_back(served, held, reason, f"{reason} while it ran", None, served.runtime.emit)
    try:
        call = next(steps)
        held.stop_all()
        while True:
            try:
                reply = await served.runtime.sender.send(call)
            except StoreError as error:
                call = steps.throw(error)
            else:
                call = steps.send(reply)
    except StopIteration as end:
        held.runs.clear()
        return end.value


def hand_back_from_thread(
    served: ServedQueue, held: HeldRuns, sender: SyncSender, reason: str, hang: Hang | None, emit: Emit
) -> int:
    """Do the same from a thread, for an event loop that is blocked; the process must end then.

    Raises:
        StoreDown, StoreRefused
    """
    steps = _hand_back(served, held, reason, reason, hang, emit)
    try:
        call = next(steps)
        while True:
            try:
                reply = sender.send(call)
            except StoreError as error:
                call = steps.throw(error)
            else:
                call = steps.send(reply)
    except StopIteration as end:
        return end.value


def _hand_back(
    served: ServedQueue, held: HeldRuns, reason: str, given_up: str, hang: Hang | None, emit: Emit
) -> Generator[Call[Any], Any, int]:
    """Hand back the jobs of a queue. `given_up`: the reason for those that may not begin again."""
    store, worker = served.store, served.worker
    for call, ended in [*store.end_runs(worker, held.ended), *store.end_runs(worker, held.give_up(given_up, hang))]:
        for run in ended:
            run.repeated = True  # or may be: who hands back may have to begin again
        try:
            not_ended: NotEnded = yield call
        except StoreError as error:
            if not lacks_memory(ended, error):
                raise
            continue
        # `requeue` puts back those whose message was refused, as it does when there is no memory for any.
        runs = [run for run in ended if run.job.id not in not_ended.refused]
        held.forget(runs)
        for event in events_of(served.queue, worker, runs, not_ended.lost):
            emit(event)
    put, rest = 0, "more"
    while rest == "more":
        done: PutBack = yield store.requeue(worker, reason, limit=served.runtime.config.batch)
        rest, queue = done.rest, served.queue
        put += len(done.ids)
        if done.ids:
            emit(events.JobsRequeued(queue=queue, worker=worker, ids=done.ids, cause="stopped", reason=reason))
        for job_id in done.cancelled:
            emit(events.JobAborted(queue=queue, id=job_id))
    return put
