"""The arguments of a task as a value, and whether a task can be called with them: refused where the call is made."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, ParamSpec

import msgspec
from msgspec import Struct

from evsched.errors import BadArguments
from evsched.jobs.job import decode_payload
from evsched.jobs.tasks import Task

P = ParamSpec("P")


class Arguments(Struct, Generic[P], frozen=True):
    """What a task is to be called with: `task.arguments(...)` makes one, and type checkers see that it fits."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


_AS_THEY_ARE: Final = frozenset((str, bool))
"""JSON gives them back as they were."""

_WHOLE: Final = range(-(2**63), 2**63)
"""Integers of which the same is true, whoever reads them."""

_PATH: Final = re.compile(r" - at `\$\.(args|kwargs)(?:\[(\d+)\]|\.([^.\[`]+))?(.*?)`$", re.DOTALL)


def check(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], payload: bytes) -> None:
    """Refuse a call that could not run: its arguments do not fit, as the worker will find them in the payload.

    Most calls pass plain values of the very types that are wanted: those are seen at a glance, 0.6 us for none and 1.1
    for two. All others are taken from the JSON again and converted, as the worker does: 4 us for three of them, and
    more for what is large. A thousand in one round trip cost 10 us each, so all are checked.

    Raises:
        BadArguments: which of them, and what is expected.
    """
    if _surely_fit(task, args, kwargs):
        return
    try:
        task.bind(decode_payload(payload))
    except msgspec.ValidationError as error:
        raise BadArguments(f"task {task.name}: {_explain(task, str(error))}") from None


def _surely_fit(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether it takes no closer look: False says nothing."""
    count = len(args)
    if count > len(task.positional) or (task.required and not task.required.issubset((*task.order[:count], *kwargs))):
        return False
    for value, wanted in zip(args, task.positional, strict=False):
        if not _surely_fits(value, wanted):
            return False
    for name, value in kwargs.items():
        if name not in task.named or name in task.order[:count] or not _surely_fits(value, task.named[name]):
            return False
    return True


def _surely_fits(value: Any, wanted: Any) -> bool:
    if wanted is None:
        return True
    if type(value) is not wanted:
        return False
    # JSON knows no infinity, and its null is no number.
    return wanted in _AS_THEY_ARE or (wanted is int and value in _WHOLE) or (wanted is float and math.isfinite(value))


def _explain(task: Task, wrong: str) -> str:
    """Say what is wrong of a call: the worker's words name places of a payload, a caller's are arguments."""
    found = _PATH.search(wrong)
    if found is None:
        return wrong
    message = wrong[: found.start()]
    _, position, name, inner = found.groups()
    if position is None and name is None:
        return message
    if position is not None:
        at = int(position)
        name = repr(task.order[at]) if at < len(task.order) else str(at + 1)
    else:
        name = repr(name)
    if not message.startswith(("Expected", "Invalid", "Object")):
        return message
    return f"argument {name}{f' at {inner}' if inner else ''}: {message[0].lower()}{message[1:]}"
