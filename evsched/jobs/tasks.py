"""A task: the registered function that does the jobs of one name, its limits, and the types of its arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct

from evsched.errors import ConfigError, UnknownTask
from evsched.jobs.job import Payload
from evsched.jobs.retry import Retry

DEFAULT_TIMEOUT: Final = 1800.0
"""Seconds: long enough for what people call a job, so that a stuck one does not hold its slot for good."""

DEFAULT_RETENTION: Final = 300.0
"""Seconds: long enough to read a result; at 1,000 jobs/s it is about 100 MB."""

_ANY: Final = (inspect.Parameter.empty, Any, object)


On = Literal["loop", "thread", "process"]


class Task(Struct, frozen=True):
    """A registered function and its limits. Make one with `define`."""

    name: str
    handler: Callable[..., Any]
    on: On
    """Where the handler runs: an async one in the worker's event loop, a plain one in a thread or a process."""
    retry: Retry
    timeout: float | None
    retention: float
    positional: tuple[Any, ...]
    """Types of the arguments that may be passed by position; None = any."""
    named: dict[str, Any]
    """Types of those that may be passed by name."""
    required: frozenset[str]
    order: tuple[str, ...]
    """Names of the positional ones."""
    star: bool
    """The handler takes any number of positional arguments, of the type `rest`."""
    rest: Any
    star_named: bool
    rest_named: Any
    returns: Any
    """Type of the result; None = any."""

    @property
    def module(self) -> str:
        """The module in which the handler stands."""
        return getattr(self.handler, "__module__", None) or ""

    def bind(self, payload: Payload) -> tuple[list[Any], dict[str, Any]]:
        """Convert a payload's arguments to the handler's annotations.

        Raises:
            msgspec.ValidationError: they do not fit; the message has the path of the fault.
        """
        args, kwargs = payload.args, payload.kwargs
        if len(args) > len(self.positional) and not self.star:
            raise msgspec.ValidationError(
                f"{self.name} takes {len(self.positional)} arguments, got {len(args)} - at `$.args`"
            )
        values: list[Any] = []
        for i, value in enumerate(args):
            wanted = self.positional[i] if i < len(self.positional) else self.rest
            values.append(value if wanted is None else _convert(value, wanted, f"$.args[{i}]"))
        by_name = [name for name in kwargs if name in self.named] if kwargs else ()
        missing = self.required.difference(self.order[: len(args)], by_name) if self.required else None
        if missing:
            raise msgspec.ValidationError(f"{self.name} needs {_list(sorted(missing))} - at `$.args`")
        if not kwargs:
            return values, kwargs
        named: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name in self.named and name in self.order[: len(args)]:
                raise msgspec.ValidationError(f"{self.name} got {name!r} twice - at `$.kwargs.{name}`")
            if name not in self.named and not self.star_named:
                near = difflib.get_close_matches(name, self.named, n=1)
                hint = f", did you mean {near[0]!r}?" if near else ""
                raise msgspec.ValidationError(f"{self.name} takes no {name!r}{hint} - at `$.kwargs.{name}`")
            wanted = self.named.get(name, self.rest_named)
            named[name] = value if wanted is None else _convert(value, wanted, f"$.kwargs.{name}")
        return values, named

    def policy(self, payload: Payload) -> Retry:
        """Return the retry policy of a job: the task's, with what the payload names in its place.

        Raises:
            ConfigError: the payload's values make no policy.
        """
        own = payload.retry
        if own is None:
            return self.retry
        named = {name: getattr(own, name) for name in own.__struct_fields__}
        return msgspec.structs.replace(
            self.retry, **{name: value for name, value in named.items() if value is not UNSET}
        )


def define(
    handler: Callable[..., Any],
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: float | None = DEFAULT_TIMEOUT,
    retention: float = DEFAULT_RETENTION,
    on: Literal["thread", "process"] | None = None,
) -> Task:
    """Make a task of a function, async or plain. `timeout` None = no limit; seconds.

    `on`: where a plain function runs, in a thread or in a process.

    Raises:
        ConfigError: the limits, the name or the annotations make no sense.
    """
    name = name or getattr(handler, "__name__", "")
    if not name or not name.isprintable() or len(name) > 200:
        raise ConfigError(f"task {name!r}: give it a name of 1 to 200 printable characters with name=")
    if timeout is not None and not 0 < timeout < float("inf"):
        raise ConfigError(f"task {name}: timeout is {timeout!r}, must be over 0 s, or None for no limit")
    if not 0 <= retention < float("inf"):
        raise ConfigError(f"task {name}: retention is {retention!r}, must be 0 s or more")
    awaits = inspect.iscoroutinefunction(handler)
    if on not in (None, "thread", "process") or (on and awaits):
        raise ConfigError(f"task {name}: on={on!r} is for plain functions, and 'thread' or 'process'")
    if on == "process" and "<" in getattr(handler, "__qualname__", "<"):
        raise ConfigError(
            f"task {name}: on='process' needs a function of a module, that a process can find by its name"
        )
    try:
        signature = inspect.signature(handler, eval_str=True)
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"task {name}: its annotations cannot be read at run time: {error}") from None

    kinds = inspect.Parameter
    order: list[str] = []
    named: dict[str, Any] = {}
    required: set[str] = set()
    star, star_named, rest, rest_named = False, False, None, None
    positional: list[Any] = []
    for parameter in signature.parameters.values():
        wanted = None if parameter.annotation in _ANY else parameter.annotation
        if parameter.kind is kinds.VAR_POSITIONAL:
            star, rest = True, wanted
            continue
        if parameter.kind is kinds.VAR_KEYWORD:
            star_named, rest_named = True, wanted
            continue
        if parameter.kind is not kinds.KEYWORD_ONLY:
            order.append(parameter.name)
            positional.append(wanted)
        if parameter.kind is not kinds.POSITIONAL_ONLY:
            named[parameter.name] = wanted
        if parameter.default is kinds.empty:
            required.add(parameter.name)
    return Task(
        name=name,
        handler=handler,
        on="loop" if awaits else on or "thread",
        retry=retry or Retry(),
        timeout=timeout,
        retention=retention,
        positional=tuple(positional),
        named=named,
        required=frozenset(required),
        order=tuple(order),
        star=star,
        rest=rest,
        star_named=star_named,
        rest_named=rest_named,
        returns=None if signature.return_annotation in (*_ANY, None) else signature.return_annotation,
    )


class Tasks(dict[str, Task]):
    """The tasks of an app, by name. Only what stands here is ever run: nothing that a payload names is imported."""

    def add(self, task: Task) -> None:
        """Register a task.

        Raises:
            ConfigError: one of that name is registered already.
        """
        if task.name in self:
            raise ConfigError(f"task {task.name!r} is registered twice: give one of them another name=")
        self[task.name] = task

    def find(self, name: str) -> Task:
        """Return the task of that name.

        Raises:
            UnknownTask: there is none; the message names the nearest.
        """
        task = self.get(name)
        if task is None:
            near = difflib.get_close_matches(name[:200], self, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"this worker has {_list(sorted(self)) or 'none'}"
            raise UnknownTask(f"unknown task {name[:200]!r}: {hint}. Register it with @app.task, or mend the name")
        return task


def _list(names: Iterable[str], most: int = 10) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more


def _convert(value: Any, wanted: Any, path: str) -> Any:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        # msgspec's own path begins at the value: `$...`.
        message, at, inner = str(error).partition(" - at `$")
        raise msgspec.ValidationError(f"{message} - at `{path}{inner if at else '`'}") from None
