"""What all commands share: the root, the options that many take, and the way to the settings and to Redis."""

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
    help="An event-driven job scheduler on Redis.",
    version=evsched.__version__,
    suppress_keyboard_interrupt=False,
)

Url = Annotated[str | None, Parameter(help="Redis; else EVSCHED_URL, else redis://localhost:6379/0.")]
Queue = Annotated[str, Parameter(help="The queue.")]
Queues = Annotated[
    list[str] | None,
    Parameter(name="--queue", negative="", help="A queue; may be repeated. Else all, or the app's."),
]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON.")]
Ids = Annotated[list[str] | None, Parameter(help="Ids of jobs.", negative="")]


LIST_MOST: Final = 1_000_000
"""Rows that a list has at the most, whatever its --limit."""


class UsageError(EvschedError):
    """The command line makes no sense."""


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
        UsageError: one of them cannot be.
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
    """Tell once of variables that were meant to be settings, or were made by others."""
    if not (line := config.warning(os.environ)):
        return
    from evsched.process.child_link import LINK  # not above: it brings the worker with it

    if LINK not in os.environ:  # a child of --processes, whose parent has told it
        print(f"evsched: warning: {escape(line)}", file=sys.stderr)


@contextmanager
def client(url: str | None) -> Generator[SyncClient]:
    """Yield a client of the Redis that the command is about."""
    found = SyncClient(settings(url).url)
    try:
        yield found
    finally:
        found.close()
