"""The handlers of requests about jobs and recurrences.

Each turns a request into a call of the client, and the result into a reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from evsched.api import idempotency
from evsched.api.api_request import EXAMINED_MOST, Asked
from evsched.api.problem import invalid
from evsched.api.replies import (
    Changed,
    Explained,
    Jobs,
    Outcome,
    Recurrences,
    Reply,
    Resumed,
    Scheduled,
    ScheduledJobs,
    Stopping,
    Triggered,
)
from evsched.api.requests import (
    EnqueueJob,
    EnqueueJobs,
    JobsQuery,
    ListQuery,
    NewJob,
    NewRecurrence,
    Pause,
    Reschedule,
    ResultQuery,
)
from evsched.client import operations, recurrence_operations, spread
from evsched.client.new_job import JobOptions, check_job_options, new_job
from evsched.client.operations import Operation
from evsched.client.option_values import Unique, id_of_arguments, id_of_key, unix
from evsched.client.recurrence_operations import list_statuses, recurrence_status
from evsched.client.spread import front
from evsched.client.sweep import Filter, Sweep, Waiting
from evsched.errors import ConfigError, JobMissing
from evsched.recurrence.recurrence import Declared, check_declared
from evsched.store.client_calls import New
from evsched.store.operator_calls import Match
from evsched.store.queue import IdempotentRequest
from evsched.store.store import Store

_OPTIONS: Final = tuple({*NewJob.__struct_fields__} - {"task", "args", "kwargs", "reply"})
"""The fields of a request that are options of a job as they are."""


async def enqueue(asked: Asked[EnqueueJob, None]) -> Reply:
    """Schedule a job."""
    given = asked.body
    unique = None if given.unique is None else Unique(within=given.unique.within)
    job = _new(asked, given, unique, UNSET if given.unique is None else given.unique.key)
    (scheduled,) = await _write(asked, "jobs", [job], unique, named=given.id is not None)
    # With on_conflict, the job may have been there.
    status = HTTPStatus.CREATED if given.on_conflict is None else HTTPStatus.OK
    return Reply(status, scheduled, {"Location": f"{asked.base}/v1/queues/{asked.queue}/jobs/{scheduled.id}"})


async def enqueue_many(asked: Asked[EnqueueJobs, None]) -> Reply:
    """Schedule many jobs, all or none; of a queue with shards, all or none of each shard."""
    given, most = asked.body, asked.config.api_jobs_cap
    if len(given.jobs) > most:
        raise invalid(f"the request has {len(given.jobs)} jobs, more than {most}: send several requests")
    unique = None if given.unique is None else Unique(within=given.unique.within)
    jobs = [_new(asked, job, unique, UNSET, f"jobs[{at}]: ") for at, job in enumerate(given.jobs)]
    named = any(job.id is not None for job in given.jobs)
    scheduled = await _write(asked, "batches", jobs, unique, named=named)
    return Reply(HTTPStatus.CREATED if given.on_conflict is None else HTTPStatus.OK, ScheduledJobs(scheduled))


async def look(asked: Asked[None, None]) -> Reply:
    """Return the place and the record of a job."""
    status = await asked.client.status(asked.queue, asked.job)
    if status is None:
        raise JobMissing(
            f"there is no job {asked.job} in queue {asked.queue}: it never existed, was cancelled while it waited, or "
            "ended and its retention is over"
        )
    return Reply(HTTPStatus.OK, status)


async def explain(asked: Asked[None, None]) -> Reply:
    """Explain why a job has not run yet, or the next step of a recurrence of this name."""
    found = await asked.client.explain(asked.queue, asked.job)
    return Reply(HTTPStatus.OK, Explained(asked.job, found.sentence, found.facts))


async def cancel(asked: Asked[None, None]) -> Reply:
    """Delete a waiting job, or have its worker stop it."""
    place = await asked.client.cancel(asked.queue, asked.job)
    if place == "processing":
        return Reply(HTTPStatus.ACCEPTED, Stopping(asked.job, place))
    return Reply(HTTPStatus.NO_CONTENT)


async def reschedule(asked: Asked[Reschedule, None]) -> Reply:
    """Give a waiting job another due."""
    given = asked.body
    if given.due is None and given.delay is None:
        raise invalid("give due or delay: a delay of 0 makes the job due now")
    if given.delay is not None and idempotency.read_key(asked.headers) is not None:
        # Each repetition would move the job again.
        raise invalid("a request with a delay is not done once, whatever its Idempotency-Key: send `due` instead")
    due = await asked.client.reschedule(asked.queue, asked.job, given.due, delay=given.delay)
    return Reply(HTTPStatus.OK, Scheduled(asked.job, asked.queue, due))


async def wait_for_end(asked: Asked[None, ResultQuery]) -> Reply:
    """Return how a job has ended; wait for it if the query says so."""
    seconds = asked.query.wait
    parts = asked.client.parts_of(asked.queue, asked.job)
    ending = asked.client.run(spread.of_job(parts, lambda store: operations.end(store, asked.job, seconds)))
    try:
        ended = await asked.waiters.wait(seconds, ending, asked.gone)
    except TimeoutError:
        ended = None
    if ended is None:
        return Reply(HTTPStatus.ACCEPTED, Outcome(asked.job, None))
    return Reply(HTTPStatus.OK, Outcome(asked.job, ended.outcome, ended.result, ended.reason))


async def list_jobs(asked: Asked[None, JobsQuery]) -> Reply:
    """List the waiting and the dead jobs, the next to run first; with a filter, only matching jobs."""
    query, limit = asked.query, asked.limit(asked.query.limit)
    places = get_args(Waiting) if query.place is None else (query.place,)
    names = {"task": query.task, "group": query.group, "reason": query.reason, "error": query.error}
    matching = Filter(**names, older=query.older, since=query.since, until=query.until)
    read = partial(_first, places, limit) if matching.is_empty else partial(_search, matching, places, limit)
    jobs, lost = await asked.client.run(spread.answering(asked.stores, read, set()))
    return Reply(HTTPStatus.OK, replace(jobs, complete=jobs.complete and not lost and asked.shards.known))


def _first(places: Sequence[Waiting], limit: int, stores: Sequence[Store]) -> Operation[Jobs]:
    """Return the first jobs, the next to run first."""
    found = list[Match]()
    for place in places:
        if len(found) <= limit:
            found += yield from front(stores, place, limit + 1 - len(found))
    return Jobs(found[:limit], len(found) <= limit)


def _search(matching: Filter, places: Sequence[Waiting], limit: int, stores: Sequence[Store]) -> Operation[Jobs]:
    """Return jobs that match, in no order: `limit` of them, or those among the first that are examined."""
    sweep, more = Sweep(stores, matching, places), True
    while more and len(sweep.found) <= limit and sweep.examined < EXAMINED_MOST:
        more = yield from sweep.step()
    return Jobs(sweep.found[:limit], not more and len(sweep.found) <= limit)


def _new(asked: Asked[Any, Any], given: NewJob, unique: Unique | None, key: Any, where: str = "") -> New:
    """Build a job. `key`: makes it unique together with its task; unset = its arguments. `where`: for messages."""
    values: dict[str, Any] = {name: getattr(given, name) for name in _OPTIONS}
    options = JobOptions(**values, reply=given.reply or None, queue=asked.queue, unique=unique)
    try:
        check_job_options(options)
        job = new_job(given.task, given.args, given.kwargs, options, asked.config.payload_cap)
        if unique is None:
            return job
        if key is UNSET:
            return replace(job, id=id_of_arguments(given.task, given.args, given.kwargs))
        return replace(job, id=id_of_key(given.task, key))
    except ConfigError as error:
        raise invalid(f"{where}{error}") from None


async def _write(
    asked: Asked[EnqueueJob, None] | Asked[EnqueueJobs, None],
    path: str,
    jobs: list[New],
    unique: Unique | None,
    *,
    named: bool,
) -> list[Scheduled]:
    """Enqueue jobs, unless a request with the same Idempotency-Key did so before; return the reply of that one.

    `path`: of the request, below that of the queue. `named`: whether the caller has given an id to one of the jobs.
    """
    on_conflict, request = asked.body.on_conflict, idempotency.read(asked.headers, asked.caller, path, asked.body)
    if named or unique is not None or request is not None:
        asked.shards.check()  # a second job of the id, or of the request, may be in a shard
    if request is not None:
        within = None if unique is None else unique.seconds
        return await _write_once(asked, jobs, request, within, lasting=unique is not None)
    if unique is None and not named:
        # If Redis was down, the call was made again: it then meets the very jobs that it has written before.
        on_conflict = "keep"
    dues = await asked.client.enqueue(asked.queue, jobs, on_conflict, unique)
    return [Scheduled(job.id, asked.queue, due) for job, due in zip(jobs, dues, strict=True)]


async def _write_once(
    asked: Asked[EnqueueJob, None] | Asked[EnqueueJobs, None],
    jobs: list[New],
    request: IdempotentRequest,
    within: float | None,
    *,
    lasting: bool,
) -> list[Scheduled]:
    """Enqueue the jobs of a request with an Idempotency-Key; `lasting`: a repetition makes jobs of the same ids.

    A repetition must find the shards of the first request. So a job whose id it does not have goes to the home of the
    key.
    """
    given = asked.body.jobs if isinstance(asked.body, EnqueueJobs) else [asked.body]
    homes = dict[str, list[int]]()
    for at, job in enumerate(jobs):
        known = job.id if lasting or given[at].id is not None else request.key
        homes.setdefault(asked.client.shards.home(asked.queue, known), []).append(at)
    scheduled = dict[int, Scheduled]()
    for home, places in homes.items():
        some = [jobs[at] for at in places]
        once = asked.client.store(home).enqueue_once(request, some, on_conflict=asked.body.on_conflict, within=within)
        accepted = await asked.client.send(once)
        idempotency.check(request, accepted.asked)
        if len(accepted.jobs) != len(places):
            raise idempotency.moved()
        for at, (job_id, due) in zip(places, accepted.jobs, strict=True):
            scheduled[at] = Scheduled(job_id, asked.queue, due)
    return [scheduled[at] for at in range(len(jobs))]


_OF_PAYLOAD: Final = ("priority", "group", "window", "timeout", "retry", "retention", "meta")
"""The options of each job."""


async def list_recurrences(asked: Asked[None, ListQuery]) -> Reply:
    """List the recurrences of a queue, the next to recur first."""
    limit = asked.limit(asked.query.limit)
    found = await asked.client.run(list_statuses(asked.store, limit + 1))
    return Reply(HTTPStatus.OK, Recurrences(found[:limit], len(found) <= limit))


async def look_recurrence(asked: Asked[None, None]) -> Reply:
    """Return a recurrence."""
    return Reply(HTTPStatus.OK, await asked.client.run(recurrence_status(asked.store, asked.name)))


async def put(asked: Asked[NewRecurrence, None]) -> Reply:
    """Create a recurrence, or change the one of that name."""
    declared = _declared(asked)
    check_declared(declared)
    change, paused = await asked.client.run(recurrence_operations.add(asked.store, declared))
    reply = Changed(asked.name, change, paused)
    if change == "made":
        return Reply(HTTPStatus.CREATED, reply, {"Location": _location(asked)})
    return Reply(HTTPStatus.OK, reply)


async def remove(asked: Asked[None, None]) -> Reply:
    """Delete a recurrence, with the occurrences that it has on the schedule."""
    await asked.client.remove(asked.queue, asked.name)
    return Reply(HTTPStatus.NO_CONTENT)


async def pause(asked: Asked[Pause, None]) -> Reply:
    """Pause a recurrence, until a moment or until it is resumed."""
    until = _moment("until", asked.body.until)
    await asked.client.run(recurrence_operations.pause(asked.store, asked.name, until, asked.body.why))
    return Reply(HTTPStatus.NO_CONTENT)


async def resume(asked: Asked[None, None]) -> Reply:
    """Resume a recurrence from now on."""
    return Reply(HTTPStatus.OK, Resumed(asked.name, await asked.client.send(asked.store.hold(asked.name, False))))


async def trigger(asked: Asked[None, None]) -> Reply:
    """Run a recurrence once now, or when the runs have ended that it must not overlap with."""
    request = idempotency.read(asked.headers, asked.caller, f"recurrences/{asked.name}/trigger", None)
    if request is None:
        job_id, begun = await asked.client.run(recurrence_operations.trigger(asked.store, asked.name))
    else:
        first, job_id, begun = await asked.client.run(
            recurrence_operations.trigger_once(asked.store, asked.name, request)
        )
        idempotency.check(request, first)
    return Reply(HTTPStatus.ACCEPTED, Triggered(job_id, begun))


def _declared(asked: Asked[NewRecurrence, None]) -> Declared:
    given = asked.body
    of_payload: dict[str, Any] = {name: getattr(given, name) for name in _OF_PAYLOAD}
    options = JobOptions(**of_payload)
    check_job_options(options)
    fields = {name: value for name, value in msgspec.structs.asdict(given).items() if name in _AS_GIVEN}
    return Declared(
        name=asked.name,
        payload=new_job(given.task, given.args, given.kwargs, options, asked.config.payload_cap).payload,
        start=_moment("start", given.start),
        end=_moment("end", given.end),
        **fields,
    )


_AS_GIVEN: Final = {*Declared.__struct_fields__} - {"name", "payload", "start", "end"}


def _moment(name: str, given: datetime | float | None) -> float | None:
    return None if given is None else unix(name, given)


def _location(asked: Asked[Any, Any]) -> str:
    return f"{asked.base}/v1/queues/{asked.queue}/recurrences/{asked.name}"
