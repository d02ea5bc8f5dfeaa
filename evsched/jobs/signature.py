"""What a handler takes and returns: the types of its parameters, and a payload's arguments converted to them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any, Final

import msgspec
from msgspec import Struct

from evsched.errors import ConfigError

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
    var_positional: bool
    """The handler has `*args`, of the type `rest`."""
    rest: Any
    var_named: bool
    """The handler has `**kwargs`, of the type `rest_named`."""
    rest_named: Any
    returns: Any

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Convert arguments to the handler's annotations.

        Raises:
            msgspec.ValidationError: they do not fit; the message has the path of the wrong value.
        """
        if len(args) > len(self.positional) and not self.var_positional:
            most = len(self.positional)
            takes = f"{most} argument{'' if most == 1 else 's'}"
            raise msgspec.ValidationError(f"{self.task} takes {takes}, got {len(args)} - at `$.args`")
        values: list[Any] = []
        for i, value in enumerate(args):
            wanted = self.positional[i] if i < len(self.positional) else self.rest
            values.append(value if wanted is None else _convert(value, wanted, f"$.args[{i}]"))
        taken = self.order[: len(args)]
        by_name = [name for name in kwargs if name in self.named] if kwargs else ()
        missing = self.required.difference(taken, by_name) if self.required else None
        if missing:
            names = ", ".join(map(repr, sorted(missing)))
            raise msgspec.ValidationError(f"{self.task} needs {names} - at `$.args`")
        if not kwargs:
            return values, {}
        return values, {name: self._bind_named(name, value, taken) for name, value in kwargs.items()}

    def by_position(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the same call with as many arguments as possible passed by position, none of them converted."""
        values, named = list(args), dict(kwargs)
        for name in self.order[len(args) :]:
            if name not in named:
                break
            values.append(named.pop(name))
        return values, named

    def _bind_named(self, name: str, value: Any, taken: tuple[str, ...]) -> Any:
        if name in self.named and name in taken:
            raise msgspec.ValidationError(f"{self.task} got {name!r} twice - at `$.kwargs.{name}`")
        if name not in self.named and not self.var_named:
            near = difflib.get_close_matches(name, self.named, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ""
            raise msgspec.ValidationError(f"{self.task} takes no {name!r}{hint} - at `$.kwargs.{name}`")
        wanted = self.named.get(name, self.rest_named)
        return value if wanted is None else _convert(value, wanted, f"$.kwargs.{name}")


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
        var_positional=bool(rest),
        rest=types[rest[0]] if rest else None,
        var_named=bool(rest_named),
        rest_named=types[rest_named[0]] if rest_named else None,
        returns=_type(signature.return_annotation),
    )


def _type(annotation: Any) -> Any:
    return None if annotation in _ANY else annotation


def _convert(value: Any, wanted: Any, path: str) -> Any:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        # The path in msgspec's message begins at the value: `$...`.
        message, at, inner = str(error).partition(" - at `$")
        raise msgspec.ValidationError(f"{message} - at `{path}{inner if at else '`'}") from None
