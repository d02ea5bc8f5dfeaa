"""A job to enqueue: built from a task's name, its arguments and its options, which are checked here.

Moments and durations as a program gives them, in seconds. Errors name the option.

Unique jobs: the same task and arguments once. The job's id is made of them, so a second one meets the first.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, Literal, TypedDict, get_args

import msgspec
from msgspec import Struct

from evsched.client.target_tasks import check_target
from evsched.config import PAYLOAD_CAP
from evsched.errors import BadArguments, ConfigError
from evsched.jobs import options as check
from evsched.jobs.job import OnConflict, Payload, RetryFields, encode, is_not_finite
from evsched.jobs.options import Check, invalid
from evsched.jobs.policies import override
from evsched.jobs.retry import Retry
from evsched.jobs.tasks import Task
from evsched.recurrence.windows import WINDOW_NAME, read_window
from evsched.store.clients import New


def unix(name: str, moment: datetime | float) -> float:
    """Return a moment in Unix seconds.

    Raises:
        ConfigError: a datetime without a time zone, or a value that is not a moment.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise invalid(name, moment, "a datetime with a time zone, such as datetime.now(UTC)")
        return moment.timestamp()
    return _number(name, moment, "an aware datetime, or Unix seconds")


def seconds(name: str, duration: timedelta | float) -> float:
    """Return a duration in seconds.

    Raises:
        ConfigError: a value that is not a duration.
    """
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    return _number(name, duration, "a timedelta, or seconds")


def finite_seconds(name: str, duration: timedelta | float) -> float:
    """Return a duration in seconds.

    Raises:
        ConfigError: a value that is not a duration, or an endless one.
    """
    length = seconds(name, duration)
    if length == math.inf:
        raise invalid(name, duration, "a finite number of seconds")
    return length


def due_and_delay(due: datetime | float | None, delay: timedelta | float | None) -> tuple[float | None, float]:
    """Return when a job is due: in Unix seconds, or None and the seconds from now.

    Raises:
        ConfigError: both are given, or one of them is not valid.
    """
    if due is not None and delay is not None:
        raise ConfigError("due and delay: give one of them")
    if due is not None:
        return unix("due", due), 0.0
    return None, 0.0 if delay is None else finite_seconds("delay", delay)


def _number(name: str, given: Any, give: str) -> float:
    try:
        # "5" is most often the text of a form field that was not converted, and True a mistake.
        if not isinstance(given, (str, bool)) and not math.isnan(found := float(given)):
            return found
    except (TypeError, ValueError, OverflowError):
        pass
    raise invalid(name, given, give)


_encode: Final = msgspec.json.Encoder(order="sorted").encode

_DIGITS: Final = 32
"""Hex digits of the digest that an id has: 128 bits, so nobody can make two calls that have the same id."""


class Unique(Struct, frozen=True, kw_only=True):
    """Makes jobs unique: of the same task and key, only one waits or runs on a queue; see `on_conflict` for a second.

    `by`: what makes two jobs the same: "args", their arguments as JSON; or a function that gets the arguments of the
    task and returns the key, a string or another JSON value. `within`: a timedelta or seconds, counted by Redis's clock
    from the first enqueue. In that time there is no second job even when the first has ended.

    Raises:
        ConfigError: an option is not valid.
    """

    by: Literal["args"] | Callable[..., Any] = "args"
    within: timedelta | float | None = None

    def __post_init__(self) -> None:
        if self.by != "args" and not callable(self.by):
            raise invalid("Unique: by", self.by, "'args', or a function that gets the arguments of the task")
        if self.within is not None and self.seconds <= 0:
            raise invalid("Unique: within", self.within, "a timedelta or seconds, more than 0; or None")

    @property
    def seconds(self) -> float:
        """`within` in seconds; 0 = only while the job waits or runs."""
        return 0.0 if self.within is None else finite_seconds("Unique: within", self.within)


def unique_id(task: Task, unique: Unique, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the id of a unique job. The arguments must fit the task.

    Raises:
        ConfigError: the key that `by` returned is not JSON, or it returned None.
    """
    if unique.by == "args":
        return id_of_arguments(task.name, *task.signature.by_position(args, kwargs))
    key = unique.by(*args, **kwargs)
    if key is None:  # most likely it forgot to return
        raise ConfigError(f"task {task.name}: Unique: by returned None: return a string, or another JSON value")
    try:
        return _digest(task.name, key)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(
            f"task {task.name}: Unique: by must return a string, or another JSON value: {error}"
        ) from None


def id_of_arguments(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the id of a job that is unique by its arguments, which are JSON. docs/protocol.md has the rule."""
    return _digest(task, list(args), dict(kwargs))


def id_of_key(task: str, key: Any) -> str:
    """Return the id of a job that is unique by a key, which is JSON.

    Raises:
        ConfigError: the key is not JSON, or None.
    """
    if key is None:  # most likely it was forgotten
        raise ConfigError(f"task {task}: the key of a unique job is None: give a string, or another JSON value")
    try:
        return _digest(task, key)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"task {task}: the key of a unique job must be JSON: {error}") from None


def _digest(*parts: Any) -> str:
    return "unique-" + sha256(_encode(parts)).hexdigest()[:_DIGITS]


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
    retry: Retry | RetryFields | None
    """A whole policy, or the fields that override those of the task's."""
    retention: float | None
    """Seconds for which the result is kept; 0 = not at all."""
    expires: datetime | float | None
    """The job is not started after this moment."""
    reply: bool | None
    """Push the result to the job's reply list when it ends, for clients that wait there."""
    meta: dict[str, Any] | None
    """Data that travels with the job, which the handler finds in `current_job().meta`."""
    window: str | None
    """When the job may start, such as "mon-fri 22:00-06:00 Europe/Berlin", or the name of a window."""
    on_conflict: OnConflict | None
    """What happens when a job of this id has not ended: "replace" or "keep"; else JobExists is raised."""
    unique: Unique | None
    """The id is made of the task and its arguments, so that there is one such job at a time, or in some time."""
    critical: int | None
    """For `enqueue_in`: 0 to 32767, default 0. After a loss of Redis, higher ones are restored first."""


Sending = Callable[[str, str, JobOptions, int | None], AbstractContextManager[JobOptions]]
"""Wraps an enqueue: gets the task, the queue, the options, and the number of jobs of an `enqueue_many`; yields the
options to enqueue with."""


def _retry(name: str, value: Any) -> None:
    if isinstance(value, RetryFields):
        override(Retry(), value)
        return
    check.retry(name, value)
    if value.by_exception:
        raise ConfigError(f"{name}: retry_on and give_up_on belong to a task: give them to @app.task(retry=...)")


def _window(name: str, value: Any) -> None:
    check.text(name, value)
    if not WINDOW_NAME.fullmatch(value):
        read_window(value)


def _unique(name: str, value: Any) -> None:
    if not isinstance(value, Unique):
        raise check.invalid(name, value, "a Unique, such as Unique(within=300)")


_CHECKS: Final[dict[str, Check]] = {
    "queue": check.identifier,
    "id": check.identifier,
    "due": unix,
    "delay": finite_seconds,
    "priority": check.priority,
    "group": check.group,
    "timeout": check.length,
    "retry": _retry,
    "retention": check.length_or_zero,
    "expires": unix,
    "reply": check.flag,
    "meta": check.named,
    "window": _window,
    "on_conflict": check.one_of(*get_args(OnConflict)),
    "unique": _unique,
    "critical": check.critical,
}
"""The check of each of `JobOptions`, by its declared type."""

_LONG: Final = 308
_HUGE: Final = re.compile(rb"[0-9]{309}")
"""The digits of an integer that is larger than any float, and how many bytes a shorter payload has at most."""

_RETRY_FIELDS: Final = RetryFields.__struct_fields__
"""The part of a policy that a payload can have."""


def check_job_options(given: JobOptions) -> None:
    """Check the options of a job.

    Raises:
        TypeError: there is no option of that name; the message suggests the nearest.
        ConfigError: a value is not valid, or both `id` and `unique` are given.
    """
    check.check_options("using", given, _CHECKS)
    if given.get("id") is not None and given.get("unique") is not None:
        raise ConfigError("id and unique: give one of them. The id of a unique job is made of its task and arguments")


def random_id() -> str:
    """Return an id for a job."""
    # 80 random bits: of a billion jobs, the odds that two have the same id are one in two million, and then the second
    # is refused. A longer id would cost memory twice.
    return os.urandom(10).hex()


def new_job(
    task: str, args: Sequence[Any], kwargs: dict[str, Any], options: JobOptions, payload_cap: int = PAYLOAD_CAP
) -> New:
    """Build a job from a task's name, its arguments and options, which `check_job_options` has checked.

    Raises:
        ConfigError: both `due` and `delay` are given; the arguments are not JSON, or too large.
        BadArguments: no worker can use the arguments, since the task is one of evsched.targets.
    """
    job = job_maker(task, options, payload_cap)(args, kwargs)
    check_target(task, args, kwargs, job.payload)
    return job


def job_maker(
    task: str, options: JobOptions, payload_cap: int, names: Sequence[str] = ()
) -> Callable[[Sequence[Any], dict[str, Any]], New]:
    """Return a function that builds a job from its arguments. For many jobs, what they share is read only once.

    `names`: of the arguments that are passed by position, for messages.

    Raises:
        ConfigError: both `due` and `delay` are given. The function raises it when the arguments are not JSON, or too
            large; and BadArguments, when JSON cannot hold a number in one.
    """
    if not task:
        raise ConfigError("a job needs the name of a task: it is empty")
    due, delay = due_and_delay(options.get("due"), options.get("delay"))
    job_id, priority, group = options.get("id"), options.get("priority"), options.get("group")
    shared = _shared(options)

    def make(args: Sequence[Any], kwargs: dict[str, Any]) -> New:
        try:
            text = encode(Payload(task, list(args), kwargs, **shared))
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise ConfigError(f"task {task}: its arguments and meta must be JSON: {error}") from None
        # Most payloads have no null and are short, and their arguments are not looked at.
        if (b"null" in text or (len(text) > _LONG and _HUGE.search(text))) and is_not_finite((args, kwargs)):
            raise BadArguments(
                f"task {task}: argument {_not_finite(args, kwargs, names)} has a number that JSON cannot hold, NaN, "
                "infinite or beyond 1.8e308: pass None or a string for it"
            )
        if len(text) > payload_cap:
            raise ConfigError(
                f"task {task}: the payload has {len(text)} bytes, more than {payload_cap}: store the data elsewhere and"
                " pass a reference, or raise EVSCHED_PAYLOAD_CAP for dispatchers and for the programs that enqueue"
            )
        return New(job_id or random_id(), text, priority, group, due, delay)

    return make


def _not_finite(args: Sequence[Any], kwargs: dict[str, Any], names: Sequence[str]) -> str:
    """Return the first argument with a number that JSON cannot hold: by its name, or by its place from 1."""
    by_position = ((repr(names[at]) if at < len(names) else str(at + 1), value) for at, value in enumerate(args))
    by_name = ((repr(name), value) for name, value in kwargs.items())
    return next(name for name, value in (*by_position, *by_name) if is_not_finite(value))


def _shared(options: JobOptions) -> dict[str, Any]:
    """Return what the payloads of all jobs with these options have besides their arguments."""
    given: dict[str, Any] = {name: options.get(name) for name in ("timeout", "retention", "window", "reply", "meta")}
    retry, expires = options.get("retry"), options.get("expires")
    if isinstance(retry, RetryFields):
        given["retry"] = retry
    elif retry is not None:
        given["retry"] = RetryFields(**{name: getattr(retry, name) for name in _RETRY_FIELDS})
    if expires is not None:
        given["expires"] = unix("expires", expires)
    return {name: value for name, value in given.items() if value is not None}
