"""The commands that pause a recurrence, and resume it."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from cyclopts import Parameter

from evsched import keys
from evsched.cli import output
from evsched.cli.options import Queue, RecurrenceName, Url
from evsched.cli.time_args import parse_future
from evsched.cli.unknown_queues import client_of
from evsched.cli.usage import UsageError
from evsched.client import recurrence_operations
from evsched.client.client import SyncClient
from evsched.config import DEFAULT_QUEUE
from evsched.errors import ConfigError
from evsched.store.server import clock
from evsched.store.store import Store


def end_of_pause(redis: SyncClient, queue: str, until: float | timedelta | None) -> float | None:
    """Return the end of a pause in Unix seconds. `until`: as `parse_future` returns it; a length counts from now."""
    if isinstance(until, timedelta):
        return redis.send(clock(keys.root(queue))) + until.total_seconds()
    return until


def pause(
    name: RecurrenceName,
    /,
    *,
    until: Annotated[
        str | None,
        Parameter(
            help="When the pause ends by itself: 10m for ten minutes from now, 17:00 for the next 17:00, or "
            "2030-01-31T09:00. Default: when you resume it."
        ),
    ] = None,
    why: Annotated[str, Parameter(help="A sentence for operators: why it is paused.")] = "",
    zone: Annotated[
        str | None, Parameter(help="The time zone of --until, if it has no offset. Default: this machine's.")
    ] = None,
    queue: Queue = DEFAULT_QUEUE,
    url: Url = None,
) -> None:
    """Pause a recurrence. Times that pass during the pause do not count as missed.

    Example: evsched recurrences pause nightly --until 2030-01-31T09:00 --why "the warehouse moves"
    """
    try:
        at = None if until is None else parse_future(until, zone)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    with client_of(url, queue) as redis:
        ends = end_of_pause(redis, queue, at)
        try:
            redis.run(recurrence_operations.pause(Store(queue), name, ends, why))
        except ConfigError as error:
            raise UsageError(f"--{error}") from None
    print(f"{name} is paused" + ("" if ends is None else f" until {output.moment(ends, short=True)}"))


def resume(name: RecurrenceName, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Resume a paused recurrence. Times that have passed are not made up for.

    Example: evsched recurrences resume nightly
    """
    with client_of(url, queue) as redis:
        recurs = redis.send(Store(queue).hold(name, False))
    print(f"{name} is resumed" + ("" if recurs else ", and stays stopped: the code no longer declares it"))
