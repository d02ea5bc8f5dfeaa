"""What one loop did lately: whether it has come round when it said that it would. What liveness is judged by."""

from __future__ import annotations

import time
from typing import Final

SLACK: Final = 15.0
"""Seconds that a pass may take: two calls that wait for a connection and an answer in vain (7 s each), and a pause."""


class Pulse:
    """The pulse of one loop, by the monotonic clock. For any thread."""

    def __init__(self, who: str) -> None:
        self.who = who
        self._since = self._by = time.monotonic()
        self.rest()

    def expect(self, within: float = 0.0) -> None:
        """Note that the loop has come round, and that it does so again within so many seconds."""
        self._since = time.monotonic()
        self._by = self._since + within + SLACK

    def rest(self) -> None:
        """Note that the loop waits for others, for as long as it takes."""
        self._by = float("inf")

    def wrong(self) -> str | None:
        """Return what is wrong, None = nothing."""
        now = time.monotonic()
        return f"the {self.who} loop has not come round for {now - self._since:.0f} s" if now > self._by else None
