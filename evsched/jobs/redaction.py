"""Values that do not leave Redis for a reader: which they are, and what a reader gets instead. Pure.

A payload names its redacted arguments in `redact`, so that a reader needs no code of the app: by name, or by position
from "1". Only handlers get the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

REDACTED: Final = "[redacted]"


def names_of(redact: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    """Return the names of redacted parameters as a payload has them. `order`: the parameters by position."""
    return (*redact, *(str(at) for at, name in enumerate(order, 1) if name in redact))


def redacted(payload: Any) -> Any:
    """Return a payload as readers get it, whatever it holds. It is a value of JSON; or a text, if it cannot be read."""
    if isinstance(payload, str):
        return REDACTED if '"redact"' in payload else payload  # it is not known which part is an argument
    if not isinstance(payload, dict):
        return payload
    fields = cast("dict[str, Any]", payload)
    given, args, kwargs = fields.get("redact"), fields.get("args"), fields.get("kwargs")
    if not given:
        return fields
    names = cast("list[Any]", given) if isinstance(given, list) else []
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


def redacted_member(job: str) -> str:
    """Return an id as readers get it: an inline job, which is its own id, without its redacted values."""
    if not job.startswith("{") or ("redact" not in job and "\\u" not in job):
        return job
    try:
        payload = msgspec.json.decode(job)
        return msgspec.json.encode(redacted(payload)).decode() if payload.get("redact") else job
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return redacted(job)
