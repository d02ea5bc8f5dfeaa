"""The arguments of one call of a task, and the check that the task can be called with them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, ParamSpec

import msgspec
from msgspec import Struct

from evsched.errors import BadArguments
from evsched.jobs.job import decode_payload
from evsched.jobs.signature import Signature
from evsched.jobs.steering import GiveUp
from evsched.jobs.tasks import Task

P = ParamSpec("P")


class Arguments(Struct, Generic[P], frozen=True):
    """The arguments of one call. `task.arguments(...)` makes them, and type checkers check that they fit."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


_UNCHANGED: Final = frozenset((str, bool))
"""Types that JSON gives back as they were."""

_WHOLE: Final = range(-(2**63), 2**63)
"""Integers that JSON gives back as they were, whatever reads them."""

_PATH: Final = re.compile(r" - at `\$\.(args|kwargs)(?:\[(\d+)\]|\.([^.\[`]+))?(.*?)`$", re.DOTALL)


def check(task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], payload: bytes) -> None:
    """Refuse a call whose arguments do not fit the task, as the worker will find them in the payload.

    Most calls pass plain values of exactly the annotated types, which a short test accepts: 0.6 us without arguments,
    1.1 with two. All others are decoded from the JSON and converted, as the worker does: 4 us for three arguments, and
    more for large ones. To enqueue a job costs about 10 us even in a batch, so all are checked.

    Raises:
        BadArguments: which argument is wrong, and what is expected.
    """
    if task.check is None and _surely_fit(task.signature, args, kwargs):
        return
    try:
        values, named = task.bind(decode_payload(payload))
        _refuse_bytes(task, args, kwargs, values, named)
        if task.check is not None:
            task.check(*values, **named)
    except msgspec.ValidationError as error:
        raise BadArguments(f"task {task.name}: {_explain(task.signature, str(error))}") from None
    except GiveUp as error:
        raise BadArguments(f"task {task.name}: {error}") from None


def _refuse_bytes(
    task: Task, args: Sequence[Any], kwargs: Mapping[str, Any], values: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Refuse bytes for a parameter whose type is text: it would get their base64, which is what JSON has.

    Raises:
        BadArguments
    """
    of = task.signature
    given = [
        *((of.order[at], args[at], values[at], of.positional[at]) for at in range(min(len(args), len(of.order)))),
        *((name, value, named[name], of.named.get(name)) for name, value in kwargs.items()),
    ]
    for name, before, after, wanted in given:
        if wanted is not None and isinstance(before, bytes | bytearray | memoryview) and isinstance(after, str):
            raise BadArguments(f"task {task.name}: argument {name!r} is bytes, and the task takes text: decode it")


def _surely_fit(of: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether the arguments certainly fit; False means that it takes a closer look."""
    count = len(args)
    passed = (*of.order[:count], *kwargs) if kwargs else of.order[:count]
    if count > len(of.positional) or not of.required.issubset(passed):
        return False
    if not all(map(_surely_fits, args, of.positional)):
        return False
    for name, value in kwargs.items():
        if name not in of.named or name in of.order[:count] or not _surely_fits(value, of.named[name]):
            return False
    return True


def _surely_fits(value: Any, wanted: Any) -> bool:
    if wanted is None:
        return True
    if type(value) is not wanted:
        return False
    # JSON has no infinity and no NaN.
    return wanted in _UNCHANGED or (wanted is int and value in _WHOLE) or (wanted is float and math.isfinite(value))


def _explain(of: Signature, wrong: str) -> str:
    """Say what is wrong with a call by the names of arguments; a worker's message has paths in the payload."""
    found = _PATH.search(wrong)
    if found is None:
        return wrong
    message = wrong[: found.start()]
    _, position, name, inner = found.groups()
    if position is None and name is None:
        return message
    if position is not None:
        at = int(position)
        name = repr(of.order[at]) if at < len(of.order) else str(at + 1)
    else:
        name = repr(name)
    if not message.startswith(("Expected", "Invalid", "Object")):
        return message
    return f"argument {name}{f' at {inner}' if inner else ''}: {message[0].lower()}{message[1:]}"
