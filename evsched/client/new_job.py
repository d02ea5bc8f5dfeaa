"""A job to enqueue: built from a task's name, its arguments and its options, all of which are checked here."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, TypedDict, get_args

import msgspec

from evsched import keys
from evsched.client.times import due_and_delay, unix_or_refuse
from evsched.config import PAYLOAD_CAP
from evsched.errors import ConfigError
from evsched.jobs.job import OnConflict, Payload, RetryFields, encode
from evsched.jobs.retry import Retry
from evsched.recurrence.windows import WINDOW_NAME, read_window
from evsched.store.replies import New


class JobOptions(TypedDict, total=False):
    """How a job is enqueued. What is left out, or None, is the task's own value, or the default."""

    queue: str | None
    id: str | None
    """Else a random one. While a job of this id has not ended, a second one is refused; see `on_conflict`."""
    due: datetime | float | None
    """An aware datetime, or Unix seconds; else now, by Redis's clock."""
    delay: timedelta | float | None
    """A timedelta, or seconds from Redis's now. Give `due` or `delay`, not both."""
    priority: int | None
    """0 to 9, default 5; higher runs first."""
    group: str | None
    """Jobs of different groups get fair shares of the queue."""
    timeout: float | None
    """Seconds that a run may take."""
    retry: Retry | None
    retention: float | None
    """Seconds for which the result is kept; 0 = not at all."""
    expires: datetime | float | None
    """The job is not started after this moment."""
    reply: bool
    """Push the result to the job's reply list when it ends, for clients that wait there."""
    meta: dict[str, Any] | None
    """Data that travels with the job, which the handler finds in `current_job().meta`."""
    window: str | None
    """When the job may start, such as "mon-fri 22:00-06:00 Europe/Berlin", or the name of a window."""
    on_conflict: OnConflict | None
    """What happens when a job of this id has not ended: "replace" or "keep"; else JobExists is raised."""


Sending = Callable[[str, str, JobOptions, int | None], AbstractContextManager[JobOptions]]
"""Wraps an enqueue: gets the task, the queue, the options, and the number of jobs of an `enqueue_many`; yields the
options to enqueue with."""


def random_id() -> str:
    """Return an id for a job."""
    # 96 random bits: two ids of a whole fleet do not collide, and a longer one would cost memory twice.
    return os.urandom(12).hex()


def new_job(
    task: str, args: Sequence[Any], kwargs: dict[str, Any], options: JobOptions, payload_cap: int = PAYLOAD_CAP
) -> New:
    """Build a job from a task's name, its arguments and options.

    Raises:
        ConfigError: an option is not valid; the arguments are not JSON, or too large.
    """
    if not task:
        raise ConfigError("a job needs the name of a task: it is empty")
    _check(options)
    due, delay = due_and_delay(options.get("due"), options.get("delay"))
    retry, expires = options.get("retry"), options.get("expires")
    payload = Payload(
        task=task,
        args=list(args),
        kwargs=kwargs,
        timeout=options.get("timeout"),
        retry=None if retry is None else RetryFields(**msgspec.structs.asdict(retry)),
        retention=options.get("retention"),
        expires=None if expires is None else unix_or_refuse("expires", expires),
        reply=options.get("reply", False),
        meta=options.get("meta") or {},
        window=options.get("window"),
    )
    try:
        text = encode(payload)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"task {task}: its arguments must be JSON: {error}") from None
    if len(text) > payload_cap:
        raise ConfigError(
            f"task {task}: the payload has {len(text)} bytes, more than {payload_cap}: store the data elsewhere and"
            " pass a reference, or raise EVSCHED_PAYLOAD_CAP for dispatchers and for the programs that enqueue"
        )
    return New(
        id=options.get("id") or random_id(),
        payload=text,
        priority=options.get("priority"),
        group=options.get("group"),
        due=due,
        delay=delay,
    )


def _check(options: JobOptions) -> None:
    """Check the options that can be wrong, but for the times, which are checked where they are converted."""
    job_id, priority, group = options.get("id"), options.get("priority"), options.get("group")
    if job_id is not None and not keys.NAME.fullmatch(job_id):
        raise ConfigError(f"id {job_id[:200]!r}: an id is 1 to 200 of A-Z a-z 0-9 . _ : @ -")
    if priority is not None and priority not in range(10):
        raise ConfigError(f"priority {priority!r}: must be from 0 to 9, higher runs first")
    if group is not None and (not 0 < len(group.encode()) <= 200 or "}" in group):
        raise ConfigError("group: give 1 to 200 bytes, without `}`")
    timeout, retention, window = options.get("timeout"), options.get("retention"), options.get("window")
    if timeout is not None and not 0 < _number(timeout) < math.inf:
        raise ConfigError(f"timeout is {timeout!r}: give a number of seconds, more than 0")
    if retention is not None and not 0 <= _number(retention) < math.inf:
        raise ConfigError(f"retention is {retention!r}: give a number of seconds, 0 or more")
    if window is not None and not WINDOW_NAME.fullmatch(window):
        read_window(window)
    on_conflict = options.get("on_conflict")
    if on_conflict is not None and on_conflict not in get_args(OnConflict):
        near = difflib.get_close_matches(str(on_conflict)[:200], get_args(OnConflict), n=1)
        hint = f", did you mean {near[0]!r}?" if near else ": give 'replace' or 'keep'"
        raise ConfigError(f"on_conflict is {repr(on_conflict)[:200]}{hint}")


def _number(given: Any) -> float:
    return given if isinstance(given, (int, float)) else math.nan  # every comparison with NaN is false
