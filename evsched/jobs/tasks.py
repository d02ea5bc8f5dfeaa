"""A task: the registered function that does the jobs of one name, with its options and signature."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypedDict, Unpack

import msgspec
from msgspec import UNSET, Struct

from evsched.errors import ConfigError, UnknownTask
from evsched.jobs.job import Payload
from evsched.jobs.retry import Retry
from evsched.jobs.signature import Signature, read_signature

DEFAULT_TIMEOUT: Final = 1800.0
"""Seconds: long enough for most jobs, and a stuck one does not hold its slot forever."""

DEFAULT_RETENTION: Final = 300.0
"""Seconds: long enough to read a result; at 1,000 jobs/s results take about 100 MB."""

On = Literal["loop", "thread", "process"]


class Task(Struct, frozen=True):
    """A registered function and its limits. Make one with `define`."""

    name: str
    handler: Callable[..., Any]
    on: On
    """Where the handler runs: an async one in the worker's event loop, a plain one in a thread or in a process."""
    retry: Retry
    timeout: float | None
    retention: float
    signature: Signature

    @property
    def module(self) -> str:
        """The module that defines the handler."""
        return getattr(self.handler, "__module__", None) or ""

    @property
    def returns(self) -> Any:
        """The type of the result; None = any."""
        return self.signature.returns

    def bind(self, payload: Payload) -> tuple[list[Any], dict[str, Any]]:
        """Convert a payload's arguments to the handler's annotations.

        Raises:
            msgspec.ValidationError: they do not fit; the message has the path of the wrong value.
        """
        return self.signature.bind(payload.args, payload.kwargs)

    def policy(self, payload: Payload) -> Retry:
        """Return the retry policy of a job: the task's, with the values that the payload overrides.

        Raises:
            ConfigError: the payload's values are not valid.
        """
        own = payload.retry
        if own is None:
            return self.retry
        named = {name: getattr(own, name) for name in own.__struct_fields__}
        return msgspec.structs.replace(
            self.retry, **{name: value for name, value in named.items() if value is not UNSET}
        )


class TaskOptions(TypedDict, total=False):
    """What `App.task` takes. What is left out has its default."""

    name: str | None
    """Else the function's name."""
    retry: Retry | None
    timeout: float | None
    """Seconds that a run may take, default half an hour; None = no limit."""
    retention: float
    """Seconds for which the result is kept, default five minutes; 0 = not at all."""
    on: Literal["thread", "process"] | None
    """Where a plain function runs, default a thread."""


def define(handler: Callable[..., Any], **options: Unpack[TaskOptions]) -> Task:
    """Make a task of a function, async or plain.

    Raises:
        ConfigError: an option is not valid, or the annotations cannot be read.
    """
    name = options.get("name") or getattr(handler, "__name__", "")
    if not name or not name.isprintable() or len(name) > 200:
        raise ConfigError(f"task {name!r}: give it a name of 1 to 200 printable characters with name=")
    timeout, retention = options.get("timeout", DEFAULT_TIMEOUT), options.get("retention", DEFAULT_RETENTION)
    if timeout is not None and not 0 < timeout < float("inf"):
        raise ConfigError(f"task {name}: timeout is {timeout!r}, must be over 0 s, or None for no limit")
    if not 0 <= retention < float("inf"):
        raise ConfigError(f"task {name}: retention is {retention!r}, must be 0 s or more")
    return Task(
        name=name,
        handler=handler,
        on=_where(name, handler, options.get("on")),
        retry=options.get("retry") or Retry(),
        timeout=timeout,
        retention=retention,
        signature=read_signature(name, handler),
    )


def _where(name: str, handler: Callable[..., Any], on: str | None) -> On:
    """Return where the handler runs.

    Raises:
        ConfigError: it cannot run there.
    """
    if inspect.iscoroutinefunction(handler):
        if on is None:
            return "loop"
        raise ConfigError(f"task {name}: on={on!r} is for plain functions; an async function runs in the event loop")
    if on is None or on == "thread":
        return "thread"
    if on != "process":
        raise ConfigError(f"task {name}: on={on!r} is not valid: give 'thread' or 'process'")
    if "<" in getattr(handler, "__qualname__", "<"):
        raise ConfigError(
            f"task {name}: on='process' needs a module-level function, which a process can import by name"
        )
    return "process"


class Tasks(dict[str, Task]):
    """The tasks of an app, by name. Only these are ever run: nothing that a payload names is imported."""

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
            UnknownTask: there is no such task; the message suggests the nearest.
        """
        task = self.get(name)
        if task is None:
            near = difflib.get_close_matches(name[:200], self, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"this worker has {_list(sorted(self)) or 'none'}"
            raise UnknownTask(f"unknown task {name[:200]!r}: {hint}. Register it with @app.task, or correct the name")
        return task


def _list(names: Iterable[str], most: int = 10) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
