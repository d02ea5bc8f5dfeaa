"""Decides when to report that Redis refuses the calls of a loop, and that it accepts them again.

The first pass that succeeds is reported. If Redis refuses again soon after, some passes fail and others do not. Then a
success is reported only when it has lasted, so that the log does not fill with both.
"""

from __future__ import annotations

import math
from typing import Final

LASTING: Final = 10.0
"""Seconds after which a success, or a connection, counts as lasting."""


class Refusals:
    """The refusals of one loop, and which of them were reported. Times are monotonic."""

    def __init__(self) -> None:
        self._since: float | None = None
        """When the refusals began that were reported; None = none were, or their end was reported too."""
        self._last = 0.0
        self._accepted = -math.inf
        """When an end of refusals was last reported."""
        self._unsteady = False
        """That report came too early, so the next success is reported only if it lasts."""

    def refused(self, now: float) -> bool:
        """Note a refusal; return whether to report it."""
        self._last = now
        if self._since is not None:
            return False
        self._since = now
        self._unsteady = now - self._accepted < LASTING
        return True

    def accepted(self, now: float) -> float | None:
        """Note a success; return for how many seconds Redis refused, or None if there is nothing to report."""
        if self._since is None or (self._unsteady and now - self._last < LASTING):
            return None
        seconds, self._since, self._accepted = now - self._since, None, now
        return seconds
