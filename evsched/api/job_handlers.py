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

from evsched.api import replies, requests
from evsched.api.api_request import EXAMINED_MOST, ApiRequest, check_same, idempotency_key
from evsched.api.replies import Problem, Reply, invalid
from evsched.api.requests import filter_of
from evsched.client import graph_nodes, operations, past_acts, recurrence_operations, spread
from evsched.client.new_job import JobOptions, check_job_options, new_job
from evsched.client.operations import JobEnd, Operation
from evsched.client.option_values import Unique, digest_of, id_of_arguments, id_of_key, unix
from evsched.client.recurrence_operations import RecurrenceStatus, list_statuses, recurrence_status
from evsched.client.spread import front
from evsched.client.sweep import Filter, Sweep, Waiting
from evsched.errors import ConfigError, JobMissing
from evsched.jobs.job import OnConflict
from evsched.jobs.record import JobStatus, Place
from evsched.jobs.redaction import redacted_member
from evsched.recurrence.recurrence import Declared, check_declared
from evsched.store.client_calls import New
from evsched.store.operator_calls import Match
from evsched.store.queue import IdempotentRequest
from evsched.store.store import Store

_OPTIONS: Final = tuple({*requests.NewJob.__struct_fields__} - {"task", "args", "kwargs", "reply"})
"""The fields of a request that are options of a job as they are."""


async def enqueue(request: ApiRequest, body: requests.EnqueueJob) -> Reply[replies.Scheduled]:
    """Schedule a job."""
    key = UNSET if body.unique is None else body.unique.key
    (scheduled,) = await _enqueue(request, "jobs", body, [body], key)
    return Reply(created(body.on_conflict), scheduled, request.location(f"jobs/{scheduled.id}"))


async def enqueue_many(request: ApiRequest, body: requests.EnqueueJobs) -> Reply[replies.ScheduledJobs]:
    """Schedule many jobs, all or none; of a queue with shards, all or none of each shard."""
    return Reply(created(body.on_conflict), replies.ScheduledJobs(await _enqueue(request, "batches", body, body.jobs)))


def created(on_conflict: OnConflict | None) -> HTTPStatus:
    """Return the status after an enqueue. With `on_conflict`, the job may have been there."""
    return HTTPStatus.CREATED if on_conflict is None else HTTPStatus.OK


async def look(request: ApiRequest) -> JobStatus:
    """Return the place and the record of a job."""
    status = await request.client.status(request.queue, request.job)
    if status is None:
        raise JobMissing(
            f"there is no job {request.job} in queue {request.queue}: it never existed, was cancelled while it "
            "waited, or ended and its retention is over"
        )
    return status


async def explain(request: ApiRequest) -> replies.Explained:
    """Explain why a job has not run yet, or the next step of a recurrence of this name."""
    found = await request.client.explain(request.queue, request.job)
    return replies.Explained(request.job, found.sentence, found.facts)


async def cancel(request: ApiRequest) -> Reply[replies.Stopping]:
    """Delete a waiting job, or have its worker stop it."""
    place = await request.client.cancel(request.queue, request.job)
    if place == "processing":
        return Reply(HTTPStatus.ACCEPTED, replies.Stopping(request.job, place))
    return Reply(HTTPStatus.NO_CONTENT)


async def edit(request: ApiRequest, body: requests.EditJob) -> replies.Scheduled:
    """Give a waiting job another due, or other arguments, tags, priority or group; the latter to a dead job too."""
    changes: Any = {name: value for name in _EDITED if (value := getattr(body, name)) is not UNSET}
    if body.due is None and body.delay is None and not changes:
        raise invalid("give due, delay or another field: a delay of 0 makes the job due now")
    if body.delay is not None and idempotency_key(request.http.headers) is not None:
        # Each repetition would move the job again.
        raise invalid("a request with a delay is not done once, whatever its Idempotency-Key: send `due` instead")
    if not changes and body.version is None:
        due = await request.client.reschedule(request.queue, request.job, body.due, delay=body.delay)
        return replies.Scheduled(request.job, request.queue, due)
    edited = await request.client.edit(
        request.queue,
        request.job,
        version=body.version,
        due=body.due,
        delay=body.delay,
        **changes,
    )
    return replies.Scheduled(request.job, request.queue, edited.due)


_EDITED: Final = ("args", "kwargs", "priority", "group", "tags")
"""The fields of a request that change what a job is."""


async def signal(request: ApiRequest, body: requests.Signal) -> replies.Signaled:
    """Send a signal to a job, for which its handler may wait."""
    parts = request.client.parts_of(request.queue, request.job)
    done = await request.client.run(graph_nodes.signal(parts, request.job, body.name, body.value))
    return replies.Signaled(request.job, body.name, done)


async def wait_for_end(request: ApiRequest, query: requests.ResultQuery) -> Reply[replies.Outcome]:
    """Return how a job has ended; wait for it if the query says so."""
    parts = request.client.parts_of(request.queue, request.job)

    def end(store: Store) -> Operation[JobEnd]:
        ended = yield from operations.end(store, request.job, query.wait)
        return replace(ended, result=(yield from operations.shown_result(request.job, ended.result)))

    ending = request.client.run(spread.of_job(parts, end))
    try:
        ended = await (request.waiters.wait(request.http, ending) if query.wait else ending)
    except TimeoutError:
        ended = None
    if ended is None:
        return Reply(HTTPStatus.ACCEPTED, replies.Outcome(request.job, None))
    return Reply(HTTPStatus.OK, replies.Outcome(request.job, ended.outcome, ended.result, ended.reason))


async def list_jobs(request: ApiRequest, query: requests.JobsQuery) -> replies.Jobs:
    """List the waiting and the dead jobs, the next to run first; with a filter, only matching jobs."""
    limit, matching = request.limit(query.limit), filter_of(query)
    places: tuple[Place, ...] = get_args(Waiting) if query.place is None else (query.place,)
    fronts = [place for place in get_args(Waiting) if query.place in (None, place)]
    by_front = matching.is_empty and fronts
    read = partial(_first, fronts, limit) if by_front else partial(_search, matching, places, limit)
    jobs, lost = await request.client.run(spread.answering(request.stores, read, set()))
    there = [store for store in request.stores if store.queue not in lost]
    declared = await request.client.run(past_acts.redactions(there, [job.id for job in jobs.jobs]))
    shown = [replace(job, id=redacted_member(job.id, declared)) for job in jobs.jobs]
    return replace(jobs, jobs=shown, complete=jobs.complete and not lost and request.shards.known)


def _first(places: Sequence[Waiting], limit: int, stores: Sequence[Store]) -> Operation[replies.Jobs]:
    """Return the first jobs, the next to run first."""
    found = list[Match]()
    for place in places:
        if len(found) <= limit:
            found += yield from front(stores, place, limit + 1 - len(found))
    return replies.Jobs(found[:limit], len(found) <= limit)


def _search(matching: Filter, places: Sequence[Place], limit: int, stores: Sequence[Store]) -> Operation[replies.Jobs]:
    """Return jobs that match, in no order: `limit` of them, or those among the first that are examined."""
    sweep, more = Sweep(stores, matching, places), True
    while more and len(sweep.found) <= limit and sweep.examined < EXAMINED_MOST:
        more = yield from sweep.step()
    return replies.Jobs(sweep.found[:limit], not more and len(sweep.found) <= limit)


async def _enqueue(
    request: ApiRequest,
    path: str,
    body: requests.EnqueueJob | requests.EnqueueJobs,
    given: Sequence[requests.NewJob],
    key: Any = UNSET,
) -> list[replies.Scheduled]:
    """Enqueue jobs, unless a request with the same Idempotency-Key did so before; return the reply of that one.

    `path`: of the request, below that of the queue. `key`: makes a unique job's id; unset = its arguments do.
    """
    on_conflict = body.on_conflict
    unique = None if body.unique is None else Unique(within=body.unique.within)
    jobs = given_jobs(request, given, unique, key, many=isinstance(body, requests.EnqueueJobs))
    once = request.once(path, body)
    named = any(one.id is not None for one in given)
    if named or unique is not None or once is not None:
        request.shards.check()  # a second job of the id, or of the request, may be in a shard
    if once is not None:
        # A repetition must find the shards of the first request. So a job with a random id goes to the home of the key.
        known = [
            once.key if unique is None and one.id is None else job.id for job, one in zip(jobs, given, strict=True)
        ]
        return await _enqueue_once(request, once, jobs, known, on_conflict, unique)
    dues = await request.client.enqueue(request.queue, jobs, on_conflict, unique)
    return [replies.Scheduled(job.id, request.queue, due) for job, due in zip(jobs, dues, strict=True)]


def given_jobs(
    request: ApiRequest, given: Sequence[requests.NewJob], unique: Unique | None, key: Any = UNSET, *, many: bool
) -> list[New]:
    """Build the jobs of a request. `key`: as of `_enqueue`. `many`: it has a list of them.

    Raises:
        Problem: an option or an argument is not valid, or there are too many.
    """
    most, jobs = request.config.api_jobs_cap, list[New]()
    if len(given) > most:
        raise invalid(f"the request has {len(given)} jobs, more than {most}: send several requests")
    for at, one in enumerate(given):
        try:
            jobs.append(_new(request, one, unique, key))
        except ConfigError as error:
            raise invalid(f"jobs[{at}]: {error}" if many else str(error)) from None
    return jobs


def _new(request: ApiRequest, given: requests.NewJob, unique: Unique | None, key: Any) -> New:
    """Build a job.

    Raises:
        ConfigError: an option or an argument is not valid.
    """
    values: dict[str, Any] = {name: getattr(given, name) for name in _OPTIONS}
    options = JobOptions(**values, reply=given.reply or None, queue=request.queue, unique=unique)
    check_job_options(options)
    job = new_job(given.task, given.args, given.kwargs, options, request.config.payload_cap)
    if unique is None:
        return job
    digest = digest_of(request.client.codec)
    if key is UNSET:
        return replace(job, id=id_of_arguments(given.task, given.args, given.kwargs, digest))
    return replace(job, id=id_of_key(given.task, key, digest))


async def _enqueue_once(
    request: ApiRequest,
    once: IdempotentRequest,
    jobs: Sequence[New],
    known: Sequence[str],
    on_conflict: OnConflict | None,
    unique: Unique | None,
) -> list[replies.Scheduled]:
    """Enqueue the jobs of a request with an Idempotency-Key. `known`: texts that decide in which shard each goes."""
    homes = dict[str, list[int]]()
    for at, text in enumerate(known):
        homes.setdefault(request.client.shards.home(request.queue, text), []).append(at)
    scheduled = dict[int, replies.Scheduled]()
    for home, places in homes.items():
        some = await request.client.sealed([jobs[at] for at in places])
        call = request.client.store(home).enqueue_once(
            once, some, on_conflict=on_conflict, within=unique and unique.seconds
        )
        accepted = await request.client.send(call)
        check_same(once, accepted.asked)
        if len(accepted.jobs) != len(places):
            raise Problem(
                HTTPStatus.CONFLICT,
                "shards-changed",
                "the number of shards of the queue has changed since the first request with this Idempotency-Key, so "
                "its reply is not known any more: look its jobs up",
            )
        for at, (job_id, due) in zip(places, accepted.jobs, strict=True):
            scheduled[at] = replies.Scheduled(job_id, request.queue, due)
    return [scheduled[at] for at in range(len(jobs))]


_OF_PAYLOAD: Final = tuple({*requests.JobFields.__struct_fields__} - {"task", "args", "kwargs"})
"""The options of each job of a recurrence."""


async def list_recurrences(request: ApiRequest, query: requests.ListQuery) -> replies.Recurrences:
    """List the recurrences of a queue, the next to recur first."""
    limit = request.limit(query.limit)
    found = await request.client.run(list_statuses(request.store, limit + 1))
    return replies.Recurrences(found[:limit], len(found) <= limit)


async def look_recurrence(request: ApiRequest) -> RecurrenceStatus:
    """Return a recurrence."""
    return await request.client.run(recurrence_status(request.store, request.name))


async def put(request: ApiRequest, body: requests.NewRecurrence) -> Reply[replies.Changed]:
    """Create a recurrence, or change the one of that name."""
    declared = _declared(request, body)
    check_declared(declared)
    change, paused = await request.client.run(recurrence_operations.add(request.store, declared))
    reply = replies.Changed(request.name, change, paused)
    if change == "made":
        return Reply(HTTPStatus.CREATED, reply, request.location(f"recurrences/{request.name}"))
    return Reply(HTTPStatus.OK, reply)


async def remove(request: ApiRequest) -> None:
    """Delete a recurrence, with the occurrences that it has on the schedule."""
    await request.client.remove(request.queue, request.name)


async def pause(request: ApiRequest, body: requests.Pause) -> None:
    """Pause a recurrence, until a moment or until it is resumed."""
    until = _moment("until", body.until)
    await request.client.run(recurrence_operations.pause(request.store, request.name, until, body.why))


async def resume(request: ApiRequest) -> replies.Resumed:
    """Resume a recurrence from now on."""
    return replies.Resumed(request.name, await request.client.send(request.store.hold(request.name, False)))


async def trigger(request: ApiRequest) -> Reply[replies.Triggered]:
    """Run a recurrence once now, or when the runs have ended that it must not overlap with."""
    once = request.once(f"recurrences/{request.name}/trigger", None)
    if once is None:
        job_id, begun = await request.client.run(recurrence_operations.trigger(request.store, request.name))
    else:
        triggering = recurrence_operations.trigger_once(request.store, request.name, once)
        first, job_id, begun = await request.client.run(triggering)
        check_same(once, first)
    return Reply(HTTPStatus.ACCEPTED, replies.Triggered(job_id, begun))


def _declared(request: ApiRequest, body: requests.NewRecurrence) -> Declared:
    of_payload: dict[str, Any] = {name: getattr(body, name) for name in _OF_PAYLOAD}
    options = JobOptions(**of_payload)
    check_job_options(options)
    fields = {name: value for name, value in msgspec.structs.asdict(body).items() if name in _AS_GIVEN}
    return Declared(
        name=request.name,
        payload=new_job(body.task, body.args, body.kwargs, options, request.config.payload_cap).payload,
        start=_moment("start", body.start),
        end=_moment("end", body.end),
        **fields,
    )


_AS_GIVEN: Final = {*Declared.__struct_fields__} - {"name", "payload", "start", "end"}


def _moment(name: str, given: datetime | float | None) -> float | None:
    return None if given is None else unix(name, given)
