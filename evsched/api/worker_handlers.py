"""The handlers of requests of workers in other languages: docs/workers.md.

Each turns a request into a call of the worker that sends it. Jobs and leases are in Redis, so it does not matter which
process of the API serves which request of a worker.
"""

from __future__ import annotations

import asyncio
import time

from evsched.api import replies, requests
from evsched.api.api_request import ApiRequest
from evsched.api.replies import invalid
from evsched.execution.run import Failed
from evsched.jobs.tasks import RESERVED
from evsched.remote.remote_worker import RemoteJob, RemoteWorker


async def fetch(request: ApiRequest, body: requests.FetchJobs) -> replies.FetchedJobs:
    """Get jobs to run; wait for one if the body says so."""
    worker = _known(request, body.tasks)
    await worker.register(body.tasks, body.wait)
    jobs = await worker.fetch(body.tasks, body.slots, body.holding, opens=body.sealed)
    if not jobs and body.wait:
        jobs = await request.fetches.wait(request.http, _first_jobs(request, worker, body)) or []
    return replies.FetchedJobs(jobs, worker.times.heartbeat, worker.times.lease)


async def _first_jobs(request: ApiRequest, worker: RemoteWorker, body: requests.FetchJobs) -> list[RemoteJob]:
    """Wait for jobs, behind the fetches that came before; return none if none came in time."""
    until, turn = time.monotonic() + body.wait, request.fetches.turn(request.queue)
    try:
        async with asyncio.timeout(body.wait):
            await turn.acquire()
    except TimeoutError:
        return []
    try:
        jobs = list[RemoteJob]()
        while not jobs and await worker.ready(until - time.monotonic()):
            if not await worker.is_registered(body.tasks):
                break  # it held jobs and sent no heartbeat for them: it hangs, or it fetches again
            jobs = await worker.fetch(body.tasks, body.slots, body.holding, opens=body.sealed)
        return jobs
    finally:
        turn.release()


async def heartbeat(request: ApiRequest, body: requests.KeepRuns) -> replies.KeptRuns:
    """Keep the jobs that the worker runs, report their progress, and learn which of them are to stop."""
    worker = _known(request, body.tasks)
    kept = await worker.keep(body.tasks, body.runs)
    return replies.KeptRuns(kept.stop, kept.lost, worker.times.heartbeat, worker.times.lease)


async def complete(request: ApiRequest, body: requests.CompleteRun) -> None:
    """End a run that is done, with its result."""
    await request.worker.complete(request.job, body.run, body.result)


async def retry(request: ApiRequest, body: requests.RetryRun) -> None:
    """End a run that has failed: its job runs again, or is dead if no attempt is left."""
    failure = Failed(body.reason, body.delay, traceback=body.traceback, error=body.error)
    await request.worker.fail(request.job, body.run, failure)


async def give_up(request: ApiRequest, body: requests.GiveUpRun) -> None:
    """End a run that has failed, and whose job is not to run again: it is dead."""
    failure = Failed(body.reason, given_up=True, traceback=body.traceback, error=body.error)
    await request.worker.fail(request.job, body.run, failure)


async def leave(request: ApiRequest) -> None:
    """End a worker: the jobs that it still holds start elsewhere at once."""
    await request.worker.leave()


def _known(request: ApiRequest, tasks: list[str]) -> RemoteWorker:
    """Return the worker of a request, with its tasks.

    Raises:
        Problem: one of them is a task that comes with evsched, or the numbers of shards are not known.
    """
    request.shards.check()  # a lease in some of the shards would not keep the jobs of the others
    if own := [name for name in tasks if name.startswith(RESERVED)]:
        raise invalid(f"the task {own[0]} comes with evsched: give yours another name")
    return request.worker
