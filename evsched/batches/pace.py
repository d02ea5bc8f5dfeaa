"""How fast the jobs of a batch end, from several readings of its counts."""

from __future__ import annotations

from collections import deque
from typing import Final

from evsched.display import format_duration

_SPAN: Final = 60.0
"""Seconds of the readings that count: the rate is that of the last minute."""

_LEAST: Final = 1.0
"""Seconds between two readings from which on they say something."""


_STILL: Final = 10.0
"""Seconds without an end from which on they are worth a sentence."""


class Pace:
    """The readings of one batch."""

    def __init__(self) -> None:
        self._readings = deque[tuple[float, int]]()

    def note(self, at: float, ended: int) -> None:
        """Note a reading: how many jobs have ended, on a clock in seconds that is never set."""
        if self._readings and ended < self._readings[-1][1]:
            self._readings.clear()  # dead jobs were revived
        self._readings.append((at, ended))
        while len(self._readings) > 2 and self._readings[1][0] <= at - _SPAN:
            self._readings.popleft()

    @property
    def seconds(self) -> float:
        """The time between the first reading and the last."""
        return self._readings[-1][0] - self._readings[0][0] if self._readings else 0.0

    @property
    def rate(self) -> float | None:
        """How many jobs have ended a second, lately; None = there are no two readings yet."""
        if self.seconds < _LEAST:
            return None
        return (self._readings[-1][1] - self._readings[0][1]) / self.seconds

    def words(self, left: int) -> str:
        """Say how fast jobs end, and when the rest has ended at that rate. `left`: how many have not ended."""
        rate = self.rate
        if rate is None:
            return "the rate is known in a moment"
        if not left:
            return "all have ended"
        if not rate and self.seconds < _STILL:
            return "the rate is known in a moment"
        if not rate:
            return f"none has ended in the last {format_duration(self.seconds)}"
        return f"{_each(rate)}; at this rate the rest takes {format_duration(left / rate)}"


def _each(rate: float) -> str:
    for unit, seconds in (("second", 1.0), ("minute", 60.0), ("hour", 3600.0)):
        if rate * seconds >= 1:
            return f"{rate * seconds:,.0f} a {unit}"
    return f"{rate * 86400:,.1f} a day"
