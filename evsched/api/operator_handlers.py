"""The handlers of requests about queues, and of operators' requests.

Operators pause queues, set limits, revive or drop dead jobs, and set calendars and windows.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, cast

from msgspec import UNSET

from evsched.api.api_request import EXAMINED_MOST, Asked
from evsched.api.problem import Problem, invalid
from evsched.api.replies import (
    CalendarDays,
    Calendars,
    CalendarSet,
    DeadChanged,
    NamedWindow,
    QueueCounts,
    QueueLimit,
    QueueLimits,
    QueuePaused,
    QueueResumed,
    Queues,
    Reply,
    Windows,
    WindowSet,
)
from evsched.api.requests import CreateQuery, DeadJobs, ListQuery, NewCalendar, NewLimits, NewWindow, Pause
from evsched.client.gate import LimitOptions
from evsched.client.operations import ask_nodes, once
from evsched.client.reshard import finish_moves
from evsched.client.spread import ChangeDead, change_dead, check, listed, never_used, queue_stats, shown
from evsched.client.sweep import Filter, dropping, reviving
from evsched.errors import StoreError
from evsched.store.gate_limits import Limits
from evsched.store.operator_calls import QueueStats
from evsched.store.store import Store
from evsched.transport.servers import topology


async def list_queues(asked: Asked[None, ListQuery]) -> Reply:
    """List the queues with their counts."""
    limit = asked.limit(asked.query.limit)
    names, complete = await _names(asked)
    read = await asyncio.gather(*(_read(asked, name) for name in names[:limit]))
    found = [_counts(name, one) for name, one in zip(names, read, strict=False) if isinstance(one, QueueStats)]
    errors = [one for one in read if isinstance(one, StoreError)]
    if errors and not found:
        raise errors[0]
    complete = complete and not errors and len(names) <= limit and asked.shards.known
    return Reply(HTTPStatus.OK, Queues(found, complete))


async def _names(asked: Asked[Any, Any]) -> tuple[list[str], bool]:
    """Return the queues to list, and whether they are all: in a cluster, each node was asked once."""
    client, url = asked.client, asked.config.url
    if asked.config.queues:
        return sorted(asked.config.queues), True
    if topology(url) is None:
        return await client.run(listed(client.shards, client.store)), True
    known = await ask_nodes(url, client.perform)
    return await client.run(once(shown(client.shards, client.store, known.names))), not known.down


async def _read(asked: Asked[Any, Any], queue: str) -> QueueStats | StoreError:
    """Read a queue with its shards. In a cluster each is asked once, so that none delays the list for long."""
    reading = queue_stats(asked.client.stores(queue))
    try:
        return await asked.client.run(reading if topology(asked.config.url) is None else once(reading))
    except StoreError as error:
        return error


async def count(asked: Asked[None, None]) -> Reply:
    """Count the jobs of a queue. One that was never used has none."""
    asked.shards.check()
    return Reply(HTTPStatus.OK, _counts(asked.queue, await asked.client.run(queue_stats(asked.stores))))


def _counts(queue: str, stats: QueueStats) -> QueueCounts:
    return QueueCounts(
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


async def _check_used(asked: Asked[Any, Any], *, create: bool) -> None:
    """Refuse a queue that has never been used: its name is probably misspelt.

    Raises:
        Problem
    """
    client = asked.client
    if create or asked.config.queues:  # an API that serves only some queues has refused other names already
        return
    if unknown := await client.run(never_used(client.shards, client.store, asked.queue)):
        hint = "" if asked.query is None else "; add ?create=true to do this before its first job"
        raise Problem(HTTPStatus.NOT_FOUND, "no-such-queue", unknown + hint)


async def _check_shards(asked: Asked[Any, Any]) -> None:
    """Refuse a change of a whole queue before anything is read, if a primary of its shards does not answer.

    Raises:
        ShardsDown: nothing was done.
    """
    await asked.client.run(check(asked.stores))


async def pause(asked: Asked[Pause, CreateQuery]) -> Reply:
    """Pause a queue, until a moment or until it is resumed: running jobs finish, and no other starts."""
    await _check_shards(asked)
    await _check_used(asked, create=asked.query.create)
    since = await asked.client.pause(asked.queue, until=asked.body.until, why=asked.body.why)
    return Reply(HTTPStatus.OK, QueuePaused(asked.queue, since))


async def resume(asked: Asked[None, None]) -> Reply:
    """Resume a queue."""
    await _check_shards(asked)
    await _check_used(asked, create=False)
    return Reply(HTTPStatus.OK, QueueResumed(asked.queue, await asked.client.resume(asked.queue)))


async def limits(asked: Asked[None, None]) -> Reply:
    """List the limits of a queue, and the limits that the code of the apps declares."""
    return _listed(asked, await asked.client.limits(asked.queue))


async def limit(asked: Asked[NewLimits, CreateQuery]) -> Reply:
    """Set limits of a queue, of a group or of a task, and list all."""
    given = asked.body
    names = {"concurrency": given.concurrency, "rate": given.rate, "burst": given.burst, "weight": given.weight}
    fields = {name: value for name, value in names.items() if value is not UNSET}
    if not fields:
        raise invalid("give concurrency, rate, burst or weight: a number, or null to remove the limit")
    await _check_shards(asked)
    present = await asked.client.limits(asked.queue)
    await _check_used(asked, create=asked.query.create or bool(present.queue or present.groups))
    options = cast("LimitOptions", fields)
    return _listed(asked, await asked.client.limit(asked.queue, group=given.group, task=given.task, **options))


def _listed(asked: Asked[Any, Any], found: Limits) -> Reply:
    rows = list[QueueLimit]()
    for field, value in found.fields().items():
        name, _, group = field.partition(":")
        declared = found.declared.get(field)
        of_code = (None, None) if declared is None else (declared.value, declared.app)
        rows.append(QueueLimit(group or None, name, value, *of_code))
    return Reply(HTTPStatus.OK, QueueLimits(asked.queue, rows))


async def revive(asked: Asked[DeadJobs, None]) -> Reply:
    """Schedule dead jobs again, due now, with all attempts: by id, by a filter, or all."""
    return await _change(asked, Store.revive)


async def drop(asked: Asked[DeadJobs, None]) -> Reply:
    """Delete dead jobs: by id, by a filter, or all."""
    return await _change(asked, Store.drop)


async def _change(asked: Asked[DeadJobs, None], change: ChangeDead) -> Reply:
    given, client = asked.body, asked.client
    names = {"task": given.task, "group": given.group, "reason": given.reason, "error": given.error}
    matching = Filter(**names, older=given.older, since=given.since, until=given.until)
    if sum((given.ids is not None, not matching.is_empty, given.all)) != 1:
        raise invalid("say which jobs: give ids, or a filter, or all: one of them")
    if given.ids is not None:
        if len(given.ids) > asked.config.api_jobs_cap:
            raise invalid(f"the request has {len(given.ids)} ids, more than {asked.config.api_jobs_cap}: send several")
        ids = list(dict.fromkeys(given.ids))
        changed = await client.run(change_dead(lambda job: client.parts_of(asked.queue, job), ids, change))
        return Reply(HTTPStatus.OK, DeadChanged(changed, complete=True))
    if given.all:
        matching = Filter(older=0.0)  # only the jobs that are dead by now, so that it ends
    stores = await client.whole(asked.queue)
    if len(stores) > 1:
        await client.run(finish_moves(stores))
    plan = reviving if change is Store.revive else dropping
    sweep, more = plan(stores, matching), True
    while more and sweep.examined < EXAMINED_MOST:
        more = await client.run(sweep.step())
    return Reply(HTTPStatus.OK, DeadChanged(sweep.swept.changed, complete=not more))


async def list_calendars(asked: Asked[None, None]) -> Reply:
    """List the calendars of a queue, with their days."""
    found = await asked.client.calendars(asked.queue)
    return Reply(HTTPStatus.OK, Calendars([CalendarDays(name, days.split()) for name, days in sorted(found.items())]))


async def put_calendar(asked: Asked[NewCalendar, CreateQuery]) -> Reply:
    """Create or change a calendar. The recurrences that skip its days are planned again at once."""
    present = await asked.client.calendars(asked.queue)
    await _check_used(asked, create=asked.query.create or bool(present))
    planned = await asked.client.set_calendar(asked.queue, asked.name, " ".join(asked.body.days))
    return Reply(HTTPStatus.OK, CalendarSet(asked.name, planned))


async def remove_calendar(asked: Asked[None, None]) -> Reply:
    """Delete a calendar that no recurrence refers to."""
    await asked.client.remove_calendar(asked.queue, asked.name)
    return Reply(HTTPStatus.NO_CONTENT)


async def list_windows(asked: Asked[None, None]) -> Reply:
    """List the named windows of a queue."""
    found = await asked.client.windows(asked.queue)
    return Reply(HTTPStatus.OK, Windows([NamedWindow(name, window) for name, window in sorted(found.items())]))


async def put_window(asked: Asked[NewWindow, CreateQuery]) -> Reply:
    """Create or change a named window. Jobs that wait for it are checked again at once."""
    await _check_shards(asked)
    present = await asked.client.windows(asked.queue)
    await _check_used(asked, create=asked.query.create or bool(present))
    back = await asked.client.set_window(asked.queue, asked.name, asked.body.window)
    return Reply(HTTPStatus.OK, WindowSet(asked.name, back))


async def remove_window(asked: Asked[None, None]) -> Reply:
    """Delete a named window that no recurrence refers to. Jobs that wait for it go to dead."""
    await asked.client.remove_window(asked.queue, asked.name)
    return Reply(HTTPStatus.NO_CONTENT)
