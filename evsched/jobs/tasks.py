"""A task: the registered function that does the jobs of one name, with its options, signature and hooks.

A hook is a task that gets a job of its own when a job of another task has ended. The script that ends the job also
schedules that of the hook (`lua/_ends.lua`): both happen, or neither.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, Protocol, TypedDict, Unpack

import msgspec
from msgspec import Struct

from evsched.display import nearest
from evsched.errors import ConfigError, UnknownTask
from evsched.jobs import groups
from evsched.jobs import option_checks as check
from evsched.jobs.arguments import OwnCheck, Signature, read_signature
from evsched.jobs.job import Buried, Done, Outcome, Payload
from evsched.jobs.option_checks import Check
from evsched.jobs.redaction import names_of
from evsched.jobs.retry import Retry, override


class EndedJob(Struct, frozen=True):
    """The job that has ended, for the handler of a hook whose parameter has this annotation; others get a dict."""

    id: str
    task: str
    outcome: Literal["done", "dead", "expired"]
    attempts: int
    """How many attempts it used."""
    result: Any = None
    """The result of its handler, as JSON has it. None if that has more than 64 KiB: its record has it."""
    reason: str | None = None
    """Why it is dead or expired."""


class Hook(Struct, frozen=True):
    """A hook, as the scripts take it."""

    task: str
    """The task that gets a job."""
    of: str
    """The task whose job has ended."""


class Hooks(Struct, frozen=True):
    """The hooks of a task."""

    on_done: Hook | None = None
    on_dead: Hook | None = None

    def after(self, outcome: Outcome) -> Hook | None:
        """Return the hook for this outcome, if any."""
        if isinstance(outcome, Done):
            return self.on_done
        return self.on_dead if isinstance(outcome, Buried) else None


DEFAULT_TIMEOUT: Final = 1800.0
"""Seconds: long enough for most jobs, and a stuck one does not hold its slot forever."""

RESERVED: Final = "evsched."
"""How the tasks that come with evsched begin. A worker with a task of its own by such a name would run their jobs, send
nothing, and mark them done."""

_ALLOWING: Final = {"evsched.http": "--http-host HOST", "evsched.forward": "--forward-destination KIND:NAME"}
"""The flag with which a worker of evsched.targets has a task."""

_CONCURRENCY_MOST: Final = 1_000_000
"""As of every limit, see `store/gate_limits.py`."""

On = Literal["loop", "thread", "process"]


class Task(Struct, frozen=True):
    """A registered function and its limits. Make one with `define`."""

    name: str
    handler: Callable[..., Any]
    on: On
    """Where the handler runs: an async one in the worker's event loop, a plain one in a thread or in a process."""
    retry: Retry
    timeout: float | None
    retention: float | None
    """Seconds for which the record of a job that is done is kept; None = 300, but see `FetchedJob.is_unnamed`."""
    signature: Signature
    hooks: Hooks | None = None
    """The tasks that get a job when one of this task has ended."""
    queue: str | None = None
    """Where its jobs go; None = to the queue of the app."""
    concurrency: int | None = None
    """How many of its jobs may be in flight in a queue, over all workers; None = no limit."""
    redact: tuple[str, ...] = ()
    """Arguments whose values readers do not get, as a payload names them."""
    check: OwnCheck | None = None

    @property
    def module(self) -> str:
        return getattr(self.handler, "__module__", None) or ""

    def bind(self, payload: Payload) -> tuple[list[Any], dict[str, Any]]:
        """Convert a payload's arguments to the handler's annotations.

        Raises:
            msgspec.ValidationError: they do not fit; the message has the path of the wrong value.
        """
        redact = (*self.redact, *payload.redact) if self.redact or payload.redact else ()
        return self.signature.bind(payload.args, payload.kwargs, redact)

    def policy(self, payload: Payload) -> Retry:
        """Return the retry policy of a job: the task's, with the values that the payload overrides.

        Raises:
            ConfigError: the payload's values are not valid.
        """
        return self.retry if payload.retry is None else _override(self.retry, payload.retry)


_override: Final = lru_cache(maxsize=1024)(override)
"""Many payloads have the same few policies, and the checks of one cost a third of what the rest of a run does."""


class HookTask(Protocol):
    """A registered task whose handler takes an EndedJob."""

    @property
    def task(self) -> Task: ...
    @property
    def handler(self) -> Callable[[EndedJob], Any]: ...


class TaskOptions(TypedDict, total=False):
    """The options of `App.task`. One that is left out has its default."""

    name: str | None
    """Else the function's name."""
    retry: Retry | None
    timeout: float | None
    """Seconds that a run may take, default half an hour; None = no limit."""
    retention: float
    """Seconds for which the result is kept, default five minutes; 0 = not at all."""
    on: Literal["thread", "process"] | None
    """Where a plain function runs, default a thread."""
    on_done: HookTask | None
    """A task that gets a job for each that is done."""
    on_dead: HookTask | None
    """A task that gets a job for each that is dead or expired."""
    queue: str | None
    """Where its jobs go, else to the queue of the app."""
    concurrency: int | None
    """How many of its jobs may be in flight in a queue, over all workers; None = no limit."""
    redact: Sequence[str]
    """Parameters whose values no command, page or log of evsched shows."""


def _printable(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > 200:
        raise check.invalid(name, value, "1 to 200 printable characters")


def _timeout(name: str, value: Any) -> None:
    try:
        check.length(name, value)
    except ConfigError as error:
        raise ConfigError(f"{error}, or None for no limit") from None


def _hook(name: str, value: Any) -> None:
    task: Any = getattr(value, "task", None)
    if not isinstance(task, Task):
        raise check.invalid(name, value, "a task of this app, such as a function under @app.task")
    try:
        task.bind(Payload(task.name, [msgspec.to_builtins(EndedJob("a", "t", "done", 1))]))
    except msgspec.ValidationError as error:
        raise ConfigError(f"{name}: task {task.name} does not take one argument, an EndedJob: {error}") from None


_CHECKS: Final[dict[str, Check]] = {
    "name": _printable,
    "retry": check.retry,
    "timeout": _timeout,
    "retention": check.length_or_zero,
    "on": check.one_of("thread", "process"),
    "on_done": _hook,
    "on_dead": _hook,
    "queue": check.identifier,
    "concurrency": check.count,
    "redact": check.argument_names,
}
"""The check of each of `TaskOptions`, by its declared type."""

_NEVER_NONE: Final = ("retention", "redact")


def check_task_options(given: TaskOptions) -> None:
    """Check the options of a task.

    Raises:
        TypeError: there is no option of that name; the message suggests the nearest.
        ConfigError: a value is not valid.
    """
    check.check_options("task", given, _CHECKS, _NEVER_NONE)


def define(handler: Callable[..., Any], **options: Unpack[TaskOptions]) -> Task:
    """Make a task of a function, async or plain, with options that `check_task_options` has checked.

    Raises:
        ConfigError: the function has no name that a task may have, or that a task with a concurrency may have, or
            cannot run where `on` says; or its annotations cannot be read.
    """
    name = options.get("name")
    if name is None:
        name = getattr(handler, "__name__", "")
        _printable("name", name)
    signature = read_signature(name, handler)
    return Task(
        name=name,
        handler=handler,
        on=_where(name, handler, options.get("on")),
        retry=options.get("retry") or Retry(),
        timeout=options.get("timeout", DEFAULT_TIMEOUT),
        retention=options.get("retention"),
        signature=signature,
        hooks=_hooks(name, options.get("on_done"), options.get("on_dead")),
        queue=options.get("queue"),
        concurrency=_concurrency(name, options.get("concurrency")),
        redact=_redact(signature, options.get("redact", ())),
    )


def _redact(of: Signature, redact: Sequence[str]) -> tuple[str, ...]:
    of.check_redact(redact)
    return names_of(redact, of.order)


def _concurrency(name: str, concurrency: int | None) -> int | None:
    if concurrency is not None:
        groups.of_task(name)
        if concurrency > _CONCURRENCY_MOST:
            raise ConfigError(f"task {name}: concurrency is {concurrency}, must be from 1 to {_CONCURRENCY_MOST:,}")
    return concurrency


def _hooks(name: str, on_done: HookTask | None, on_dead: HookTask | None) -> Hooks | None:
    if on_done is None and on_dead is None:
        return None
    done, dead = (None if hook is None else Hook(hook.task.name, name) for hook in (on_done, on_dead))
    return Hooks(done, dead)


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
            ConfigError: one of that name is registered already; or a hook is a task of another app.
        """
        if task.name in self:
            raise ConfigError(f"task {task.name!r} is registered twice: give one of them another name=")
        for hook in (task.hooks.on_done, task.hooks.on_dead) if task.hooks else ():
            if hook is not None and hook.task not in self:
                raise ConfigError(f"task {task.name}: its hook {hook.task} is not a task of the same app")
        self[task.name] = task

    def find(self, name: str) -> Task:
        """Return the task of that name.

        Raises:
            UnknownTask: there is no such task; the message names the known tasks, and the nearest.
        """
        task = self.get(name)
        if task is None:
            near = nearest(name, self)
            hint = f"did you mean {near[0]!r}? This" if near else "this"
            known = f"{hint} worker has {_list(sorted(self)) or 'none'}"
            raise UnknownTask(f"unknown task {name[:200]!r}: {known}. {_advise(name)}")
        return task


def _advise(name: str) -> str:
    """Return what to do about an unknown task."""
    if name in _ALLOWING:
        return (
            "It is a task of evsched.targets: use a queue that no other app serves, and start its worker: evsched "
            f"worker evsched.targets:app {_ALLOWING[name]} --queue targets"
        )
    if name.startswith(RESERVED):
        return f"evsched has the tasks {' and '.join(_ALLOWING)}: correct the name"
    return "Register it with @app.task, or correct the name"


def _list(names: Iterable[str], most: int = 10) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(repr(name) for name in names[:most]) + more
