"""How long to wait: between the attempts of a job, and between two tries to reach Redis."""

from __future__ import annotations

import random

from msgspec import Struct

from evsched.errors import ConfigError


class Retry(Struct, frozen=True, kw_only=True):
    """A task's retry policy.

    The delay after attempt n (from 1) is `min(interval * factor^(n-1), max_interval) + random(0..jitter)`,
    all in seconds. `attempts` counts all runs, the first and those that a crash cut short included: 1 means
    that the job is never run again.
    """

    attempts: int = 5
    interval: float = 1.0
    factor: float = 2.0
    max_interval: float = 3600.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        wrong = [
            f"{name} is {value!r}, must be {least} or more"
            for name, value, least in (
                ("attempts", self.attempts, 1),
                ("interval", self.interval, 0),
                ("factor", self.factor, 1),
                ("max_interval", self.max_interval, 0),
                ("jitter", self.jitter, 0),
            )
            if not least <= value < float("inf")
        ]
        if wrong:
            raise ConfigError("Retry: " + "; ".join(wrong))

    def delay(self, attempt: int) -> float:
        """Return the seconds from the end of `attempt` to the next."""
        return self._interval(attempt) + random.uniform(0, self.jitter)  # noqa: S311 - no secret

    def worst_case(self) -> float:
        """Return the longest that the policy waits in all, in seconds: one delay for each attempt.

        The rule counts the delay after the last attempt too, though that is not waited: room for the runs themselves.
        Three attempts, interval 0.2 s, jitter 0.5 s: (0.2 + 0.4 + 0.8) + 3 * 0.5 = 2.9 s.
        """
        total = self.attempts * self.jitter
        for attempt in range(1, self.attempts + 1):
            wait = self._interval(attempt)
            if wait == self._interval(attempt + 1):  # it grows no more
                return total + wait * (self.attempts - attempt + 1)
            total += wait
        return total

    def _interval(self, attempt: int) -> float:
        try:
            return min(self.interval * self.factor ** (attempt - 1), self.max_interval)
        except OverflowError:  # a payload may name any factor; a float ends at 2^1024
            return self.max_interval if self.interval else 0.0


def reconnect_delay(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row to reach Redis.

    It doubles from 25 ms and ends at 1 s, so that work resumes soon after Redis does. Half of it is random, so that
    a fleet does not come back in one instant (full jitter would now and then be a hot loop).
    """
    ceiling = min(0.025 * 2 ** min(failures, 10), 1.0)
    return ceiling / 2 + random.uniform(0, ceiling / 2)  # noqa: S311 - no secret
