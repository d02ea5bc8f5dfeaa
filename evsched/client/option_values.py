"""Option values that need more than a type: moments and durations, in seconds, and `Unique`. Errors name the option."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from evsched.errors import ConfigError
from evsched.jobs.job import encode, is_not_finite
from evsched.jobs.kept import SIGNAL, SIGNALS_MOST
from evsched.jobs.option_checks import invalid
from evsched.jobs.sealed import PayloadCodec
from evsched.jobs.tasks import Task


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


Past = datetime | timedelta | float
"""An aware datetime, Unix seconds, or a timedelta before now."""


def past_moment(name: str, past: Past, now: float) -> float:
    """Return a moment in Unix seconds; a timedelta is one before `now`.

    Raises:
        ConfigError: as `unix`.
    """
    return now - past.total_seconds() if isinstance(past, timedelta) else unix(name, past)


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


def lasting_seconds(name: str, duration: timedelta | float) -> float:
    """Return a length of time in seconds, 0 or more.

    Raises:
        ConfigError: a value that is not a duration, a negative or an endless one.
    """
    length = finite_seconds(name, duration)
    if length < 0:
        raise invalid(name, duration, "0 s or more")
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


def signal_value(signal: str, value: Any) -> bytes:
    """Return the value of a signal to a job as JSON.

    Raises:
        ConfigError: the name of the signal is not valid, or the value is not JSON or too long.
    """
    if not isinstance(signal, str) or not SIGNAL.fullmatch(signal):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise invalid("signal", signal, "a name of 1 to 100 of A-Z a-z 0-9 . _ : @ -")
    try:
        text = encode(value)
        lost = is_not_finite(value)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"signal {signal}: its value must be JSON: {error}") from None
    if lost:
        raise ConfigError(f"signal {signal}: its value has a number that JSON cannot hold, NaN or infinite")
    if len(text) > _SIGNAL_MOST:
        raise ConfigError(f"signal {signal}: its value has {len(text)} bytes, at most {_SIGNAL_MOST} are allowed")
    return text


_SIGNAL_MOST: Final = SIGNALS_MOST // 2
"""Bytes of one value: several fit in the record."""

_DIGITS: Final = 32
"""Hex digits of the digest that an id has: 128 bits, so nobody can make two calls that have the same id."""


class Unique(Struct, frozen=True, kw_only=True):
    """Makes jobs unique: of the same task and key, only one waits or runs on a queue; see `on_conflict` for a second.

    `by`: the key by which two jobs are the same: "args", their arguments as JSON; or a function of the arguments
    of the task that returns the key, a string or another JSON value. `within`: a timedelta or seconds, counted by
    Redis's clock from the first enqueue. In that time there is no second job even when the first has ended.

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


Digest = Callable[[bytes], bytes]
"""Returns a digest of at least 16 bytes: of a codec, that nobody without its key can compute; else the SHA-256."""


def _sha256(text: bytes) -> bytes:
    return sha256(text).digest()


def digest_of(codec: PayloadCodec | None) -> Digest:
    """Return what makes the ids of unique jobs."""
    return _sha256 if codec is None else codec.digest


def unique_id(
    task: Task, unique: Unique, args: Sequence[Any], kwargs: Mapping[str, Any], digest: Digest = _sha256
) -> str:
    """Return the id of a unique job. The arguments must fit the task.

    Raises:
        ConfigError: the key that `by` returned is not JSON, or it is None.
    """
    if unique.by == "args":
        return id_of_arguments(task.name, *task.signature.by_position(args, kwargs), digest)
    return id_of_key(task.name, unique.by(*args, **kwargs), digest)


def id_of_arguments(task: str, args: Sequence[Any], kwargs: Mapping[str, Any], digest: Digest = _sha256) -> str:
    """Return the id of a job that is unique by its arguments, which are JSON. docs/protocol.md has the rule."""
    return _id(digest, task, list(args), dict(kwargs))


def id_of_key(task: str, key: Any, digest: Digest = _sha256) -> str:
    """Return the id of a job that is unique by a key, which is JSON.

    Raises:
        ConfigError: the key is not JSON, or None.
    """
    if key is None:  # most likely it was forgotten, or a function forgot to return it
        raise ConfigError(f"task {task}: the key of a unique job is None: give a string, or another JSON value")
    try:
        return _id(digest, task, key)
    except (TypeError, ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"task {task}: the key of a unique job must be JSON: {error}") from None


def _id(digest: Digest, *parts: Any) -> str:
    return "unique-" + digest(_encode(parts)).hex()[:_DIGITS]
