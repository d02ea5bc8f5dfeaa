"""The table of requests: for each path and method the handler, and the structs that it takes and returns.

The routes and the OpenAPI 3.1 document are made from this table.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from evsched import __version__
from evsched.api import job_handlers, operator_handlers
from evsched.api.access import Scope
from evsched.api.problem import MEDIA_TYPE, ProblemDetails
from evsched.api.replies import (
    Calendars,
    CalendarSet,
    Changed,
    DeadChanged,
    Explained,
    Jobs,
    Outcome,
    QueueCounts,
    QueueLimits,
    QueuePaused,
    QueueResumed,
    Queues,
    Recurrences,
    Reply,
    Resumed,
    Scheduled,
    ScheduledJobs,
    Stopping,
    Triggered,
    Windows,
    WindowSet,
)
from evsched.api.requests import (
    NAME_IN_PATH,
    CreateQuery,
    DeadJobs,
    EnqueueJob,
    EnqueueJobs,
    JobsQuery,
    ListQuery,
    NewCalendar,
    NewLimits,
    NewRecurrence,
    NewWindow,
    Pause,
    Reschedule,
    ResultQuery,
)
from evsched.client.recurrence_operations import RecurrenceStatus
from evsched.client.wire_schema import DIALECT
from evsched.jobs.record import JobStatus

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

Handler = Callable[[Any], Awaitable[Reply]]
"""Called with an `Asked`."""


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path. The name of the handler is its id in the OpenAPI document, its docstring the summary."""

    method: Method
    path: str
    handler: Handler
    replies: Mapping[int, type | None]
    """The type of the body by the status; None = it has none."""
    body: type | None = None
    query: type | None = None
    key: bool = False
    """Whether it takes an Idempotency-Key."""

    @property
    def needs(self) -> Scope:
        """The right that the token must give."""
        return "read" if self.method == "GET" else "write"

    @property
    def summary(self) -> str:
        """One sentence, for the OpenAPI document."""
        return (self.handler.__doc__ or "").partition("\n")[0].rstrip(".")

    @property
    def id(self) -> str:
        """Its name in the OpenAPI document."""
        family = self.handler.__module__.rpartition(".")[2].removesuffix("_handlers")
        return f"{family}_{self.handler.__name__}"


_QUEUE: Final = "/v1/queues/{queue}"
_JOB: Final = f"{_QUEUE}/jobs/{{id}}"
_RECURRENCE: Final = f"{_QUEUE}/recurrences/{{name}}"
_CALENDAR: Final = f"{_QUEUE}/calendars/{{name}}"
_WINDOW: Final = f"{_QUEUE}/windows/{{name}}"


def _row(
    method: Method,
    path: str,
    handler: Handler,
    replies: type | Mapping[int, type | None],
    *,
    body: type | None = None,
    query: type | None = None,
    key: bool = False,
) -> Operation:
    """Make a row of the table. `replies`: a type alone is that of the status 200."""
    by_status = {200: replies} if isinstance(replies, type) else replies
    return Operation(method=method, path=path, handler=handler, replies=by_status, body=body, query=query, key=key)


OPERATIONS: Final = (
    _row("GET", "/v1/queues", operator_handlers.list_queues, Queues, query=ListQuery),
    _row("GET", _QUEUE, operator_handlers.count, QueueCounts),
    _row("GET", f"{_QUEUE}/jobs", job_handlers.list_jobs, Jobs, query=JobsQuery),
    _row("POST", f"{_QUEUE}/jobs", job_handlers.enqueue, {201: Scheduled, 200: Scheduled}, body=EnqueueJob, key=True),
    _row(
        "POST",
        f"{_QUEUE}/batches",
        job_handlers.enqueue_many,
        {201: ScheduledJobs, 200: ScheduledJobs},
        body=EnqueueJobs,
        key=True,
    ),
    _row("GET", _JOB, job_handlers.look, JobStatus),
    _row("PATCH", _JOB, job_handlers.reschedule, Scheduled, body=Reschedule),
    _row("DELETE", _JOB, job_handlers.cancel, {204: None, 202: Stopping}),
    _row("GET", f"{_JOB}/explain", job_handlers.explain, Explained),
    _row("GET", f"{_JOB}/result", job_handlers.wait_for_end, {200: Outcome, 202: Outcome}, query=ResultQuery),
    _row("GET", f"{_QUEUE}/recurrences", job_handlers.list_recurrences, Recurrences, query=ListQuery),
    _row("GET", _RECURRENCE, job_handlers.look_recurrence, RecurrenceStatus),
    _row("PUT", _RECURRENCE, job_handlers.put, {201: Changed, 200: Changed}, body=NewRecurrence),
    _row("DELETE", _RECURRENCE, job_handlers.remove, {204: None}),
    _row("POST", f"{_RECURRENCE}/pause", job_handlers.pause, {204: None}, body=Pause),
    _row("POST", f"{_RECURRENCE}/resume", job_handlers.resume, Resumed),
    _row("POST", f"{_RECURRENCE}/trigger", job_handlers.trigger, {202: Triggered}, key=True),
    _row("POST", f"{_QUEUE}/pause", operator_handlers.pause, QueuePaused, body=Pause, query=CreateQuery),
    _row("POST", f"{_QUEUE}/resume", operator_handlers.resume, QueueResumed),
    _row("GET", f"{_QUEUE}/limits", operator_handlers.limits, QueueLimits),
    _row("PATCH", f"{_QUEUE}/limits", operator_handlers.limit, QueueLimits, body=NewLimits, query=CreateQuery),
    _row("POST", f"{_QUEUE}/dead/revive", operator_handlers.revive, DeadChanged, body=DeadJobs),
    _row("POST", f"{_QUEUE}/dead/drop", operator_handlers.drop, DeadChanged, body=DeadJobs),
    _row("GET", f"{_QUEUE}/calendars", operator_handlers.list_calendars, Calendars),
    _row("PUT", _CALENDAR, operator_handlers.put_calendar, CalendarSet, body=NewCalendar, query=CreateQuery),
    _row("DELETE", _CALENDAR, operator_handlers.remove_calendar, {204: None}),
    _row("GET", f"{_QUEUE}/windows", operator_handlers.list_windows, Windows),
    _row("PUT", _WINDOW, operator_handlers.put_window, WindowSet, body=NewWindow, query=CreateQuery),
    _row("DELETE", _WINDOW, operator_handlers.remove_window, {204: None}),
)


_PATH_PARAMETERS: Final = {
    "queue": "The name of the queue.",
    "id": "The id of the job.",
    "name": "The name of the recurrence, the calendar or the window.",
}

_STATUSES: Final = {
    200: "Done.",
    201: "Created.",
    202: "Accepted: it goes on.",
    204: "Done; there is nothing to return.",
}


def document(base: str) -> dict[str, Any]:
    """Return the document. `base`: the path under which the API is mounted; '' = none."""
    kinds = dict.fromkeys([ProblemDetails, *(kind for one in OPERATIONS for kind in _kinds(one))])
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    known = dict(zip(kinds, schemas, strict=True))
    paths = dict[str, dict[str, Any]]()
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, known, components)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": DIALECT,
        "info": {
            "title": "evsched",
            "version": __version__,
            "description": "Schedule, look up and change jobs and recurrences. Replies have times in Unix seconds.",
        },
        "servers": [{"url": base or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token that may read, or write too."}
            },
        },
    }


def _kinds(operation: Operation) -> list[type]:
    """Return the structs of an operation that are schemas of the document. Those of queries become parameters."""
    return [kind for kind in (operation.body, operation.query, *operation.replies.values()) if kind is not None]


def _operation(operation: Operation, known: dict[type, Any], components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "security": [{"token": [operation.needs]}],
        "parameters": _parameters(operation, components),
        "responses": {
            **{str(status): _response(status, kind, known) for status, kind in operation.replies.items()},
            "default": {
                "description": "It was not done: `detail` says why.",
                "content": {MEDIA_TYPE: {"schema": known[ProblemDetails]}},
            },
        },
    }
    if operation.body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": known[operation.body]}}}
    return found


def _parameters(operation: Operation, components: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH_PARAMETERS[name],
            "schema": {"type": "string", "pattern": NAME_IN_PATH, "maxLength": 200},
        }
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    if operation.query is not None:
        properties = components[operation.query.__name__]["properties"]
        found += [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]
    if operation.key:
        found.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "description": "A repetition with the same key does nothing and gets the first reply, for a day.",
                "schema": {"type": "string", "minLength": 1, "maxLength": 255},
            }
        )
    return found


def _response(status: int, kind: type | None, known: dict[type, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"description": _STATUSES[status]}
    if kind is not None:
        found["content"] = {"application/json": {"schema": known[kind]}}
    return found
