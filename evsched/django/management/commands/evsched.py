"""`manage.py evsched worker` and all other commands of evsched, with the settings of the project."""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER
from typing import Any, Final
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from evsched.django.backend import Backend
from evsched.django.worker_app import first_backend

_OF_APP: Final = ("worker", "dev")
"""The commands that take an app."""

_APP: Final = "evsched.django:app"


class Command(BaseCommand):
    help = (
        "Run a command of evsched with the Redis of TASKS: `worker` and `dispatcher` in production, `dev` for both, "
        "and those of `evsched --help`. Its flags follow it, and --help too: manage.py evsched worker --help"
    )
    requires_system_checks: list[str] = []  # noqa: RUF012 - the command's process makes them  # pyright: ignore[reportIncompatibleVariableOverride]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("words", nargs=REMAINDER, metavar="COMMAND", help="The command and its flags.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Become that command: signals and exit codes are its own, as if it had been started by `evsched`."""
        words: list[str] = options["words"]
        if words[:1] and words[0] in _OF_APP:
            words = [words[0], _APP, *words[1:]]
        try:
            backend = first_backend()
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None
        os.environ.update(environment(backend))
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", "evsched", *words])  # noqa: S606 - no shell


def environment(backend: Backend) -> dict[str, str]:
    """Return the variables that evsched lacks: where Redis, the ledger, the codec, the modules and the login are."""
    found = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path for path in sys.path if path))}
    if backend.url is not None:
        found["EVSCHED_URL"] = backend.url
    if backend.ledger is not None and "EVSCHED_LEDGER_URL" not in os.environ:
        found["EVSCHED_LEDGER_URL"] = _url_of(connections[backend.ledger].settings_dict)
    if backend.codec is not None and "EVSCHED_CODEC" not in os.environ:
        found["EVSCHED_CODEC"] = _APP
    if backend.console is not None and "EVSCHED_CONSOLE_SITE" not in os.environ:
        found["EVSCHED_CONSOLE_SITE"] = "evsched.django:with_console"
    return found


def _url_of(database: dict[str, Any]) -> str:
    """Return the URL of a PostgreSQL database of the settings."""
    user, password = (quote(str(database.get(name) or ""), safe="") for name in ("USER", "PASSWORD"))
    who = f"{user}:{password}@" if password else f"{user}@" if user else ""
    words = {"host": database.get("HOST"), "port": database.get("PORT")}
    query = urlencode({name: value for name, value in words.items() if value})
    return f"postgresql://{who}/{quote(str(database['NAME']), safe='')}" + (f"?{query}" if query else "")
