"""A task's retry policy: how long to wait between the attempts of a job.

Workers also write policies to Redis, for clients that make recurrences without the code of the app.
"""

from __future__ import annotations

import math
import random
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Struct

from evsched.errors import ConfigError
from evsched.jobs.job import RetryFields, decode_payload

ATTEMPTS_MOST: Final = 1000
"""Attempts of a job, at most: at a second each, a quarter of an hour."""

_AT_ONCE: Final = 4
"""The last attempt after which a policy may let the next one begin at once."""

NAME_MOST: Final = 200
"""Characters of the name of a class that are kept."""


class Retry(Struct, frozen=True, kw_only=True):
    """A task's retry policy.

    The delay after attempt n (from 1) is `min(interval * factor^(n-1), max_interval) + random(0..jitter)`, all in
    seconds, and never shorter than `least_delay`. `attempts` counts all runs, including the first and runs that a
    crash ended: 1 means that the job is never run again.

    `retry_on` and `give_up_on` are exception classes, as in `except`: a job whose handler raises one of `give_up_on`
    is not run again, nor, if `retry_on` is given, one whose handler raises anything else than those. They belong to a
    task: a job's own policy cannot have them. Timeouts, crashes, RetryLater and GiveUp are not affected.
    """

    attempts: int = 5
    interval: float = 1.0
    factor: float = 2.0
    max_interval: float = 3600.0
    jitter: float = 0.5
    retry_on: tuple[type[BaseException], ...] | None = None
    """None = all."""
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        wrong = list[str]()
        if not _is_number(self.attempts, int) or not 1 <= self.attempts <= ATTEMPTS_MOST:
            wrong.append(f"attempts is {self.attempts!r}, must be 1 to {ATTEMPTS_MOST}")
        for name, least in (("interval", 0), ("factor", 1), ("max_interval", 0), ("jitter", 0)):
            value = getattr(self, name)
            if not _is_number(value, (int, float)) or not least <= value < math.inf:
                wrong.append(f"{name} is {value!r}, must be {least} or more")
        for name, kinds in (
            ("retry_on", () if self.retry_on is None else self.retry_on),
            ("give_up_on", self.give_up_on),
        ):
            if not _are_exceptions(kinds):
                form = "a tuple of exception classes, such as (ConnectionError,)"
                wrong.append(f"{name} is {repr(kinds)[:200]}, must be {form}")
        if not wrong and self.retry_on:
            never = [kind.__name__ for kind in self.retry_on if issubclass(kind, self.give_up_on)]
            wrong += [f"retry_on has {name}, on which give_up_on gives up" for name in never]
        if wrong:
            raise ConfigError("Retry: " + "; ".join(wrong))

    @property
    def by_exception(self) -> bool:
        """Whether it depends on the exception that a handler raises if the job is run again."""
        return self.retry_on is not None or bool(self.give_up_on)

    def refusal(self, kinds: frozenset[str]) -> str:
        """Return why an exception of these `kinds_of` allows no other attempt; empty if it does."""
        for kind in self.give_up_on:
            if _name_of(kind) in kinds:
                return "give_up_on includes its class"
        if self.retry_on is None or any(_name_of(kind) in kinds for kind in self.retry_on):
            return ""
        # Without the classes of retry_on: a search for one of them must not find the jobs that raised another one.
        return "retry_on does not include its class"

    def delay(self, attempt: int) -> float:
        """Return the seconds from the end of this attempt to the next one."""
        return self._interval(attempt) + random.uniform(0, self.jitter)  # noqa: S311 - no secret

    def worst_case(self) -> float:
        """Return the longest total delay of the policy, in seconds: one delay for each attempt.

        The sum includes a delay after the last attempt. Nothing waits for it; it leaves time for the runs themselves.
        Three attempts, interval 0.2 s, jitter 0.5 s: (0.2 + 0.4 + 0.8) + 3 * 0.5 = 2.9 s.
        """
        return self.attempts * self.jitter + sum(map(self._interval, range(1, self.attempts + 1)))

    def _interval(self, attempt: int) -> float:
        return max(self._by_policy(attempt), least_delay(attempt))

    def _by_policy(self, attempt: int) -> float:
        try:
            return min(self.interval * self.factor ** (attempt - 1), self.max_interval)
        except OverflowError:  # a payload can have any factor, and a float ends at 2^1024
            return self.max_interval if self.interval else 0.0


def kinds_of(error: BaseException) -> frozenset[str]:
    """Return the names of an exception's class and of all that it inherits from.

    Names, since an exception that was raised in another process has its class there.
    """
    return frozenset(_name_of(kind) for kind in type(error).__mro__)


def class_name(error: BaseException) -> str:
    """Return the name of an exception's class as tracebacks have it: with its module, unless it is a built-in one."""
    name = _name_of(type(error)).removeprefix("builtins.")
    return name.encode(errors="backslashreplace").decode()[:NAME_MOST]


def _name_of(kind: type) -> str:
    # `__mp_main__` is the name of the worker's main module in other processes, also in those of multiprocessing.
    module = "__main__" if kind.__module__ == "__mp_main__" else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _are_exceptions(value: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    return all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in cast("tuple[Any, ...]", value))


def _is_number(value: Any, types: type[int] | tuple[type[int], type[float]]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


def least_delay(attempt: int) -> float:
    """Return the shortest delay after an attempt, in seconds: 0 after the first four, then up to a second.

    A job that fails at once, again and again, must not keep a worker busy.
    """
    return 0.0 if attempt <= _AT_ONCE else min(0.001 * 2.0 ** min(attempt - _AT_ONCE, 10), 1.0)


class _Stored(Struct, frozen=True, omit_defaults=True):
    """A task as workers describe it: the part of its policy that decides how long retries take, and its parameters.

    Other fields may come with later releases.
    """

    attempts: int
    interval: float
    factor: float
    max_interval: float
    jitter: float
    parameters: tuple[str, ...] = ()


_POLICY_FIELDS: Final = RetryFields.__struct_fields__
_decode: Final = msgspec.json.Decoder(_Stored).decode


def override(policy: Retry, own: RetryFields | None) -> Retry:
    """Return a task's policy with the values that the payload of a job overrides.

    Raises:
        ConfigError: the payload's values are not valid.
    """
    if own is None:
        return policy
    named = {name: getattr(own, name) for name in own.__struct_fields__}
    return msgspec.structs.replace(policy, **{name: value for name, value in named.items() if value is not UNSET})


def write_policy(policy: Retry, parameters: tuple[str, ...] = ()) -> str:
    """Return a policy as it is stored. `parameters`: of the task, if they may be passed by position."""
    fields = {name: getattr(policy, name) for name in _POLICY_FIELDS}
    return msgspec.json.encode(_Stored(**fields, parameters=parameters)).decode()


def parameters_of(stored: str) -> tuple[str, ...]:
    """Return the parameters that are stored with a policy; none if it is not valid."""
    try:
        return _decode(stored).parameters
    except (msgspec.MsgspecError, RecursionError):
        return ()


def task_of(payload: bytes) -> str | None:
    """Return the task of a payload; None if it is not valid."""
    try:
        return decode_payload(payload).task
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def read_policy(stored: str) -> Retry | None:
    """Return the policy of a task, as it is stored; None if it is not valid."""
    try:
        found = _decode(stored)
        return Retry(**{name: getattr(found, name) for name in _POLICY_FIELDS})
    except (msgspec.MsgspecError, RecursionError, ConfigError):
        return None


def policy_of(stored: str, payload: bytes) -> Retry | None:
    """Return the policy of a job by that of its task; None if one of them is not valid."""
    try:
        policy = read_policy(stored)
        return None if policy is None else override(policy, decode_payload(payload).retry)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError, ConfigError):
        return None
