"""What all commands share: the root command, the options that many take, the settings and the client of Redis."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

import evsched
from evsched import config
from evsched.client.sync_client import SyncClient
from evsched.config import Config
from evsched.errors import ConfigError, EvschedError
from evsched.telemetry.log import escape
from evsched.transport import address

root = App(
    name="evsched",
    help="""Run jobs on time, on Redis.

    To see it work, run `evsched demo`. To develop, run `evsched dev tasks:app`. In production, run
    `evsched dispatcher` and `evsched worker tasks:app`. `evsched COMMAND --help` explains a command.

    Write lengths of time as 250ms, 10s, 5m, 1.5h or 7d, and times as 2030-01-31T09:00 or in Unix seconds.""",
    version=evsched.__version__,
    suppress_keyboard_interrupt=False,
)

Url = Annotated[str | None, Parameter(help="The Redis to use. Default: EVSCHED_URL, or else redis://localhost:6379/0.")]
UrlOrPrivate = Annotated[str | None, Parameter(help="The Redis to use. Default: EVSCHED_URL, or else a private Redis.")]
Queue = Annotated[str, Parameter(help="The queue.")]
Queues = Annotated[
    list[str] | None,
    Parameter(name="--queue", negative="", help="A queue; repeat the flag for several. Default: all queues."),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON with all fields.")]
Ids = Annotated[list[str] | None, Parameter(help="The ids of the jobs.", negative="")]


LIST_MOST: Final = 1_000_000
"""Rows that a list has at the most, whatever its --limit."""


class UsageError(EvschedError):
    """The command line is not valid."""


def check_limit(limit: int) -> None:
    """Refuse a --limit that is out of range.

    Raises:
        UsageError
    """
    if not 1 <= limit <= LIST_MOST:
        raise UsageError(f"--limit is {limit}: from 1 to {LIST_MOST}")


def settings(url: str | None = None, **flags: Any) -> Config:
    """Return the settings of this process.

    Raises:
        UsageError: one of them is not valid.
    """
    _warn()
    try:
        found = config.load(os.environ, url=url, **flags)
        address.parse(found.url)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    return found


@cache
def _warn() -> None:
    """Print one line, once, about variables EVSCHED_... that are not settings."""
    if not (line := config.warning(os.environ)):
        return
    from evsched.process.child_link import LINK  # not at the top: it imports the worker

    if LINK not in os.environ:  # a child of --processes: its parent has printed the line
        print(f"evsched: warning: {escape(line)}", file=sys.stderr)


@contextmanager
def client(url: str | None) -> Generator[SyncClient]:
    """Yield a client of the Redis that the command is about."""
    found = SyncClient(settings(url).url)
    try:
        yield found
    finally:
        found.close()
