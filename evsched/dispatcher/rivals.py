"""Whether this dispatcher is in front or in reserve for one queue. Pure; times are monotonic.

Dispatchers are equals, and all wake for the same due. The quickest stays in front. One that came too late becomes a
reserve: it waits a random moment, then looks, and steps if the job is still there. Then it is in front again. So a job
costs one step however many dispatchers there are, and the death of the one in front costs some milliseconds.
"""

from __future__ import annotations

import random
from typing import Final

_BEHIND: Final = (0.001, 0.004)
"""Seconds by which a reserve waits: more than the round trip of the one in front, and bearable as lateness."""

_RECENT: Final = 0.01
"""Seconds within which a removal from the schedule explains that a step found nothing."""

_NEVER: Final = float("-inf")


class Rivals:
    """What this dispatcher knows of the others that serve the same queue."""

    def __init__(self) -> None:
        self.reserve = False
        """Another dispatcher is quicker."""
        self._moved = _NEVER
        """When our last step moved jobs."""
        self._vain = _NEVER
        """When our last step found nothing, though it had a reason."""
        self._removed = _NEVER
        """When another dispatcher last removed something."""

    def delay(self) -> float:
        """Return the seconds to wait for the one in front; 0 = we are in front."""
        return random.uniform(*_BEHIND) if self.reserve else 0.0  # noqa: S311 - no secret

    def removed(self, now: float) -> None:
        """Note that jobs left the schedule: by another dispatcher, unless we have just moved some."""
        if now - self._moved > _RECENT:
            self._removed = now
            self._judge()

    def found(self, now: float) -> None:
        """Note that our step moved jobs: we are in front. The removal that is heard now is our own."""
        self._moved, self._removed, self.reserve = now, _NEVER, False

    def found_nothing(self, now: float) -> None:
        """Note that our step had a reason, and found nothing."""
        self._vain = now
        self._judge()

    def _judge(self) -> None:
        if abs(self._vain - self._removed) < _RECENT:
            self.reserve = True
