"""A backend for Django's `TASKS` setting: `evsched.django.Backend`, `manage.py evsched`, and the console in the admin.

Start with `backend.py`, which puts a task's jobs on the schedule and finds their results. `django_task.py` is a task
with evsched's options, and `task_results.py` reads a result from a job's record. `worker_app.py` is the app of workers
(`evsched worker evsched.django:app`), and `task_runs.py` calls a task. `site_console.py` serves the console in
the site, and `admin.py` decides who may see it. `compat.py` is all that differs between Django 6 and the package
django-tasks.

Nothing else in evsched imports this package, and nothing of Django is imported before one of its names is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from evsched.errors import ConfigError

if TYPE_CHECKING:
    from evsched.app import App
    from evsched.django.backend import Backend as Backend
    from evsched.django.site_console import with_console as with_console

    app: App

_WHERE: Final = {"Backend": "backend", "app": "worker_app", "with_console": "site_console"}


class WorkerDied(Exception):
    """The worker of an attempt died or hung. No code raises it: it stands in the `errors` of a result."""


def __getattr__(name: str) -> Any:
    """Import a name when it is used: the backend needs Django's settings, the others all models.

    Raises:
        ConfigError: a library is missing; of the app, also that Django does not start.
    """
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_WHERE[name]}")
    except ModuleNotFoundError as error:
        if error.name not in ("django", "django_tasks"):
            raise
        raise ConfigError(
            "evsched.django needs Django 6, or an older one and django-tasks: pip install 'evsched[django]'"
        ) from error
    found = globals()[name] = module.make_app() if name == "app" else getattr(module, name)
    return found
