"""How soon a dispatcher answers an event of one queue, and whether by a step or by a look. Pure; times are monotonic.

An event that comes after a silence, or after events that all brought something due, most likely brings something due
too: it is answered by a step. Others are answered by looks. Looks are `_GAP` apart while they find something due, and
up to `LOOK_MOST` if they do not: a flood of far jobs costs 200 looks a second, and delays no job by more than that.
"""

from __future__ import annotations

from typing import Final

_SILENCE: Final = 0.01
"""Seconds without a look or step after which an event is answered by a step: at most 100 of these a second."""

_GAP: Final = 0.001
"""Seconds between two steps or looks that events ask for, counted from when they are sent: a producer that schedules
without pause must not keep Redis busy with our looks."""

LOOK_MOST: Final = 0.005
"""Seconds between two looks that find nothing: in a flood, a job that is due at once may be late by so much."""

_FRUITFUL: Final = 2
"""Events in a row that brought something due, after which the next is answered by a step."""


class Pace:
    """When the last steps and looks of one queue were sent, and what they found."""

    def __init__(self) -> None:
        self.last_step = 0.0
        self._touched = 0.0
        """The last step or look."""
        self._gap = _GAP
        self._fruitful = 0
        """Steps after events that moved something, in a row."""

    def prefers_step(self, now: float) -> bool:
        """Tell whether an event is better answered by a step than by a look."""
        return now - self._touched >= _SILENCE or self._fruitful >= _FRUITFUL

    def next_step(self, at: float) -> float:
        """Return when a step that an event asks for may be sent, at the earliest at `at`."""
        return max(at, self.last_step + _GAP)

    def next_look(self, at: float) -> float:
        """Return when a look that an event asks for may be sent, at the earliest at `at`."""
        return max(at, self._touched + self._gap)

    def stepping(self, now: float) -> None:
        """Note that a step is being sent."""
        self.last_step = self._touched = now

    def stepped(self, *, by_event: bool, found: bool) -> None:
        """Note what a step found."""
        if by_event:
            self._fruitful = self._fruitful + 1 if found else 0
        if found:
            self._gap = _GAP

    def looking(self, now: float) -> None:
        """Note that a look is being sent."""
        self._touched = now

    def looked(self, *, found: bool) -> None:
        """Note what a look found."""
        if found:
            self._gap = _GAP
        else:
            self._gap, self._fruitful = min(2 * self._gap, LOOK_MOST), 0
