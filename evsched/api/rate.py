"""A token bucket: how many requests a second a caller may make. Pure."""

from __future__ import annotations


class Bucket:
    """Lets `rate` requests a second through, and after a pause as many at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate)
        self._left = self._most
        self._at = 0.0

    def take(self, now: float) -> float:
        """Let one request through and return 0, or return the seconds until the next may come. `now`: monotonic."""
        self._left = min(self._most, self._left + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0
