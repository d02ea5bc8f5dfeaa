"""A task's retry policy: how long to wait between the attempts of a job."""

from __future__ import annotations

import random
from typing import Any, Final

from msgspec import Struct

from evsched.errors import ConfigError

ATTEMPTS_MOST: Final = 1000
"""Attempts of a job, at most: at a second each, a quarter of an hour."""

_AT_ONCE: Final = 4
"""The last attempt after which a policy may let the next one begin at once."""


class Retry(Struct, frozen=True, kw_only=True):
    """A task's retry policy.

    The delay after attempt n (from 1) is `min(interval * factor^(n-1), max_interval) + random(0..jitter)`, all in
    seconds, and never shorter than `least_delay`. `attempts` counts all runs, including the first and those that a
    crash ended: 1 means that the job is never run again.
    """

    attempts: int = 5
    interval: float = 1.0
    factor: float = 2.0
    max_interval: float = 3600.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        wrong = [
            f"{name} is {value!r}, must be {f'1 to {ATTEMPTS_MOST}' if name == 'attempts' else f'{least} or more'}"
            for name, value, least in (
                ("attempts", self.attempts, 1),
                ("interval", self.interval, 0),
                ("factor", self.factor, 1),
                ("max_interval", self.max_interval, 0),
                ("jitter", self.jitter, 0),
            )
            if not _is_number(value, int if name == "attempts" else (int, float))
            or not least <= value < float("inf")
            or (name == "attempts" and value > ATTEMPTS_MOST)
        ]
        if wrong:
            raise ConfigError("Retry: " + "; ".join(wrong))

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


def _is_number(value: Any, types: type[int] | tuple[type[int], type[float]]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


def least_delay(attempt: int) -> float:
    """Return the shortest delay after an attempt, in seconds: 0 after the first four, then up to a second.

    A job that fails at once, again and again, must not keep a worker busy.
    """
    return 0.0 if attempt <= _AT_ONCE else min(0.001 * 2.0 ** min(attempt - _AT_ONCE, 10), 1.0)
