"""A job to enqueue: built from a task's name, its arguments and its options, which are checked here."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypedDict, get_args

import msgspec
from msgspec import Struct

from evsched.client.option_values import Unique, due_and_delay, finite_seconds, unix
from evsched.client.target_tasks import check_target, definition, is_target
from evsched.config import PAYLOAD_CAP
from evsched.errors import BadArguments, ConfigError
from evsched.execution.instruments import Instrumented, guarded
from evsched.jobs import option_checks as check
from evsched.jobs.arguments import Signature
from evsched.jobs.job import OnConflict, Payload, RetryFields, decode, encode, is_not_finite
from evsched.jobs.option_checks import Check
from evsched.jobs.redaction import hidden_arguments
from evsched.jobs.retry import Retry, override
from evsched.recurrence.windows import WINDOW_NAME, read_window
from evsched.store.client_calls import New

if TYPE_CHECKING:
    from evsched.execution.run import Run


class JobOptions(TypedDict, total=False):
    """How a job is enqueued. An option that is left out, or None, has the task's own value, or the default."""

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
    tags: Sequence[str] | None
    """At most 5 short labels by which jobs are found, such as ("patient:42",)."""
    redact: Sequence[str] | None
    """Arguments whose values readers do not get, by name, or by position from "1"; besides those of the task."""
    window: str | None
    """When the job may start, such as "mon-fri 22:00-06:00 Europe/Berlin", or the name of a window."""
    on_conflict: OnConflict | None
    """The action when a job of this id has not ended: "replace" or "keep"; else JobExists is raised."""
    unique: Unique | None
    """The id is made of the task and its arguments, so that there is one such job at a time, or in some time."""
    critical: int | None
    """For `enqueue_in`: 0 to 32767, default 0. After a loss of Redis, higher ones are restored first."""


class Instrument(Protocol):
    """Sees each enqueue and each run of an app, as tracing does. See `App.instrument`."""

    def sending(self, sending: Sending, /) -> AbstractContextManager[None]:
        """Return the context of an enqueue, in which its jobs are built and sent."""
        ...

    def carried(self, meta: Mapping[str, Any], batch: str, /) -> dict[str, Any]:
        """Return the `meta` of a job that is built now, with what the instrument adds. `batch`: as of `Sending`."""
        ...

    def running(self, run: Run, /) -> AbstractContextManager[None]:
        """Return the context of a run, in which its handler and all middleware are called."""
        ...


class Sending(Struct, eq=False):
    """One call that enqueues, as the instruments see it. Use it in a `with`, and build the jobs inside."""

    task: str
    """Empty for a graph, whose jobs are of several tasks."""
    queue: str
    options: JobOptions
    instruments: Sequence[Instrument] = ()
    many: int | None = None
    """How many jobs it enqueues; None = one, by a call for one job."""
    batch: str = ""
    """The batch that they become members of; empty = none."""
    jobs: Sequence[New] = ()
    """The jobs, once they are built."""
    around: Instrumented[Sending] | None = None

    def __enter__(self) -> Self:
        if self.instruments:
            self.around = Instrumented([instrument.sending for instrument in self.instruments], self)
            self.around.__enter__()
            self.options = carried(self.instruments, self.options, self.batch)
        return self

    def __exit__(self, *raised: Any) -> None:
        if self.around is not None:
            self.around.__exit__(*raised)


def carried(instruments: Sequence[Instrument], options: JobOptions, batch: str = "") -> JobOptions:
    """Return the options of a job with what the instruments add to its `meta`. `batch`: as of `Sending`."""
    given = meta = options.get("meta") or {}
    for instrument in instruments:
        found = guarded(instrument.carried, meta, batch)
        meta = meta if found is None else found
    return options if meta == given else {**options, "meta": meta}


def _retry(name: str, value: Any) -> None:
    if isinstance(value, RetryFields):
        override(Retry(), value)
        return
    check.retry(name, value)
    if value.by_exception:
        raise ConfigError(
            f"{name}: retry_on and give_up_on belong to a task: give them to its decorator, @task(retry=...)"
        )


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
    "tags": check.tags,
    "redact": check.argument_names,
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
    # 80 random bits: of a billion jobs, the odds that two have the same id are one in two million, and then the second
    # is refused. A longer id would cost memory twice.
    return os.urandom(10).hex()


def new_job(
    task: str, args: Sequence[Any], kwargs: dict[str, Any], options: JobOptions, payload_cap: int = PAYLOAD_CAP
) -> New:
    """Build a job from a task's name, its arguments and options, which `check_job_options` has checked.

    Raises:
        ConfigError: both `due` and `delay` are given; the arguments are not JSON, or too large; or `redact` names none
            of them.
        BadArguments: no worker can use the arguments, since the task is one of evsched.targets.
    """
    signature = definition(task).signature if is_target(task) else None
    if signature is not None:
        signature.check_redact(options.get("redact") or ())
    job = job_maker(task, options, payload_cap, signature)(args, kwargs)
    check_target(task, args, kwargs, job.payload)
    return job


def job_maker(
    task: str, options: JobOptions, payload_cap: int, signature: Signature | None = None
) -> Callable[[Sequence[Any], dict[str, Any]], New]:
    """Return a function that builds a job from its arguments. The options that many jobs share are read only once.

    `signature`: of the task, if it is known. Then the payload names redacted arguments as they are passed.

    Raises:
        ConfigError: both `due` and `delay` are given. The function raises it when the arguments are not JSON, or too
            large, or `redact` names none of them; and BadArguments, when JSON cannot hold a number in one.
    """
    if not task:
        raise ConfigError("a job needs the name of a task: it is empty")
    due, delay = due_and_delay(options.get("due"), options.get("delay"))
    job_id, priority, group = options.get("id"), options.get("priority"), options.get("group")
    shared = _shared(options)
    redact = shared.pop("redact", ())

    def make(args: Sequence[Any], kwargs: dict[str, Any]) -> New:
        hidden = _redacted(task, signature, redact, args, kwargs) if redact else ()
        text = _encode(Payload(task, list(args), kwargs, redact=hidden, **shared))
        check_arguments(task, args, kwargs, text, payload_cap, signature)
        return New(job_id or random_id(), text, priority, group, due, delay)

    return make


def without_later(job: New, count: int, named: Sequence[str]) -> dict[str, Any]:
    """Return the payload of a job without the arguments that come later: by position from `count` on, and `named`."""
    payload = decode(job.payload)
    payload["args"] = payload.get("args", [])[:count]
    payload["kwargs"] = {name: value for name, value in payload.get("kwargs", {}).items() if name not in named}
    return payload


def check_arguments(
    task: str,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    text: bytes,
    payload_cap: int,
    signature: Signature | None = None,
) -> None:
    """Check the arguments of a job, and the size of its payload, which is `text`.

    Raises:
        BadArguments: JSON cannot hold a number in one.
        ConfigError: the payload is too large.
    """
    # Most payloads have no null and are short, and their arguments are not looked at.
    if (b"null" in text or (len(text) > _LONG and _HUGE.search(text))) and is_not_finite((args, kwargs)):
        wrong = _not_finite(args, kwargs, signature)
        raise BadArguments(
            f"task {task}: argument {wrong} has a number that JSON cannot hold, NaN, infinite or beyond 1.8e308: "
            "pass None or a string for it"
        )
    if len(text) > payload_cap:
        raise ConfigError(
            f"task {task}: the payload has {len(text)} bytes, more than {payload_cap}: store the data elsewhere and"
            " pass a reference, or raise EVSCHED_PAYLOAD_CAP for dispatchers and for the programs that enqueue"
        )


def _encode(payload: Payload) -> bytes:
    """Return a payload as JSON.

    Raises:
        ConfigError: it has something that is not JSON.
    """
    try:
        return encode(payload)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        why = f"{error}"
    # Not where it was caught: as the context of the new error, it would keep the arguments.
    raise ConfigError(f"task {payload.task}: its arguments and meta must be JSON: {why}")


def _redacted(
    task: str, signature: Signature | None, redact: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[str, ...]:
    """Return the redacted arguments of a call, as its payload names them.

    Raises:
        ConfigError: the task is not known, and none of the arguments can be one that `redact` names.
    """
    if signature is not None:
        return signature.redacted(redact, len(args), kwargs)
    for name in redact:
        if not any(hidden_arguments((name,), (), len(args), kwargs)):
            raise ConfigError(
                f"task {task}: redact names {name!r}, and the job has no such argument: its arguments are "
                f"{', '.join((*(str(at) for at in range(1, len(args) + 1)), *map(repr, kwargs))) or 'none'}"
            )
    return tuple(redact)


def _not_finite(args: Sequence[Any], kwargs: dict[str, Any], signature: Signature | None) -> str:
    """Return the first argument with a number that JSON cannot hold: by its name, or by its place from 1."""
    names = () if signature is None else signature.order
    by_position = ((repr(names[at]) if at < len(names) else str(at + 1), value) for at, value in enumerate(args))
    by_name = ((repr(name), value) for name, value in kwargs.items())
    return next(name for name, value in (*by_position, *by_name) if is_not_finite(value))


def _shared(options: JobOptions) -> dict[str, Any]:
    """Return the fields of a payload that depend on the options alone."""
    given: dict[str, Any] = {name: options.get(name) for name in ("timeout", "retention", "window", "reply", "meta")}
    retry, expires = options.get("retry"), options.get("expires")
    if isinstance(retry, RetryFields):
        given["retry"] = retry
    elif retry is not None:
        given["retry"] = RetryFields(**{name: getattr(retry, name) for name in _RETRY_FIELDS})
    if expires is not None:
        given["expires"] = unix("expires", expires)
    for name in ("tags", "redact"):
        if names := options.get(name):
            given[name] = tuple(names)
    return {name: value for name, value in given.items() if value is not None}
