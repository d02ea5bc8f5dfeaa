"""Values that do not leave Redis for a reader: which they are, and what a reader gets instead. Pure.

A payload names its redacted arguments in `redact`, so that a reader needs no code of the app: by name, or by position
from "1". Workers also declare those of their tasks in Redis, for payloads that do not name them. Only handlers get the
values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import msgspec

REDACTED: Final = "[redacted]"

Redactions = Mapping[str, Sequence[str]]
"""The redacted arguments that workers have declared, by task."""

NONE_DECLARED: Final[Redactions] = {}


def write_names(names: Sequence[str]) -> str:
    """Return the redacted arguments of a task as workers declare them."""
    return msgspec.json.encode(names).decode()


def read_names(declared: bytes) -> tuple[str, ...]:
    """Read the redacted arguments of a task; none if another program has written something else."""
    try:
        return msgspec.json.decode(declared, type=tuple[str, ...])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return ()


def names_of(redact: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    """Return the names of redacted parameters as a payload has them. `order`: the parameters by position."""
    return (*redact, *(str(at) for at, name in enumerate(order, 1) if name in redact))


def redacted(payload: Any, declared: Redactions = NONE_DECLARED) -> Any:
    """Return a payload as readers get it, whatever it holds. It is a value of JSON; or a text, if it cannot be read."""
    if isinstance(payload, str):
        # It is not known which part is an argument.
        return REDACTED if '"redact"' in payload or any(task in payload for task in declared) else payload
    if not isinstance(payload, dict):
        return payload
    fields = cast("dict[str, Any]", payload)
    task, given, args, kwargs = (fields.get(name) for name in ("task", "redact", "args", "kwargs"))
    of_task = declared.get(task, ()) if isinstance(task, str) else ()
    if not given and of_task:
        given = []
    elif not given:
        return fields
    names = [*cast("list[Any]", given), *of_task] if isinstance(given, list) else []
    hidden = {name for name in names if isinstance(name, str)}
    if len(hidden) < len(names) or not isinstance(given, list):
        return {**fields, "args": REDACTED, "kwargs": REDACTED}  # a job that no worker runs, and may mean any argument
    found = dict(fields)
    if isinstance(args, list):
        values = cast("list[Any]", args)
        found["args"] = [REDACTED if str(at) in hidden else value for at, value in enumerate(values, 1)]
    if isinstance(kwargs, dict):
        named = cast("dict[str, Any]", kwargs)
        found["kwargs"] = {name: REDACTED if name in hidden else value for name, value in named.items()}
    return found


def redacted_member(job: str, declared: Redactions = NONE_DECLARED) -> str:
    """Return an id as readers get it: an inline job, which is its own id, without its redacted values."""
    if not is_member(job) or ("redact" not in job and "\\u" not in job and not declared):
        return job
    try:
        payload = msgspec.json.decode(job)
        shown = redacted(payload, declared)
        return job if shown is payload else msgspec.json.encode(shown).decode()
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return redacted(job, declared)


def is_member(job: str) -> bool:
    """Return whether an id is an inline job."""
    return job.startswith("{")
