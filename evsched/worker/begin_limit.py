"""How many jobs may begin together without keeping each other waiting. Pure.

The handlers on an event loop take turns. While one computes, a job that was fetched with it cannot begin, although
another worker may be idle. So the jobs that are fetched together should begin within `BEGIN_WITHIN`. How many those are
is measured: a worker begins with one job, and after quick ones the limit grows, to `GROWTH` times as many each time. As
long as jobs take longer than that to begin, the next ones are fetched only when these have begun.
"""

from __future__ import annotations

import math
from typing import Final

BEGIN_WITHIN: Final = 0.01
"""Seconds. A job that becomes due meanwhile begins after those that were fetched, even if its priority is higher."""

GROWTH: Final = 4
"""From one job to 256 in four steps."""

KNOWN_FOR: Final = 1.0
"""Seconds. What was measured before may have been jobs of another kind."""


class BeginLimit:
    """The limit of jobs that begin together, which adapts to how long they take to begin."""

    def __init__(self) -> None:
        self._limit = 1
        self._quick = False
        """The last jobs began within `BEGIN_WITHIN`."""
        self._measured = -math.inf
        self._beginning = 0
        """How many times jobs were handed out that have not all begun."""

    @property
    def waits(self) -> bool:
        """Whether to fetch nothing until the jobs that were handed out have begun."""
        return self._beginning > 0 and not self._quick

    def is_slow(self, now: float) -> bool:
        """Return whether the last jobs took long to begin. `now` is of the monotonic clock, here and below."""
        return not self._quick and now <= self._measured + KNOWN_FOR

    def room(self, now: float) -> int:
        """Return how many jobs may be fetched now."""
        if now > self._measured + KNOWN_FOR:
            self._limit, self._quick = 1, False
        return 0 if self.waits else self._limit

    def handed_out(self) -> None:
        """Note that jobs were handed out; `begun` must follow."""
        self._beginning += 1

    def begun(self, count: int, seconds: float, now: float) -> None:
        """Note that so many jobs, which were handed out together, have begun, and how long that took."""
        self._beginning -= 1
        self._measured = now
        self._quick = seconds <= BEGIN_WITHIN
        would_begin = count * BEGIN_WITHIN / max(seconds, 1e-9)
        if self._quick:
            self._limit = max(self._limit, int(min(would_begin, GROWTH * count)))
        else:
            self._limit = max(1, int(would_begin))

    def lower(self, limit: int) -> None:
        """Set a lower limit; it grows from there."""
        self._limit = min(self._limit, limit)
