"""Decides whether this dispatcher is in front or a reserve for one queue. Pure; times are monotonic.

All dispatchers wake up for the same due job. The quickest one stays in front. One that came too late becomes a reserve:
it waits for a random time, looks, and steps only if the job is still there. If it is, the reserve is in front again. So
a job costs one step, however many dispatchers there are, and if the one in front dies, a job is late by some
milliseconds.
"""

from __future__ import annotations

import random
from typing import Final

_BEHIND: Final = (0.001, 0.004)
"""Seconds that a reserve waits, least and most: longer than a round trip of the one in front, but hardly noticeable."""

_RECENT: Final = 0.01
"""If a step finds nothing within so many seconds of a removal by another dispatcher, the other one was quicker."""

_SAME: Final = 0.001
"""Seconds by which the same due may differ after it was computed from a reply."""

_PATIENCE: Final = (0.1, 0.3)
"""Seconds between two looks of a reserve in a flood, in which it does not hear what the others do. Fifty of them then
look as often as the one in front."""

_NEVER: Final = float("-inf")


class Rivals:
    """What this dispatcher has observed of the others that serve the same queue."""

    def __init__(self) -> None:
        self.reserve = False
        """Another dispatcher is quicker."""
        self._moved = _NEVER
        """When a step of this dispatcher last moved jobs."""
        self._found_nothing = _NEVER
        """When a step of this dispatcher last found nothing although a job was expected."""
        self._removed = _NEVER
        """When another dispatcher last removed something."""
        self._seen = _NEVER
        """The due of the job that the last look found, by Redis's clock, until a step follows."""

    def delay(self) -> float:
        """Return the seconds to wait for the dispatcher in front; 0 = this is the one."""
        return random.uniform(*_BEHIND) if self.reserve else 0.0  # noqa: S311 - no secret

    def patience(self) -> float:
        """Return the seconds between two looks of a reserve in a flood."""
        return random.uniform(*_PATIENCE)  # noqa: S311 - no secret

    def saw(self, due: float) -> None:
        """Note that a look found a job that is due, so a step follows."""
        self._seen = due

    def removed(self, now: float) -> None:
        """Note that jobs were removed from the schedule: by another dispatcher, unless this one has just moved some."""
        if now - self._moved > _RECENT:
            self._removed = now
            self._judge()

    def found(self, now: float) -> None:
        """Note that a step moved jobs, so this dispatcher is in front. The removal reported next is its own."""
        self._moved, self._removed, self.reserve = now, _NEVER, False
        self._seen = _NEVER

    def found_nothing(self, now: float, nearest: float = float("inf")) -> None:
        """Note that a step found nothing although a job was expected.

        `nearest`: the next due, by Redis's clock. If a look has just found an earlier one, another dispatcher was
        quicker.
        """
        self._found_nothing = now
        if _NEVER < self._seen < nearest - _SAME:
            self.reserve = True
        self._seen = _NEVER
        self._judge()

    def _judge(self) -> None:
        if abs(self._found_nothing - self._removed) < _RECENT:
            self.reserve = True
