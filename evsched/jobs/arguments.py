"""The parameters of a task's handler, and the arguments of one call: conversion, and the check that both fit."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter
from typing import Any, Final, Generic, ParamSpec

import msgspec
from msgspec import Struct

from evsched.display import nearest
from evsched.errors import BadArguments, ConfigError
from evsched.jobs.job import decode_payload
from evsched.jobs.redaction import REDACTED, is_entry, position_of
from evsched.jobs.steering import GiveUp

_ANY: Final = (Parameter.empty, Any, object)


class Signature(Struct, frozen=True):
    """The parameters of a task's handler. Make one with `read_signature`. A type None means any."""

    task: str
    order: tuple[str, ...]
    """Names of the parameters that may be passed by position."""
    positional: tuple[Any, ...]
    """Their types."""
    named: dict[str, Any]
    """Types of the parameters that may be passed by name."""
    required: frozenset[str]
    var_positional: str
    """The name of the handler's `*args`, of the type `rest`; "" = it has none."""
    rest: Any
    var_named: str
    """The name of the handler's `**kwargs`, of the type `rest_named`; "" = it has none."""
    rest_named: Any
    returns: Any

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], redact: Collection[str] = ()
    ) -> tuple[list[Any], dict[str, Any]]:
        """Convert arguments to the handler's annotations. No message has a value that `redact` may mean.

        Raises:
            msgspec.ValidationError: they do not fit; the message has the path of the wrong value.
        """
        if len(args) > len(self.positional) and not self.var_positional:
            most = len(self.positional)
            takes = f"{most} argument{'' if most == 1 else 's'}"
            raise msgspec.ValidationError(f"{self.task} takes {takes}, got {len(args)} - at `$.args`")
        values: list[Any] = []
        secret = self.redacted(redact, len(args), kwargs) if redact else ()
        for i, value in enumerate(args):
            wanted = self.positional[i] if i < len(self.positional) else self.rest
            if wanted is None or type(value) is wanted:  # of most arguments, and a conversion costs much more
                values.append(value)
            else:
                values.append(_convert(value, wanted, f"$.args[{i}]", hidden=str(i + 1) in secret))
        taken = self.order[: len(args)]
        by_name = [name for name in kwargs if name in self.named] if kwargs else ()
        missing = self.required.difference(taken, by_name) if self.required else None
        if missing:
            names = ", ".join(map(repr, sorted(missing)))
            raise msgspec.ValidationError(f"{self.task} needs {names} - at `$.args`")
        if not kwargs:
            return values, {}
        return values, {
            name: self._bind_named(name, value, taken, hidden=name in secret) for name, value in kwargs.items()
        }

    def check_redact(self, redact: Collection[str]) -> None:
        """Check that each entry is the name or the position of a parameter.

        Raises:
            ConfigError: one is not.
        """
        known = ", ".join(dict.fromkeys((*self.order, *self.named))) or "none"
        for entry in redact:
            if self._is_parameter(entry):
                continue
            if (at := position_of(entry)) is not None:
                most = len(self.order)
                raise ConfigError(f"task {self.task}: redact has position {at}, and the task takes {most}: {known}")
            near = nearest(entry, {*self.order, *self.named})
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"task {self.task}: redact names {entry!r}, which is not one of its parameters: {known}{hint}"
            )

    def redacted(self, redact: Collection[str], many: int, named: Collection[str]) -> tuple[str, ...]:
        """Return which arguments of a call are redacted, each as it is passed: by position from "1", or by name.

        `redact`: names and positions of parameters; the name of `*args` or `**kwargs` stands for all of it. If one is
        not a parameter, it may mean any; so may a name for `**kwargs` that is not passed, since it may be misspelt.
        `many`: arguments that are passed by position. `named`: names of the others.
        """
        own = {*self.order, *self.named, self.var_positional, self.var_named, *named}
        if any(position_of(entry) is None and entry not in own for entry in redact):
            return (*(str(at) for at in range(1, many + 1)), *named)
        hidden = self.hidden_parameters(redact)
        by_position = (
            (str(at), self.order[at - 1] if at <= len(self.order) else self.var_positional) for at in range(1, many + 1)
        )
        by_name = ((name, name if name in self.named else self.var_named) for name in named)
        return tuple(
            passed for passed, parameter in (*by_position, *by_name) if passed in hidden or parameter in hidden
        )

    def hidden_parameters(self, redact: Collection[str]) -> frozenset[str]:
        """Return the names of redacted parameters, and what else `redact` has; if that names no parameter, all."""
        if all(map(self._is_parameter, redact)):
            return frozenset((*redact, *(name for at, name in enumerate(self.order, 1) if str(at) in redact)))
        return frozenset((*redact, *self.order, *self.named, self.var_positional, self.var_named))

    def _is_parameter(self, entry: str) -> bool:
        at = position_of(entry)
        if at is not None and at > len(self.order):
            return bool(self.var_positional)
        if at is not None or entry in self.order or entry in self.named:
            return True
        return is_entry(entry) and bool(self.var_named or entry == self.var_positional)

    def by_position(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the same call with as many arguments as possible passed by position, none of them converted."""
        values, named = list(args), dict(kwargs)
        for name in self.order[len(args) :]:
            if name not in named:
                break
            values.append(named.pop(name))
        return values, named

    def _bind_named(self, name: str, value: Any, taken: tuple[str, ...], *, hidden: bool) -> Any:
        if name in self.named and name in taken:
            raise msgspec.ValidationError(f"{self.task} got {name!r} twice - at `$.kwargs.{name}`")
        if name not in self.named and not self.var_named:
            near = nearest(name, self.named)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise msgspec.ValidationError(f"{self.task} takes no {name!r}{hint} - at `$.kwargs.{name}`")
        wanted = self.named.get(name, self.rest_named)
        if wanted is None or type(value) is wanted:
            return value
        return _convert(value, wanted, f"$.kwargs.{name}", hidden=hidden)


def read_signature(task: str, handler: Callable[..., Any]) -> Signature:
    """Read the parameters of a handler.

    Raises:
        ConfigError: its annotations cannot be evaluated.
    """
    try:
        signature = inspect.signature(handler, eval_str=True)
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"task {task}: its annotations cannot be read at run time: {error}") from None
    types = {name: _type(parameter.annotation) for name, parameter in signature.parameters.items()}

    def of(*kinds: Any) -> list[str]:
        return [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]

    positional = of(Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    named = of(Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    rest, rest_named = of(Parameter.VAR_POSITIONAL), of(Parameter.VAR_KEYWORD)
    return Signature(
        task=task,
        order=tuple(positional),
        positional=tuple(types[name] for name in positional),
        named={name: types[name] for name in named},
        required=frozenset(
            name for name in (*positional, *named) if signature.parameters[name].default is Parameter.empty
        ),
        var_positional=rest[0] if rest else "",
        rest=types[rest[0]] if rest else None,
        var_named=rest_named[0] if rest_named else "",
        rest_named=types[rest_named[0]] if rest_named else None,
        returns=_type(signature.return_annotation),
    )


def _type(annotation: Any) -> Any:
    return None if annotation in _ANY else annotation


LATER: Final[Any] = object()
"""The place of an argument that is not known yet: it fits every annotation."""


def _convert(value: Any, wanted: Any, path: str, *, hidden: bool) -> Any:
    if value is LATER:
        return value
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        # The path in msgspec's message begins at the value: `$...`.
        message, at, inner = str(error).partition(" - at `$")
    # A class of the user may raise anything while a value of it is made.
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001
        message, at, inner = f"its class raised {type(error).__name__}: {error}", "", ""
    if hidden:  # the message may have the value, or a part of it, and must not be the context of the new error
        raise msgspec.ValidationError(f"Invalid value of a redacted argument - at `{path}`")
    raise msgspec.ValidationError(f"{message} - at `{path}{inner if at else '`'}")


P = ParamSpec("P")


class Arguments(Struct, Generic[P], frozen=True):
    """The arguments of one call. `task.arguments(...)` makes them, and type checkers check that they fit."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    redacted: tuple[str, ...] = ()
    """Those that `repr` hides, as they are passed: by position from "1", or by name."""

    def __repr__(self) -> str:
        args = (REDACTED if str(at) in self.redacted else repr(value) for at, value in enumerate(self.args, 1))
        kwargs = (f"{name}={REDACTED if name in self.redacted else repr(value)}" for name, value in self.kwargs.items())
        return f"Arguments({', '.join((*args, *kwargs))})"


_UNCHANGED: Final = frozenset((str, bool))
"""Types that JSON gives back as they were."""

_WHOLE: Final = range(-(2**63), 2**63)
"""Integers that JSON gives back as they were, whatever reads them."""

_PATH: Final = re.compile(r" - at `\$\.(args|kwargs)(?:\[(\d+)\]|\.([^.\[`]+))?(.*?)`$", re.DOTALL)


OwnCheck = Callable[[Sequence[Any], Mapping[str, Any], Collection[str]], None]
"""Gets the arguments of a new job, whose types are right, and the names of redacted parameters. Raises GiveUp if no
worker can use them."""


def check(
    signature: Signature,
    own_check: OwnCheck | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    payload: bytes,
    later: Collection[str | int] = (),
) -> None:
    """Refuse a call whose arguments do not fit the task, as the worker will find them in the payload.

    `own_check`: the task's `check`, which gets the arguments after their conversion. `later`: the arguments that are
    None now and known later, by position from 0 or by name. Then the task's own check is left to the worker.

    Most calls pass plain values of exactly the annotated types, which a short test accepts: 0.6 us without arguments,
    1.1 with two. All others are decoded from the JSON and converted, as the worker does: 4 us for three arguments, and
    more for large ones. To enqueue a job costs about 10 us even in a batch, so all are checked.

    Raises:
        BadArguments: which argument is wrong, and its expected type.
    """
    if own_check is None and not later and _surely_fit(signature, args, kwargs):
        return
    try:
        found = decode_payload(payload)
        known = [LATER if at in later else value for at, value in enumerate(found.args)]
        by_name = {name: LATER if name in later else value for name, value in found.kwargs.items()}
        values, named = signature.bind(known, by_name, found.redact)
        _refuse_bytes(signature, args, kwargs, values, named)
        if own_check is not None and not later:
            own_check(values, named, signature.hidden_parameters(found.redact))
    except msgspec.ValidationError as error:
        raise BadArguments(f"task {signature.task}: {_explain(signature, str(error))}") from None
    except GiveUp as error:
        raise BadArguments(f"task {signature.task}: {error}") from None


def _refuse_bytes(
    of: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], values: Sequence[Any], named: Mapping[str, Any]
) -> None:
    """Refuse bytes for a parameter whose type is text: it would get their base64, which is what JSON has.

    Raises:
        BadArguments
    """
    given = [
        *((of.order[at], args[at], values[at], of.positional[at]) for at in range(min(len(args), len(of.order)))),
        *((name, value, named[name], of.named.get(name)) for name, value in kwargs.items()),
    ]
    for name, before, after, wanted in given:
        if wanted is not None and isinstance(before, bytes | bytearray | memoryview) and isinstance(after, str):
            raise BadArguments(f"task {of.task}: argument {name!r} is bytes, and the task takes text: decode it")


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
    """Describe an invalid call by the names of arguments; a worker's message has paths in the payload."""
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
