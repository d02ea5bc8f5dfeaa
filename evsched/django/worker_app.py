"""The app that workers run: `evsched worker evsched.django:app`, or `manage.py evsched worker`.

Its tasks are those in the modules `tasks` of the installed apps. Another one of these apps is imported when its first
job comes: the path is the name of the evsched task. The producer of a job chooses it, so `find_task` imports nothing
else, and a path that leads to something that is no task is refused.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from typing import Any, Final, cast

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured, SuspiciousOperation
from django.utils.module_loading import autodiscover_modules
from msgspec.structs import replace

from evsched.app import App
from evsched.client.client import Client
from evsched.config import DEFAULT_QUEUE
from evsched.django.backend import Backend
from evsched.django.compat import AnyTask, Task, task_backends
from evsched.django.django_task import definition_of, run_options
from evsched.django.task_results import find_task
from evsched.django.task_runs import handler_of
from evsched.errors import ConfigError
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import Task as Definition
from evsched.jobs.tasks import Tasks, define

_log: Final = logging.getLogger("evsched.django")


def make_app() -> App:
    """Return the app, after `django.setup()`.

    Raises:
        ConfigError: the project does not start, or no backend of `TASKS` is evsched's.
    """
    with starting():
        django.setup()  # does nothing the second time
        backend = first_backend()
        autodiscover_modules("tasks")
    app = _DjangoApp(backend)
    for config in apps.get_app_configs():
        try:
            module = import_module(f"{config.name}.tasks")
        except ModuleNotFoundError:
            continue
        every: list[Any] = list(vars(module).values())
        for value in every:
            if isinstance(value, Task):
                task = cast("AnyTask", value)
                app.tasks.setdefault(task.module_path, _runnable(task, backend))
    return app


@contextmanager
def starting() -> Generator[None]:
    """Report whatever the modules of a project raise in one line, as of any app.

    Raises:
        ConfigError
    """
    try:
        yield
    except Exception as error:
        raise ConfigError(f"Django does not start: {type(error).__name__}: {error}") from error


def first_backend() -> Backend:
    """Return the backend of the settings that is evsched's: the default one, or the first by its alias.

    Raises:
        ImproperlyConfigured: there is none.
    """
    ours = _backends()
    if not ours:
        raise ImproperlyConfigured('no backend of TASKS is evsched\'s: set its BACKEND to "evsched.django.Backend"')
    return ours.get("default") or ours[min(ours)]


def _backends() -> dict[str, Backend]:
    every = {alias: task_backends[alias] for alias in task_backends}
    return {alias: backend for alias, backend in every.items() if isinstance(backend, Backend)}


class _DjangoApp(App):
    """An app that serves the queues of the settings, and imports tasks that it does not know."""

    def __init__(self, backend: Backend) -> None:
        self._known = sorted({queue for found in _backends().values() for queue in found.queues}) or [DEFAULT_QUEUE]
        lifespan = partial(_closing, backend)
        super().__init__(
            backend.url, queue=self._known[0], name="evsched.django", lifespan=lifespan, codec=backend.codec
        )
        self.program = replace(self.program, tasks=_ImportedTasks(backend))

    @property
    def queues(self) -> list[str]:
        """The queues of all backends that are evsched's, and those of tasks whose backend allows any."""
        return list(dict.fromkeys([*self._known, *super().queues]))

    def move_to(self, url: str, client: Client | None = None) -> None:
        """Use another Redis, as `App.move_to`; the backends of this process, which tasks enqueue by, go there too."""
        os.environ["EVSCHED_URL"] = url
        super().move_to(url, client)


@asynccontextmanager
async def _closing(backend: Backend) -> AsyncGenerator[None]:
    """Close the connection that tasks have used to enqueue others."""
    yield
    await backend.redis.app.close()


class _ImportedTasks(Tasks):
    """Tasks by their paths, imported when they are asked for."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend

    def get(self, key: str, default: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the task at a path; None if there is none here. Then another worker, with newer code, may have it."""
        found = super().get(key)
        if found is not None:
            return found
        try:
            found = self[key] = _runnable(find_task(key), self._backend)
        except SuspiciousOperation:
            return _refused(key)
        except ImportError:
            return default
        # A module may raise anything, and the worker has other jobs.
        except Exception:  # noqa: BLE001
            _log.exception("the module of task %s cannot be imported", key)
            return default
        return found


def _runnable(task: AnyTask, backend: Backend) -> Definition:
    """Return the task with its code and the options of its runs."""
    own = task_backends[task.backend]
    found = own if isinstance(own, Backend) else backend
    handler, on = handler_of(task, found)
    return replace(
        definition_of(task), handler=handler, on=on, queue=task.queue_name, **run_options(task, found.options)
    )


def _refused(path: str) -> Definition:
    """Return a task that gives its jobs up: the path names something that is no task. Nothing is called."""

    async def refuse(*args: Any, **kwargs: Any) -> None:
        find_task(path)

    return define(refuse, name=path, retry=Retry(give_up_on=(SuspiciousOperation,)))
