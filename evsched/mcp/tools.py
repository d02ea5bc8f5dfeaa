"""The tools: their names, schemas and calls. Each but the doctor's is one operation of the HTTP interface."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Struct
from msgspec.structs import fields
from starlette.requests import Request

from evsched.api.api_request import ApiRequest, KnownShards, Waiters, WaitingFetches, check_served
from evsched.api.endpoints import OPERATIONS, Operation
from evsched.api.replies import Reply, invalid, problem_of
from evsched.api.requests import NAME_IN_PATH, PATH_PARAMETERS, path_fault
from evsched.client.client import Client
from evsched.config import DEFAULT_QUEUE, Config
from evsched.diagnostics.doctor import examine
from evsched.diagnostics.finding import Finding
from evsched.errors import EvschedError, JobMissing
from evsched.transport.senders import BatchingSender


class McpTool(Struct, frozen=True):
    """A tool that is an operation of the HTTP interface. `fixed`: fields of its body that the caller does not give."""

    operation: str
    about: str
    """Besides the summary of the handler; in its place if the body is fixed."""
    fixed: Mapping[str, Any] | None = None


TOOLS: Final[dict[str, McpTool]] = {
    "list_queues": McpTool("operator_list_queues", "It also says how many jobs are overdue, and whether it is paused."),
    "find_jobs": McpTool("job_list_jobs", "`place` dead has the jobs that failed for good; history has ended ones."),
    "show_job": McpTool("job_look", "With its payload, its runs, and the traceback of the last one that failed."),
    "explain": McpTool("job_explain", "Use it first when a job did not run, or is late."),
    "history": McpTool("operator_history", "With the outcome, the error and how long each ran."),
    "history_counts": McpTool("operator_history_counts", "Use it to see which task fails, and since when."),
    "list_recurrences": McpTool("job_list_recurrences", "With the last outcome of each, and why it makes no jobs."),
    "show_limits": McpTool("operator_limits", "Limits are a frequent reason why jobs wait."),
    "run_now": McpTool("job_edit", "Make a waiting job due now. For a dead job, use revive.", {"delay": 0}),
    "cancel": McpTool("job_cancel", "It cannot be undone."),
    "revive": McpTool("operator_revive", "Correct the cause first, else they fail again."),
    "pause_queue": McpTool("operator_pause", "Give the reason as `why`."),
    "resume_queue": McpTool("operator_resume", ""),
    "pause_recurrence": McpTool("job_pause", "Give the reason as `why`."),
    "resume_recurrence": McpTool("job_resume", ""),
}
"""The tools by their names. Those that write are there only with --write."""

_BY_ID: Final = {operation.id: operation for operation in OPERATIONS}


class Described(Struct, frozen=True):
    """A tool as a client of the server sees it: its description, and the JSON Schemas of its input and its result."""

    name: str
    about: str
    inputs: dict[str, Any]
    outputs: dict[str, Any] | None
    writes: bool


class DoctorReport(Struct, frozen=True):
    """The findings of the doctor. `seen`: how many records and entries it checked."""

    findings: list[Finding]
    queues: list[str]
    seen: int


_NAME_SCHEMA: Final = {"type": "string", "pattern": NAME_IN_PATH, "maxLength": 200}


def described(queues: Sequence[str] = (), *, write: bool) -> list[Described]:
    """Return the tools of a server. `queues`: as of `ToolCalls`. `write`: with the tools that change something."""
    found = [_described(name, tool, queues) for name, tool in TOOLS.items()]
    doctor = Described(
        "doctor",
        "Check Redis and all queues, or one, for problems, each with the command that fixes it. It repairs nothing, "
        "and writes only a test key that it deletes at once. On a large Redis it takes seconds.",
        {
            "type": "object",
            "properties": {"queue": {**_NAME_SCHEMA, "description": _about_queues(queues)}},
            "additionalProperties": False,
        },
        None,
        False,
    )
    return [*(one for one in found if write or not one.writes), doctor]


def _about_queues(queues: Sequence[str]) -> str:
    return f"The name of a queue{': ' if queues else ''}{' or '.join(queues)}."


def _default_queue(queues: Sequence[str]) -> str | None:
    """Return the queue of a call that names none; None if it must name one."""
    if len(queues) == 1:
        return queues[0]
    return DEFAULT_QUEUE if not queues or DEFAULT_QUEUE in queues else None


def _described(name: str, tool: McpTool, queues: Sequence[str]) -> Described:
    operation = _BY_ID[tool.operation]
    in_path = re.findall(r"{(\w+)}", operation.path)
    properties: dict[str, Any] = {
        one: {**_NAME_SCHEMA, "description": f"{PATH_PARAMETERS[one].capitalize()}."} for one in in_path
    }
    default = _default_queue(queues)
    if "queue" in properties:
        properties["queue"] |= {"description": _about_queues(queues)} | ({"default": default} if default else {})
    required, shared = [one for one in in_path if one != "queue" or default is None], dict[str, Any]()
    if tool.fixed is None:
        for kind in operation.inputs.values():
            (own,), more = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
            shared |= more
            body = shared.pop(own["$ref"].rpartition("/")[2])
            properties |= body["properties"]
            required += body.get("required", [])
    inputs: dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    inputs |= {"additionalProperties": False} | ({"$defs": shared} if shared else {})
    kinds = [kind for kind in operation.replies.values() if kind is not None]
    outputs = _object_schema(kinds[0]) if len(kinds) == len(operation.replies) else None
    summary = "" if tool.fixed else (operation.handler.__doc__ or "").partition("\n")[0]
    return Described(name, f"{summary} {tool.about}".strip(), inputs, outputs, operation.needs == "write")


def _object_schema(kind: type) -> dict[str, Any]:
    """Return the schema of a struct with an object at its root, as clients require it."""
    (own,), shared = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    root = shared.pop(own["$ref"].rpartition("/")[2])
    return {**root, "$defs": shared} if shared else root


class ToolCalls:
    """Calls the tools of one server.

    `config`: with its Redis, and the queues that may be seen; () = all. `who`: the operator that the audit trail has.
    """

    def __init__(self, config: Config, who: str, *, write: bool) -> None:
        self._config = config
        self._client = Client(config.url).as_operator(who, "mcp")
        self._shards = KnownShards(self._client)
        self._names = {one.name for one in described(config.queues, write=write)}

    async def close(self) -> None:
        await self._client.close()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool, and return its result as JSON values.

        Raises:
            Problem: it was not done; its text says why.
        """
        if name not in self._names:
            raise invalid(f"there is no tool {name!r}, or it needs evsched mcp --write")
        operation = _BY_ID[TOOLS[name].operation] if name in TOOLS else None
        try:
            await self._shards.refresh()
            if operation is None:
                return _as_json(await self._doctor(**_of_doctor(arguments)))
            return await self._call(operation, TOOLS[name], arguments)
        except EvschedError as error:
            raise problem_of(error, reads=operation is None or operation.needs == "read") from None

    async def _call(self, operation: Operation, tool: McpTool, arguments: Mapping[str, Any]) -> Any:
        in_path = re.findall(r"{(\w+)}", operation.path)
        path = {name: _path_part(name, arguments.get(name), self._config.queues) for name in in_path}
        rest = {name: value for name, value in arguments.items() if name not in path}
        if (queue := path.get("queue")) is not None:
            check_served(self._config, self._client.shards, queue)
        given = dict[str, Any]()
        for name, kind in operation.inputs.items():
            names = {one.name for one in fields(kind)} if tool.fixed is None else ()
            own = {field: rest.pop(field) for field in [*rest] if field in names}
            given[name] = _convert({**own, **(tool.fixed or {})} if name == "body" else own, kind)
        if rest:
            raise invalid(f"the tool has no argument {', '.join(map(repr, rest))}")
        http = Request({"type": "http", "method": operation.method, "path_params": path, "headers": []})
        none_waits = Waiters(0), WaitingFetches(0)  # there is no tool for it
        request = ApiRequest(self._client, self._shards, self._config, *none_waits, lambda event: None, http, "")
        try:
            reply = await operation.handler(request, **given)
        except JobMissing:
            self._shards.check()
            raise
        found: Any = cast("Reply[Any]", reply).body if isinstance(reply, Reply) else reply
        return {"done": True} if found is None else _as_json(found)

    async def _doctor(self, queue: str | None = None) -> DoctorReport:
        if queue is not None:
            check_served(self._config, self._client.shards, queue)
        queues: Sequence[str] = self._config.queues if queue is None else (queue,)
        sender = BatchingSender(self._config.url)
        try:
            found = await examine(self._config.url, sender, queues)
        finally:
            await sender.close()
        return DoctorReport(found.found, found.queues, found.seen)


def _as_json(found: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(found))


def _of_doctor(arguments: Mapping[str, Any]) -> dict[str, str]:
    if rest := arguments.keys() - {"queue"}:
        raise invalid(f"the tool has no argument {', '.join(map(repr, sorted(rest)))}")
    return {name: _path_part(name, value) for name, value in arguments.items() if value is not None}


def _path_part(name: str, value: Any, queues: Sequence[str] = ()) -> str:
    if name == "queue" and value is None:
        value = _default_queue(queues)
    if value is None:
        hint = f": {' or '.join(queues)}" if name == "queue" else ""
        raise invalid(f"the argument {name} is missing: give {PATH_PARAMETERS[name]}{hint}")
    if (fault := path_fault(name, value)) is not None:
        raise invalid(fault)
    return str(value)


def _convert(given: Mapping[str, Any], kind: Any) -> Any:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise invalid(f"the arguments do not fit: {error}") from None
