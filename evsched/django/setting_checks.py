"""The system checks of the settings: `manage.py check` and every start of Django run them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.db import connections
from django.urls import NoReverseMatch, get_script_prefix, reverse
from django.utils.connection import ConnectionDoesNotExist

from evsched.django.console_ask import PAGE
from evsched.errors import ConfigError
from evsched.jobs.tasks import TaskOptions, check_task_options
from evsched.keys import check_queue
from evsched.transport.address import parse

_OPTIONS: Final = ("url", "ledger", "console", "codec", "retry", "timeout", "retention")
"""The names that OPTIONS may have."""

_PATH: Final = re.compile(r"(/(?!\.{1,2}/)[A-Za-z0-9._~-]+)+/")
"""Where the console may be: below a folder of its own, because the site has the rest."""

_NEEDED: Final = ("admin:index", "admin:login", PAGE)
"""The pages of the admin without which nobody gets to the console."""


class BackendSettings(Protocol):
    """The settings of a backend."""

    alias: str
    options: Mapping[str, Any]
    queues: set[str]
    ledger: str | None

    @property
    def url(self) -> str | None: ...
    @property
    def console(self) -> str | None: ...


def check_settings(backend: BackendSettings) -> list[CheckMessage]:
    """Return the faults of the settings of a backend."""
    return [
        Error(f"TASKS[{backend.alias!r}]: {text}", hint=hint, id=f"evsched.E{number:03}")
        for number, text, hint in (
            *_options(backend),
            *_queues(backend),
            *_ledger(backend),
            *_servers(backend),
            *console_faults(backend),
        )
    ]


_Found = Iterator[tuple[int, str, str]]


def _options(backend: BackendSettings) -> _Found:
    for name in backend.options:
        if name not in _OPTIONS:
            yield 1, f"OPTIONS has {name!r}, which evsched does not know.", f"It knows {', '.join(_OPTIONS)}."
    given: dict[str, Any] = {name: value for name, value in backend.options.items() if name in _OPTIONS[4:]}
    try:
        check_task_options(TaskOptions(**given))
        url: Any = backend.url
        if not isinstance(url, str | None):
            raise ConfigError(f"url is {url!r}, not a text")
        if url is not None:
            parse(url)
    except ConfigError as error:
        yield 2, f"OPTIONS is not valid: {error}.", "Correct it."


def _queues(backend: BackendSettings) -> _Found:
    if isinstance(given := settings.TASKS[backend.alias].get("QUEUES"), str):
        yield 3, f"QUEUES is the text {given!r}, each of whose letters would be a queue.", f"Write [{given!r}]."
        return
    for queue in sorted(backend.queues):
        try:
            check_queue(queue)
        except ConfigError as error:
            yield 3, f"QUEUES is not valid: {error}.", "Rename the queue."


def _ledger(backend: BackendSettings) -> _Found:
    if backend.ledger is None:
        return
    try:
        vendor = connections[backend.ledger].vendor
    except (ConnectionDoesNotExist, TypeError):
        yield 4, f"OPTIONS['ledger'] is {backend.ledger!r}: DATABASES has none of that name.", "Give True or its alias."
        return
    if vendor != "postgresql":
        hint = "Leave 'ledger' out, and enqueue in transaction.on_commit(partial(task.enqueue, ...))."
        yield 5, f"OPTIONS['ledger'] needs PostgreSQL, and DATABASES[{backend.ledger!r}] is {vendor}.", hint


def _servers(backend: BackendSettings) -> _Found:
    every: dict[str, dict[str, Any]] = settings.TASKS
    ours = {alias: _options_of(params) for alias, params in every.items() if _is_ours(params)}
    urls = {alias: options.get("url") for alias, options in ours.items()}
    if len(set(urls.values())) > 1 and backend.alias == min(urls):
        hint = "Workers serve one Redis: give all backends of evsched the same url, or set EVSCHED_URL."
        yield 6, f"the backends {', '.join(sorted(urls))} have different urls.", hint


def console_faults(backend: BackendSettings) -> _Found:
    """Check the path of the console; for each fault, its number, a sentence and a hint."""
    path: Any = backend.console
    if path is None:
        return
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        yield 7, f"OPTIONS['console'] is {path!r}, not a path of the site.", 'Write one such as "/jobs/".'
    elif (covered := next((page for page in _admin_pages() if page.startswith(path)), None)) is not None:
        text = f"OPTIONS['console'] is {path!r}, and the console there would cover {covered}, a page of the admin."
        yield 7, text, 'Write a path without pages of the site, such as "/jobs/".'
    if not apps.is_installed("django.contrib.admin"):
        hint = "Add django.contrib.admin to INSTALLED_APPS, or leave 'console' out: its users then have tokens."
        yield 8, "OPTIONS['console'] needs Django's admin, which signs users in.", hint


def _admin_pages() -> Iterator[str]:
    """Find the paths of the admin that the console needs, without the prefix of the site."""
    for name in _NEEDED if getattr(settings, "ROOT_URLCONF", None) else ():
        with suppress(NoReverseMatch):
            yield reverse(name).removeprefix(get_script_prefix().rstrip("/"))


def _options_of(params: dict[str, Any]) -> dict[str, Any]:
    return params.get("OPTIONS") or {}


def _is_ours(params: dict[str, Any]) -> bool:
    return params.get("BACKEND") == "evsched.django.Backend"
