"""The handlers of requests about queues, and of operators' requests.

Operators pause queues, set limits, revive or drop dead jobs, and set calendars and windows.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final, cast

from msgspec import UNSET

from evsched.api import replies, requests
from evsched.api.api_request import EXAMINED_MOST, ApiRequest
from evsched.api.replies import Problem, invalid
from evsched.api.requests import filter_of
from evsched.client.gate import LimitOptions
from evsched.client.history import WEEK, HistoryFilter
from evsched.client.operations import once
from evsched.client.queue_names import ask_nodes
from evsched.client.reshard import finish_moves
from evsched.client.spread import ChangeDead, check, is_unused, listed, never_used, queue_stats, shown
from evsched.client.sweep import Filter, dropping, reviving
from evsched.errors import StoreError
from evsched.store.gate_limits import Limits
from evsched.store.operator_calls import QueueStats
from evsched.store.store import Store
from evsched.transport.servers import topology


async def list_queues(request: ApiRequest, query: requests.ListQuery) -> replies.Queues:
    """List the queues with their counts."""
    limit = request.limit(query.limit)
    names, complete = await _names(request)
    read = await asyncio.gather(*(_read(request, name) for name in names[:limit]))
    found = [_counts(name, one) for name, one in zip(names, read, strict=False) if isinstance(one, QueueStats)]
    errors = [one for one in read if isinstance(one, StoreError)]
    if errors and not found:
        raise errors[0]
    complete = complete and not errors and len(names) <= limit and request.shards.known
    return replies.Queues(found, complete)


async def _names(request: ApiRequest) -> tuple[list[str], bool]:
    """Return the queues to list, and whether they are all: in a cluster, each node was asked once."""
    client, url = request.client, request.config.url
    if request.config.queues:
        return sorted(request.config.queues), True
    if topology(url) is None:
        return await client.run(listed(client.shards, client.store)), True
    known = await ask_nodes(url, client.perform)
    return await client.run(once(shown(client.shards, client.store, known.names))), not known.down


async def _read(request: ApiRequest, queue: str) -> QueueStats | StoreError:
    """Read a queue with its shards. In a cluster each is asked once, so that none delays the list for long."""
    reading = queue_stats(request.client.stores(queue))
    try:
        return await request.client.run(reading if topology(request.config.url) is None else once(reading))
    except StoreError as error:
        return error


async def count(request: ApiRequest) -> replies.QueueCounts:
    """Count the jobs of a queue. One that was never used has none."""
    request.shards.check()
    return _counts(request.queue, await request.client.run(queue_stats(request.stores)))


def _counts(queue: str, stats: QueueStats) -> replies.QueueCounts:
    return replies.QueueCounts(
        queue=queue,
        **stats.places,
        overdue=stats.due,
        oldest=stats.oldest,
        workers=stats.workers,
        next_due=stats.next_due,
        paused=stats.paused,
        paused_until=stats.paused_until,
        paused_why=stats.paused_why,
    )


async def scale(request: ApiRequest, query: requests.ScaleQuery) -> replies.QueueScale:
    """Count the slots that the jobs of a queue want, for an autoscaler. An uncertain answer is an error, and never 0.

    Redis is asked once, for at most a second, or two if the numbers of shards are read: an autoscaler asks again, and
    some give up after 3 s. A queue without anything is refused: its name is misspelt, or Redis has lost its data.
    """
    request.shards.check()
    client, queue = request.client, request.queue
    stats = await client.run(once(queue_stats(request.stores, query.lead)))
    if not (any(stats.places.values()) or stats.workers) and await client.run(
        once(is_unused(client.shards, client.store, queue))
    ):
        detail = (
            f"queue {queue} has no jobs, no workers, no recurrences and no history: its name is misspelt, or Redis has "
            "lost its data"
        )
        raise Problem(HTTPStatus.NOT_FOUND, "no-such-queue", detail)
    return replies.QueueScale(
        queue=queue,
        jobs=stats.wanted,
        due=stats.due,
        backlog=stats.places["backlog"],
        ready=stats.places["ready"],
        processing=stats.places["processing"],
        workers=stats.workers,
        next_due_in=None if stats.next_due is None else max(0.0, stats.next_due - stats.now),
    )


async def _check_used(request: ApiRequest, *, create: bool | None = None) -> None:
    """Refuse a queue that has never been used, unless the caller says `create`: its name is probably misspelt.

    `create`: None = the request has no such parameter.

    Raises:
        Problem
    """
    client = request.client
    if create or request.config.queues:  # an API that serves only some queues has refused other names already
        return
    if unknown := await client.run(never_used(client.shards, client.store, request.queue)):
        hint = "" if create is None else "; with create=true this is done before its first job"
        raise Problem(HTTPStatus.NOT_FOUND, "no-such-queue", unknown + hint)


async def _check_shards(request: ApiRequest) -> None:
    """Refuse a change of a whole queue before anything is read, if a primary of its shards does not answer.

    Raises:
        ShardsDown: nothing was done.
    """
    await request.client.run(check(request.stores))


async def pause(request: ApiRequest, body: requests.Pause, query: requests.CreateQuery) -> replies.QueuePaused:
    """Pause a queue, until a moment or until it is resumed: running jobs finish, and no other starts."""
    await _check_shards(request)
    await _check_used(request, create=query.create)
    since = await request.client.pause(request.queue, until=body.until, why=body.why)
    return replies.QueuePaused(request.queue, since)


async def resume(request: ApiRequest) -> replies.QueueResumed:
    """Resume a queue."""
    await _check_shards(request)
    await _check_used(request)
    return replies.QueueResumed(request.queue, await request.client.resume(request.queue))


_LIMITS: Final = ("concurrency", "rate", "burst", "weight")


async def limits(request: ApiRequest) -> replies.QueueLimits:
    """List the limits of a queue, and the limits that the code of the apps declares."""
    return _listed(request, await request.client.limits(request.queue))


async def limit(request: ApiRequest, body: requests.NewLimits, query: requests.CreateQuery) -> replies.QueueLimits:
    """Set limits of a queue, of a group or of a task, and list all."""
    fields = {name: value for name in _LIMITS if (value := getattr(body, name)) is not UNSET}
    if not fields:
        raise invalid("give concurrency, rate, burst or weight: a number, or null to remove the limit")
    await _check_shards(request)
    await _check_used(request, create=query.create)
    options = cast("LimitOptions", fields)
    return _listed(request, await request.client.limit(request.queue, group=body.group, task=body.task, **options))


def _listed(request: ApiRequest, found: Limits) -> replies.QueueLimits:
    rows = list[replies.QueueLimit]()
    for field, value in found.fields().items():
        name, _, group = field.partition(":")
        declared = found.declared.get(field)
        of_code = (None, None) if declared is None else (declared.value, declared.app)
        rows.append(replies.QueueLimit(group or None, name, value, *of_code))
    return replies.QueueLimits(request.queue, rows)


async def audit(request: ApiRequest, query: requests.AuditQuery) -> replies.Acts:
    """List what operators did to a queue: the audit trail."""
    request.shards.check()
    limit, conditions = request.limit(query.limit), {"who": query.who, "act": query.act, "id": query.id}
    found = await request.client.audit(
        request.queue, since=query.since, until=query.until, **conditions, limit=limit + 1
    )
    return replies.Acts(found[:limit], len(found) <= limit)


async def history(request: ApiRequest, query: requests.HistoryQuery) -> replies.PastJobs:
    """List the jobs that have ended: the history."""
    request.shards.check()
    conditions: dict[str, Any] = {name: getattr(query, name) for name in HistoryFilter.__struct_fields__}
    page = await request.client.history_page(
        request.queue,
        HistoryFilter(**conditions),
        limit=request.limit(query.limit),
        cursor=query.cursor,
        most=EXAMINED_MOST,
    )
    return replies.PastJobs(page.jobs, page.cursor)


async def history_counts(request: ApiRequest, query: requests.CountsQuery) -> replies.PastCounts:
    """Count the jobs that have ended, by task and outcome."""
    request.shards.check()
    since = WEEK if query.since is None else query.since
    found = await request.client.history_counts(request.queue, since=since, until=query.until, task=query.task)
    return replies.PastCounts(found)


async def revive(request: ApiRequest, body: requests.DeadJobs) -> replies.DeadChanged:
    """Schedule dead jobs again, due now, with all attempts: by id, by a filter, or all."""
    return await _change(request, body, Store.revive)


async def drop(request: ApiRequest, body: requests.DeadJobs) -> replies.DeadChanged:
    """Delete dead jobs: by id, by a filter, or all."""
    return await _change(request, body, Store.drop)


async def _change(request: ApiRequest, body: requests.DeadJobs, change: ChangeDead) -> replies.DeadChanged:
    client, matching = request.client, filter_of(body)
    if sum((body.ids is not None, not matching.is_empty, body.all)) != 1:
        raise invalid("say which jobs: give ids, or a filter, or all: one of them")
    if body.ids is not None:
        if len(body.ids) > request.config.api_jobs_cap:
            raise invalid(f"the request has {len(body.ids)} ids, more than {request.config.api_jobs_cap}: send several")
        ids = list(dict.fromkeys(body.ids))
        changed = await (client.revive if change is Store.revive else client.drop)(request.queue, ids)
        return replies.DeadChanged(changed, complete=True)
    if body.all:
        matching = Filter(older=0.0)  # only the jobs that are dead by now, so that it ends
    stores = await client.whole(request.queue)
    if len(stores) > 1:
        await client.run(finish_moves(stores))
    plan = reviving if change is Store.revive else dropping
    sweep, more = plan(stores, matching), True
    while more and sweep.examined < EXAMINED_MOST:
        more = await client.run(sweep.step())
    return replies.DeadChanged(sweep.swept.changed, complete=not more)


async def list_calendars(request: ApiRequest) -> replies.Calendars:
    """List the calendars of a queue, with their days."""
    found = await request.client.calendars(request.queue)
    return replies.Calendars([replies.CalendarDays(name, days.split()) for name, days in sorted(found.items())])


async def put_calendar(
    request: ApiRequest, body: requests.NewCalendar, query: requests.CreateQuery
) -> replies.CalendarSet:
    """Create or change a calendar. The recurrences that skip its days are planned again at once."""
    present = await request.client.calendars(request.queue)
    await _check_used(request, create=query.create or bool(present))
    planned = await request.client.set_calendar(request.queue, request.name, " ".join(body.days))
    return replies.CalendarSet(request.name, planned)


async def remove_calendar(request: ApiRequest) -> None:
    """Delete a calendar that no recurrence refers to."""
    await request.client.remove_calendar(request.queue, request.name)


async def list_windows(request: ApiRequest) -> replies.Windows:
    """List the named windows of a queue."""
    found = await request.client.windows(request.queue)
    return replies.Windows([replies.NamedWindow(name, window) for name, window in sorted(found.items())])


async def put_window(request: ApiRequest, body: requests.NewWindow, query: requests.CreateQuery) -> replies.WindowSet:
    """Create or change a named window. Jobs that wait for it are checked again at once."""
    await _check_shards(request)
    present = await request.client.windows(request.queue)
    await _check_used(request, create=query.create or bool(present))
    back = await request.client.set_window(request.queue, request.name, body.window)
    return replies.WindowSet(request.name, back)


async def remove_window(request: ApiRequest) -> None:
    """Delete a named window that no recurrence refers to. Jobs that wait for it go to dead."""
    await request.client.remove_window(request.queue, request.name)
