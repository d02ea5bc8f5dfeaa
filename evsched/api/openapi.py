"""The OpenAPI 3.1 document, made from the table of operations and the structs of requests and replies. Pure."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from evsched import __version__
from evsched.api.operations import OPERATIONS, Operation
from evsched.api.problem import MEDIA_TYPE, ProblemDetails
from evsched.api.requests import NAME_IN_PATH
from evsched.client.wire_schema import DIALECT

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
