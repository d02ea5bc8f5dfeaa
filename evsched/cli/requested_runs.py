"""The commands that run a recurrence by hand: trigger and backfill."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from cyclopts import Parameter

from evsched.cli import output
from evsched.cli.options import Json, Queue, RecurrenceName, Url
from evsched.cli.time_args import parse_time
from evsched.cli.unknown_queues import client_of
from evsched.cli.usage import UsageError
from evsched.client import recurrence_operations
from evsched.config import DEFAULT_QUEUE
from evsched.errors import ConfigError, EvschedError
from evsched.store.recurrence_calls import Backfilled
from evsched.store.store import Store


def trigger(name: RecurrenceName, /, *, queue: Queue = DEFAULT_QUEUE, url: Url = None) -> None:
    """Run a recurrence once, now, also if it is paused. If it must not overlap, the run waits until the others ended.

    Example: evsched recurrences trigger nightly
    """
    with client_of(url, queue) as redis:
        try:
            job_id, begun = redis.run(recurrence_operations.trigger(Store(queue), name))
        except ConfigError as error:  # what is not valid is the record in Redis, not the command line
            raise EvschedError(str(error)) from None
    print(job_id if begun else f"{job_id} waits until the run before it has ended")


def backfill(
    name: RecurrenceName,
    /,
    *,
    since: Annotated[str, Parameter(name="--from", help="The first planned time: 2030-01-31T09:00.")],
    until: Annotated[str | None, Parameter(name="--to", help="Only planned times before this. Default: now.")] = None,
    zone: Annotated[
        str | None, Parameter(help="The time zone of times that have no offset. Default: this machine's.")
    ] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="List the planned times, and run nothing.")] = False,
    queue: Queue = DEFAULT_QUEUE,
    json: Json = False,
    url: Url = None,
) -> None:
    """Run planned times that have passed, each once: the same command again runs nothing again.

    They run one after another, or up to 100 at a time if the overlap of the recurrence is "allow". At most 10,000.

    Example: evsched recurrences backfill nightly --from 2030-01-01 --to 2030-02-01
    """
    try:
        first = parse_time(since, zone)
        last = float("inf") if until is None else parse_time(until, zone)
        if last <= first:
            raise UsageError("--to: after --from")
        with client_of(url, queue) as redis:
            if dry_run:
                _list(redis.run(recurrence_operations.planned_between(Store(queue), name, first, last)), zone, json)
                return
            found = redis.run(recurrence_operations.backfill(Store(queue), name, first, last))
            paused = "paused" in redis.send(Store(queue).recurrence(name))
    except ConfigError as error:
        raise UsageError(str(error)) from None
    if json:
        output.as_json(found)
    else:
        print(f"{name}: {_describe(found, paused)}")


def _list(times: list[float], zone: str | None, json: bool) -> None:
    if json:
        output.as_json(times)
        return
    from evsched.recurrence.cron import find_zone

    local = None if zone is None else find_zone(zone)
    for planned in times:
        print(datetime.fromtimestamp(planned, local).astimezone(local).isoformat(" ", "seconds"))


def _describe(found: Backfilled, paused: bool) -> str:
    """Return in words what a backfill has done."""
    if not (found.requested or found.known or found.later or found.left_out):
        return "no planned time has passed between --from and --to"
    parts = [f"{found.requested} runs requested" if found.requested != 1 else "1 run requested"]
    if found.known:
        parts.append(f"{found.known} were requested before or have a job")
    if found.later:
        parts.append(f"{found.later} are left to the dispatcher, which has not made them yet")
    if found.left_out:
        parts.append(f"{found.left_out} left out, because {found.waiting} wait: repeat the command later")
    if paused and found.waiting:
        parts.append("they begin when it is resumed")
    return ", ".join(parts)
