"""The JSON Schema of the data that clients write to Redis: a payload, an inline job, a recurrence's record.

The structs here say more than the structs that read a payload: the range of a number, and the forms that PHP and Lua
write. A test holds both to the same fields and values. The record of a recurrence is made from `Declared`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from evsched.jobs.job import TAG, TAGS_MOST
from evsched.jobs.retry import ATTEMPTS_MOST
from evsched.keys import NAME
from evsched.recurrence.recurrence import Declared

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_EmptyArray = Annotated[list[Any], Meta(max_length=0, description="As PHP writes an empty object.")]
_EmptyObject = Annotated[dict[str, Any], Meta(max_length=0, description="As Lua writes an empty array.")]

Length = Annotated[float, Meta(ge=0, description="Seconds.")]
Identifier = Annotated[str, Meta(pattern=f"^{NAME.pattern}$", max_length=200)]
Priority = Annotated[int, Meta(ge=0, le=9, description="Higher runs first.")]
Group = Annotated[str, Meta(min_length=1, max_length=200, pattern="^[^}]*$", description="At most 200 bytes in UTF-8.")]
InlineGroup = Annotated[
    str, Meta(max_length=200, pattern="^[^}]*$", description="At most 200 bytes in UTF-8; '' = none.")
]
Tag = Annotated[str, Meta(pattern=f"^{TAG.pattern}$", max_length=64)]
Tags = Annotated[list[Tag], Meta(max_length=TAGS_MOST, description="Labels by which jobs are found.")]
Redact = Annotated[
    list[str], Meta(description="Arguments whose values readers do not get, by name, or by position from 1.")
]
Window = Annotated[str, Meta(min_length=1, description="When the job may start: a window, or the name of one.")]


class RetryPolicy(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """How often a job is tried, and how long it waits between two attempts. The task's own values fill the gaps."""

    attempts: Annotated[int, Meta(ge=1, le=ATTEMPTS_MOST)] | UnsetType = UNSET
    interval: Length | UnsetType = UNSET
    factor: Annotated[float, Meta(ge=1)] | UnsetType = UNSET
    max_interval: Length | UnsetType = UNSET
    jitter: Length | UnsetType = UNSET


class SealedArguments(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The arguments, compressed, encrypted, or in a store: docs/protocol.md says how to read and write them."""

    data: Annotated[str, Meta(extra_json_schema={"contentEncoding": "base64"})] = ""
    key: Annotated[str, Meta(description="The id of the key by which they are encrypted.")] = ""
    zip: Literal["", "zlib"] = ""
    of: Annotated[str, Meta(description="The id of the job, if they belong to no other.")] = ""
    ref: Annotated[str, Meta(description="Where the data is in the store of the app.")] = ""


class JobPayload(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The payload of a job's record, or of a recurrence's. There, `id`, `priority` and `group` are ignored."""

    task: Annotated[str, Meta(description="The name of the task.")]
    args: list[Any] | _EmptyObject = []
    kwargs: dict[str, Any] | _EmptyArray = {}
    timeout: Annotated[float, Meta(gt=0, description="Seconds that a run may take.")] | None = None
    retry: RetryPolicy | _EmptyArray | None = None
    retention: Annotated[float, Meta(ge=0, description="Seconds for which a finished job's record is kept.")] | None = (
        None
    )
    expires: Annotated[float, Meta(description="Unix seconds: the job is not started after this moment.")] | None = None
    reply: Annotated[bool, Meta(description="Push the outcome to the reply list.")] = False
    meta: dict[str, Any] | _EmptyArray = {}
    window: Window | None = None
    tags: Tags | _EmptyObject = []
    redact: Redact | _EmptyObject = []
    sealed: SealedArguments | None = None
    id: Any = None
    priority: Any = None
    group: Any = None


class InlineJob(JobPayload, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A job that is itself the member of the schedule. Without an `id`, its id is the SHA-1 of the member."""

    id: Identifier | UnsetType | None = UNSET
    priority: Priority | UnsetType | None = UNSET
    group: InlineGroup | UnsetType | None = UNSET


_REF: Final = "#/$defs/{name}"

_JSON_PAYLOAD: Final = {
    "contentMediaType": "application/json",
    "contentSchema": {"$ref": _REF.format(name="JobPayload")},
}

_NUMBER: Final = "(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?$"

_TEXTS: Final[dict[Any, Any]] = {
    int: Annotated[str, Meta(pattern="^[1-9][0-9]*$")],
    float: Annotated[str, Meta(pattern=f"^-?{_NUMBER}")],
    str: str,
    bytes: Annotated[str, Meta(extra_json_schema=_JSON_PAYLOAD)],
}
"""A field of a hash is text: the form of a field by the type that it is read as. All whole numbers but the priority are
counts, from 1."""

_LIMITS: Final[dict[str, Any]] = {
    "priority": Annotated[str, Meta(pattern="^[0-9]$")],
    "group": Group,
    "window": Window,
    "spread": Annotated[str, Meta(pattern=f"^{_NUMBER}")],
}
"""The form of fields whose type allows more than they do."""


def _as_text(name: str, kind: Any) -> Any:
    """Return the type of a field of a hash that is read as `kind`."""
    kinds = [one for one in get_args(kind) if one is not type(None)]
    kind = kinds[0] if kinds and get_origin(kind) is not Literal else kind
    return _LIMITS.get(name) or (kind if get_origin(kind) is Literal else _TEXTS[kind])


def _record() -> type[Struct]:
    """Return the struct of a recurrence's record: the fields of `Declared`, each as text."""
    fields = list[tuple[str, Any, Any]]()
    for field in msgspec.structs.fields(Declared):
        if field.name != "name":  # it is part of the key
            kind = _as_text(field.name, get_type_hints(Declared)[field.name])
            fields.append((field.name, kind, msgspec.NODEFAULT) if field.required else (field.name, kind, ""))
    return msgspec.defstruct("RecurrenceRecord", fields, kw_only=True, forbid_unknown_fields=True)


_RecurrenceRecord: Final = _record()
_RecurrenceRecord.__doc__ = (
    "The fields of a recurrence's record that a client writes, each as text. A field that is left out has its default."
)

Written = Literal["payload", "inline", "recurrence"]
"""The data that a client writes: the payload of a record, an inline job, the record of a recurrence."""

_KINDS: Final[dict[Written, type[Struct]]] = {
    "payload": JobPayload,
    "inline": InlineJob,
    "recurrence": _RecurrenceRecord,
}


def wire_schema(of: Written | None = None) -> dict[str, Any]:
    """Return the schema `of` one of them; None: a document that only defines all of them."""
    found, definitions = msgspec.json.schema_components(_KINDS.values(), ref_template=_REF)
    for schema in definitions.values():
        for field in schema.get("properties", {}).values():
            if field.get("default") == "":
                del field["default"]  # that of the record is the absence of the field
    roots = dict(zip(_KINDS, found, strict=True))
    return {"$schema": DIALECT, **({} if of is None else roots[of]), "$defs": definitions}
