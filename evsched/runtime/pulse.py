"""Whether a loop hangs: each loop says when its next pass will begin, and is late if it does not. For /healthz."""

from __future__ import annotations

import time
from typing import Final

SLACK: Final = 15.0
"""Seconds that a pass may take: two calls that time out, both when connecting and when reading (7 s each), and a
pause."""


class Pulse:
    """The pulse of one loop. For any thread."""

    def __init__(self, who: str) -> None:
        self.who = who
        self._since = self._by = time.monotonic()
        self.rest()

    def expect(self, within: float = 0.0) -> None:
        """Note that a pass begins, and that the next one begins within so many seconds."""
        self._since = time.monotonic()
        self._by = self._since + within + SLACK

    def rest(self) -> None:
        """Note that the loop waits without a limit."""
        self._by = float("inf")

    def problem(self) -> str | None:
        """Return what is wrong; None = the loop is not late."""
        now = time.monotonic()
        return f"the {self.who} loop has not run for {now - self._since:.0f} s" if now > self._by else None
