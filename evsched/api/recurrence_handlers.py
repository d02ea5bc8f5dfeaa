"""The handlers of requests about recurrences."""

from __future__ import annotations

from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

import msgspec

from evsched.api import idempotency
from evsched.api.asked import Asked
from evsched.api.replies import Changed, Recurrences, Reply, Resumed, Triggered
from evsched.api.requests import ListQuery, NewRecurrence, Pause
from evsched.client import recurrence_operations
from evsched.client.new_job import JobOptions, check_job_options, new_job
from evsched.client.option_values import unix
from evsched.client.recurrence_operations import list_statuses, recurrence_status
from evsched.recurrence.check_declared import check_declared
from evsched.recurrence.recurrence import Declared

_OF_PAYLOAD: Final = ("priority", "group", "window", "timeout", "retry", "retention", "meta")
"""The options of each job."""


async def list_recurrences(asked: Asked[None, ListQuery]) -> Reply:
    """List the recurrences of a queue, the next to recur first."""
    limit = asked.limit(asked.query.limit)
    found = await asked.client.run(list_statuses(asked.store, limit + 1))
    return Reply(HTTPStatus.OK, Recurrences(found[:limit], len(found) <= limit))


async def look(asked: Asked[None, None]) -> Reply:
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
