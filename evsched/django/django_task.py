"""A task of Django's with evsched's options, and what evsched makes of it: its definition, and the options of its jobs.

@task(retry=Retry(attempts=8), group="mails")
def welcome(user_id): ...

welcome.using(unique=Unique(within=300)).enqueue(7)
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, cast

from django.conf import settings
from django.utils import timezone

from evsched.client.new_job import JobOptions, check_job_options
from evsched.client.option_values import Unique
from evsched.django.compat import DEFAULT_TASK_PRIORITY, AnyTask, InvalidTask, Task
from evsched.errors import ConfigError
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import DEFAULT_TIMEOUT, TaskOptions, check_task_options, define
from evsched.jobs.tasks import Task as Definition

DAY: Final = 86_400.0
"""Seconds for which a result is kept unless the task or the settings say otherwise: Django's users look later than
evsched's, often from a page of their own."""

RUN_OPTIONS: Final = ("retry", "timeout", "retention")
"""The options of a run. `OPTIONS` in the settings may have defaults for them."""

DEFAULTS: Final[Mapping[str, Any]] = {"retry": Retry(), "timeout": DEFAULT_TIMEOUT, "retention": DAY}

NOTE: Final = "django"
"""The key in a job's `meta` under which this package keeps what a `TaskResult` needs besides the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DjangoTask(AnyTask):
    """A task of the backend. An option that is None has its default."""

    retry: Retry | None = None
    timeout: float | None = None
    """Seconds that a run may take."""
    group: str | None = None
    """Jobs of different groups get equal shares of the queue."""
    unique: Unique | None = None
    """One such job at a time: a second enqueue returns the result of the first."""
    retention: float | None = None
    """Seconds for which the result is kept."""
    redact: tuple[str, ...] = ()
    """Parameters whose values no command, page or log of evsched shows."""

    def using(  # pyright: ignore[reportIncompatibleMethodOverride] - it takes more
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        retry: Retry | None = None,
        timeout: float | None = None,
        group: str | None = None,
        unique: Unique | None = None,
        retention: float | None = None,
        redact: tuple[str, ...] | None = None,
    ) -> DjangoTask:
        """Return this task with other options for its jobs.

        Raises:
            InvalidTask: `retry` names exceptions, which only the decorator may.
        """
        try:
            check_job_options(JobOptions(retry=retry))
        except ConfigError as error:
            raise InvalidTask(str(error)) from None
        given = {name: value for name, value in locals().items() if name != "self" and value is not None}
        return replace(self, **given)


def option(task: AnyTask, name: str) -> Any:
    """Return an option of a task; None if it is of another backend's class, which has none of ours."""
    return getattr(task, name, None)


def check_task(task: AnyTask) -> None:
    """Check our options.

    Raises:
        ConfigError: one is not valid.
    """
    given = {name: value for name in RUN_OPTIONS if (value := option(task, name)) is not None}
    redact = option(task, "redact") or ()
    check_task_options(TaskOptions(**given, redact=redact, queue=task.queue_name))
    check_job_options(JobOptions(group=option(task, "group"), unique=option(task, "unique")))
    definition_of(task).signature.check_redact(redact)


def definition_of(task: AnyTask) -> Definition:
    """Return the task as evsched has it, to enqueue its jobs: without its code."""
    return _definition(task.func, task.module_path, task.takes_context, tuple(option(task, "redact") or ()))


def run_options(task: AnyTask, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a task's runs: its own, else those of the settings, else the defaults."""
    every = {**DEFAULTS, **{name: value for name, value in defaults.items() if name in RUN_OPTIONS}}
    return {name: every[name] if (own := option(task, name)) is None else own for name in RUN_OPTIONS}


@lru_cache(maxsize=4096)
def _definition(func: Callable[..., Any], path: str, takes_context: bool, redact: tuple[str, ...]) -> Definition:
    return define(without_annotations(func, takes_context), name=path, redact=redact)


def without_annotations(func: Callable[..., Any], takes_context: bool) -> Callable[..., Any]:
    """Return a stand-in with the parameters of a task's function, without its context and its annotations.

    Django passes arguments as JSON has them. evsched would convert them to the annotations: a `datetime` would not be
    the string that the function gets from other backends.
    """
    signature = inspect.signature(func)
    parameters = list(signature.parameters.values())[1 if takes_context else 0 :]
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("this is a description of a task, without its code")

    stand_in.__signature__ = signature.replace(  # pyright: ignore[reportFunctionMemberAccess]
        parameters=plain, return_annotation=inspect.Signature.empty
    )
    stand_in.__module__ = func.__module__  # tracebacks are shown from there
    return stand_in


def job_options(task: AnyTask, note: dict[str, Any]) -> JobOptions:
    """Return the options of a job: those in which it differs from its task as the module declares it.

    Workers have the others in their own code, so they cost nothing in the payload.
    """
    declared = declared_task(task)
    changed = {
        name: value
        for name in (*RUN_OPTIONS, "redact")
        if (value := option(task, name)) not in (None, ()) and (declared is None or value != option(declared, name))
    }
    if "retry" in changed:
        note["attempts"] = changed["retry"].attempts
    return JobOptions(
        queue=task.queue_name,
        due=None if task.run_after is None else aware(task.run_after),
        priority=level(task.priority),
        group=option(task, "group"),
        unique=option(task, "unique"),
        meta={NOTE: note},
        **changed,
    )


def declared_task(task: AnyTask) -> AnyTask | None:
    """Return the task that stands in its module under its function's name, before any `using`; None if there is none.

    `import_string` would import a module, and this is called for each job.
    """
    module = sys.modules.get(task.func.__module__)
    found = getattr(module, task.func.__qualname__, None)
    return cast("AnyTask", found) if isinstance(found, Task) and found.func is task.func else None


def level(priority: int) -> int:
    """Return evsched's priority, 0 to 9, of one of Django's, -100 to 100: twenty share a level, and 0 is 5."""
    return min((int(priority) + 100) // 20, 9)


def aware(moment: datetime) -> datetime:
    """Return an aware datetime: without USE_TZ, Django's are naive, in the time zone of the settings."""
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def moment_of(unix: float) -> datetime:
    """Return a time in Unix seconds as Django's other datetimes are: aware, or naive without USE_TZ."""
    found = datetime.fromtimestamp(unix, tz=timezone.get_default_timezone())
    return found.astimezone(UTC) if settings.USE_TZ else timezone.make_naive(found, timezone.get_default_timezone())


def note_of(task: AnyTask, alias: str, at: float) -> dict[str, Any]:
    """Return what a job's `meta` keeps for its result. `at`: the time of the enqueue; a record has whole seconds."""
    note: dict[str, Any] = {"at": at, "backend": alias}
    if task.priority != DEFAULT_TASK_PRIORITY:
        note["priority"] = task.priority
    if task.run_after is not None:
        note["run_after"] = aware(task.run_after).timestamp()
    return note
