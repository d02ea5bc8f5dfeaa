"""When to report that Redis refuses what a loop asks, and that it no longer does.

That it accepts again is reported at the first pass that succeeds. If it refuses again soon after, some passes fail and
others do not: then success is reported only when it has lasted.
"""

from __future__ import annotations

import math
from typing import Final

LASTING: Final = 10.0
"""Seconds after which a success, or a connection, counts as lasting."""


class Refusals:
    """What was reported of the refusals of one loop. Times are monotonic."""

    def __init__(self) -> None:
        self._since: float | None = None
        """When Redis began to refuse; None = that was not reported, or its end was."""
        self._last = 0.0
        self._accepted = -math.inf
        """When it was last reported that Redis accepts again."""
        self._unsteady = False
        """That report came too early, so the next success must last to be reported."""

    def refused(self, now: float) -> bool:
        """Note a refusal; return whether to report it."""
        self._last = now
        if self._since is not None:
            return False
        self._since = now
        self._unsteady = now - self._accepted < LASTING
        return True

    def accepted(self, now: float) -> float | None:
        """Note a success; return how long Redis refused, if that is to be reported."""
        if self._since is None or (self._unsteady and now - self._last < LASTING):
            return None
        seconds, self._since, self._accepted = now - self._since, None, now
        return seconds
