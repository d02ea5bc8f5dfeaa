"""Unique jobs: the same task and arguments once. The job's id is made of them, so a second one meets the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from evsched.client.times import finite_seconds
from evsched.errors import ConfigError
from evsched.jobs.option_checks import invalid
from evsched.jobs.tasks import Task

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
