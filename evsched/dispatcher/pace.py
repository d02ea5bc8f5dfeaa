"""Decides how soon an event of a queue is answered, and whether by a step or by a look. Pure; times are monotonic.

An event after a silence, or after events that all brought due jobs, most likely brings a due job too, so it is answered
by a step. Other events are answered by looks. Looks are `_GAP` apart while they find something due, and up to
`LOOK_MOST` apart while they do not. So a flood of jobs that are due much later costs 300 looks a second, and delays no
job by more than 3 ms, and what the timer rounds.
"""

from __future__ import annotations

from typing import Final

_SILENCE: Final = 0.01
"""Seconds without a look or step after which an event is answered by a step: at most 100 such steps a second."""

_GAP: Final = 0.001
"""Seconds between two steps or looks that answer events, counted from when they are sent. So a producer that schedules
without pause does not cause more of them than Redis can bear."""

LOOK_MOST: Final = 0.003
"""Seconds between two looks that find nothing. In a flood, a job that is due at once may be late by that much."""

_FRUITFUL: Final = 2
"""Events in a row that brought due jobs, after which the next event is answered by a step."""


class Pace:
    """The times of the last steps and looks of one queue, and what they found."""

    def __init__(self) -> None:
        self.last_step = 0.0
        self._touched = 0.0
        """When the last step or look was sent."""
        self._gap = _GAP
        self._fruitful = 0
        """Steps in a row that answered events and found due jobs."""
        self._found = False
        """The last step found due jobs."""

    def prefers_step(self, now: float) -> bool:
        """Return whether an event should be answered by a step rather than by a look."""
        return now - self._touched >= _SILENCE or self._fruitful >= _FRUITFUL

    def guesses(self, now: float) -> bool:
        """Return whether only the silence before an event suggests a due job: the last step found none."""
        return now - self._touched >= _SILENCE and not self._found

    def next_step(self, at: float) -> float:
        """Return when a step that answers an event may be sent: at `at`, or later."""
        return max(at, self.last_step + _GAP)

    def next_look(self, at: float) -> float:
        """Return when a look that answers an event may be sent: at `at`, or later."""
        return max(at, self._touched + self._gap)

    def stepping(self, now: float) -> None:
        """Note that a step is being sent."""
        self.last_step = self._touched = now

    def stepped(self, *, by_event: bool, found: bool) -> None:
        """Note what a step found."""
        self._found = found
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
