"""Values that do not leave Redis for a reader: which they are, and what a reader gets instead. Pure.

A payload names its redacted arguments in `redact`, so that a reader needs no code of the app: by name, or by position
from "1". Workers also declare those of their tasks in Redis, for payloads that do not name them. Only handlers get the
values.

A client that knows the task names each argument as it is passed. Others may not, and then a reader hides all that may
be meant: a name that is not among the named arguments may be that of any one that is passed by position, and a position
beyond these may be that of any named one. `lua/_match.lua` has the same rule.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

REDACTED: Final = "[redacted]"

Redactions = Mapping[str, Sequence[str]]
"""The redacted arguments that workers have declared, by task: the names and positions of parameters, or `EVERY`."""

NONE_DECLARED: Final[Redactions] = {}

EVERY: Final = "0"
"""A declaration of all arguments: of a task that hides `*args` or `**kwargs`."""

_POSITION: Final = re.compile("[1-9][0-9]{0,8}")

_DIGITS: Final = re.compile("[0-9]+")


def write_names(names: Sequence[str]) -> str:
    """Return the redacted arguments of a task as workers declare them."""
    return msgspec.json.encode(names).decode()


def read_names(declared: bytes) -> tuple[str, ...]:
    """Read the redacted arguments of a task; none if another program has written something else."""
    try:
        return msgspec.json.decode(declared, type=tuple[str, ...])
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return ()


def position_of(name: str) -> int | None:
    """Return the position, from 1, that an entry of `redact` is; None if it is a name."""
    return int(name) if _POSITION.fullmatch(name) else None


def is_entry(name: str) -> bool:
    """Return whether a text may be an entry of `redact`: "0" and "02" are neither names nor positions."""
    return bool(name) and (_POSITION.fullmatch(name) is not None or _DIGITS.fullmatch(name) is None)


def names_of(redact: Sequence[str], order: Sequence[str]) -> tuple[str, ...]:
    """Return the names of redacted parameters as a payload has them. `order`: the parameters by position."""
    return (*redact, *(str(at) for at, name in enumerate(order, 1) if name in redact))


def hidden_arguments(
    redact: Collection[str], declared: Collection[str], many: int, named: Collection[str]
) -> tuple[set[int], set[str]]:
    """Return the arguments that `redact` may mean, and the declared ones: positions from 1, and names.

    `many`: arguments that are passed by position. `named`: the names of the others.
    """
    positions, names = set[int](), set[str]()
    for entry in (*redact, *declared):
        at = position_of(entry)
        if at is not None and at <= many:
            positions.add(at)
        if entry in named:
            names.add(entry)
        if not is_entry(entry):
            positions.update(range(1, many + 1))
            names.update(named)
    for entry in redact:
        at = position_of(entry)
        if at is None and entry not in named:
            positions.update(range(1, many + 1))
        if at is not None and at > many:
            names.update(named)
    return positions, names


def redacted(payload: Any, declared: Redactions = NONE_DECLARED) -> Any:
    """Return a payload as readers get it, whatever it holds. It is a value of JSON; or a text, if it cannot be read."""
    if isinstance(payload, str):
        # It is not known which part is an argument.
        return REDACTED if '"redact"' in payload or any(task in payload for task in declared) else payload
    if not isinstance(payload, dict):
        return payload
    fields = cast("dict[str, Any]", payload)
    task, given = fields.get("task"), fields.get("redact")
    of_task = declared.get(task, ()) if isinstance(task, str) else ()
    if not given and not of_task:
        return fields
    # Another client may write `{}` for `[]`, and the reverse.
    values, named = cast("list[Any]", fields.get("args") or []), cast("dict[str, Any]", fields.get("kwargs") or {})
    entries: list[Any] = cast("list[Any]", given or []) if isinstance(given or [], list) else [None]
    is_valid = type(values) is list and type(named) is dict and all(isinstance(name, str) for name in entries)
    if not is_valid:
        return {**fields, "args": REDACTED, "kwargs": REDACTED}  # a job that no worker runs, and may mean any argument
    positions, hidden = hidden_arguments(entries, of_task, len(values), named)
    found = dict(fields)
    if positions:
        found["args"] = [REDACTED if at in positions else value for at, value in enumerate(values, 1)]
    if hidden:
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
