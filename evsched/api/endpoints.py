"""The table of requests: for each path and method the handler, and the statuses of its replies.

The annotations of a handler name the structs that it takes and returns. The routes and the OpenAPI 3.1 document are
made from both.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from evsched import __version__
from evsched.api import batch_handlers, job_handlers, operator_handlers, worker_handlers
from evsched.api.access import Scope
from evsched.api.replies import MEDIA_TYPE, ProblemDetails, Reply
from evsched.api.requests import LONGEST, NAME_IN_PATH, PATH_PARAMETERS
from evsched.client.wire_schema import DIALECT

Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

Handler = Callable[..., Awaitable[Any]]
"""Called with an `ApiRequest`, and with its `body` and its `query` if it takes them; returns a struct or a `Reply`."""


class Operation(Struct, frozen=True):
    """One method of one path. The name of the handler is its id in the OpenAPI document, its docstring the summary."""

    method: Method
    path: str
    handler: Handler
    replies: Mapping[int, type | None]
    """The type of the body by the status; None = it has none."""
    inputs: Mapping[str, type]
    """The types of the body and of the query, if it takes them."""
    key: bool
    """Whether it takes an Idempotency-Key."""
    needs: Scope
    """The right that the token must give."""

    @property
    def body(self) -> type | None:
        return self.inputs.get("body")

    @property
    def id(self) -> str:
        """Its name in the OpenAPI document."""
        family = self.handler.__module__.rpartition(".")[2].removesuffix("_handlers")
        return f"{family}_{self.handler.__name__}"


_QUEUE: Final = "/v1/queues/{queue}"
_JOB: Final = f"{_QUEUE}/jobs/{{id}}"
_RECURRENCE: Final = f"{_QUEUE}/recurrences/{{name}}"
_CALENDAR: Final = f"{_QUEUE}/calendars/{{name}}"
_BATCH: Final = f"{_QUEUE}/batches/{{batch}}"
_WINDOW: Final = f"{_QUEUE}/windows/{{name}}"
_WORKER: Final = f"{_QUEUE}/workers/{{worker}}"


def _row(method: Method, path: str, handler: Handler, *statuses: int, key: bool = False) -> Operation:
    """Make a row of the table, with the structs of the handler's annotations.

    `statuses`: the possible ones; none given = 200, or 204 if there is nothing to return.
    """
    hints = get_type_hints(handler)
    reply = hints.pop("return")
    kind = get_args(reply)[0] if get_origin(reply) is Reply else reply
    if not statuses:
        statuses = (204,) if kind is type(None) else (200,)
    replies = {status: None if status == HTTPStatus.NO_CONTENT else kind for status in statuses}
    del hints["request"]
    needs: Scope = "work" if path.startswith(_WORKER) else "read" if method == "GET" else "write"
    return Operation(method, path, handler, replies, hints, key, needs)


OPERATIONS: Final = (
    _row("GET", "/v1/queues", operator_handlers.list_queues),
    _row("GET", _QUEUE, operator_handlers.count),
    _row("GET", f"{_QUEUE}/scale", operator_handlers.scale),
    _row("GET", f"{_QUEUE}/jobs", job_handlers.list_jobs),
    _row("POST", f"{_QUEUE}/jobs", job_handlers.enqueue, 201, 200, key=True),
    _row("POST", f"{_QUEUE}/batches", job_handlers.enqueue_many, 201, 200, key=True),
    _row("GET", _JOB, job_handlers.look),
    _row("PATCH", _JOB, job_handlers.edit),
    _row("DELETE", _JOB, job_handlers.cancel, 204, 202),
    _row("GET", f"{_JOB}/explain", job_handlers.explain),
    _row("POST", f"{_JOB}/signals", job_handlers.signal),
    _row("GET", f"{_JOB}/result", job_handlers.wait_for_end, 200, 202),
    _row("GET", f"{_QUEUE}/batches", batch_handlers.list_batches),
    _row("PUT", _BATCH, batch_handlers.open, 201, 200),
    _row("GET", _BATCH, batch_handlers.look),
    _row("DELETE", _BATCH, batch_handlers.cancel, 200, 202),
    _row("GET", f"{_BATCH}/jobs", batch_handlers.list_jobs),
    _row("GET", f"{_BATCH}/nodes", batch_handlers.list_nodes),
    _row("POST", f"{_BATCH}/jobs", batch_handlers.add, 201, 200, key=True),
    _row("POST", f"{_BATCH}/close", batch_handlers.close),
    _row("POST", f"{_BATCH}/pause", batch_handlers.pause),
    _row("POST", f"{_BATCH}/resume", batch_handlers.resume),
    _row("GET", f"{_QUEUE}/recurrences", job_handlers.list_recurrences),
    _row("GET", _RECURRENCE, job_handlers.look_recurrence),
    _row("PUT", _RECURRENCE, job_handlers.put, 201, 200),
    _row("DELETE", _RECURRENCE, job_handlers.remove),
    _row("POST", f"{_RECURRENCE}/pause", job_handlers.pause),
    _row("POST", f"{_RECURRENCE}/resume", job_handlers.resume),
    _row("POST", f"{_RECURRENCE}/trigger", job_handlers.trigger, 202, key=True),
    _row("POST", f"{_QUEUE}/pause", operator_handlers.pause),
    _row("POST", f"{_QUEUE}/resume", operator_handlers.resume),
    _row("GET", f"{_QUEUE}/limits", operator_handlers.limits),
    _row("PATCH", f"{_QUEUE}/limits", operator_handlers.limit),
    _row("GET", f"{_QUEUE}/audit", operator_handlers.audit),
    _row("GET", f"{_QUEUE}/history", operator_handlers.history),
    _row("GET", f"{_QUEUE}/history/counts", operator_handlers.history_counts),
    _row("POST", f"{_QUEUE}/dead/revive", operator_handlers.revive),
    _row("POST", f"{_QUEUE}/dead/drop", operator_handlers.drop),
    _row("POST", f"{_WORKER}/fetch", worker_handlers.fetch),
    _row("POST", f"{_WORKER}/heartbeat", worker_handlers.heartbeat),
    _row("POST", f"{_WORKER}/jobs/{{id}}/complete", worker_handlers.complete),
    _row("POST", f"{_WORKER}/jobs/{{id}}/retry", worker_handlers.retry),
    _row("POST", f"{_WORKER}/jobs/{{id}}/give-up", worker_handlers.give_up),
    _row("DELETE", _WORKER, worker_handlers.leave),
    _row("GET", f"{_QUEUE}/calendars", operator_handlers.list_calendars),
    _row("PUT", _CALENDAR, operator_handlers.put_calendar),
    _row("DELETE", _CALENDAR, operator_handlers.remove_calendar),
    _row("GET", f"{_QUEUE}/windows", operator_handlers.list_windows),
    _row("PUT", _WINDOW, operator_handlers.put_window),
    _row("DELETE", _WINDOW, operator_handlers.remove_window),
)


_STATUSES: Final = {
    200: "Done.",
    201: "Created.",
    202: "Accepted: it goes on.",
    204: "Done; there is nothing to return.",
}


def document(base: str) -> dict[str, Any]:
    """Return the document. `base`: the path under which the API is mounted; '' = none."""
    structs = (kind for one in OPERATIONS for kind in (*one.inputs.values(), *one.replies.values()) if kind is not None)
    kinds = dict.fromkeys([ProblemDetails, *structs])
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
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token that may read, or write too; or work.",
                }
            },
        },
    }


def _operation(operation: Operation, known: dict[type, Any], components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.id,
        "summary": (operation.handler.__doc__ or "").partition("\n")[0].rstrip("."),
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
            "description": f"{PATH_PARAMETERS[name].capitalize()}.",
            "schema": {"type": "string", "pattern": NAME_IN_PATH, "maxLength": LONGEST.get(name, 200)},
        }
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    if (query := operation.inputs.get("query")) is not None:
        properties = components[query.__name__]["properties"]
        # Several values of one name are separated by commas.
        found += [
            {"name": name, "in": "query", "schema": schema, "explode": False} for name, schema in properties.items()
        ]
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
