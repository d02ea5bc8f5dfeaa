"""How many jobs one script may move: as many as Redis can do without keeping others waiting. Pure.

Redis does one thing at a time, so while a script runs every other client waits. What a job costs depends on the
machine, on what else runs there and on the jobs themselves (limits of groups, long payloads), so no fixed number is
right: the limit falls by a quarter after a call that took too long, and rises again in small steps.

How long a call took is read from Redis's own clock, by TIME around it in the same round trip. So neither the network
nor the wait in Redis's queue counts. A script cannot measure itself: TIME stands still within one on Valkey. Calls that
move few jobs are not measured, so sparse jobs pay nothing.
"""

from __future__ import annotations

from typing import Final

BUDGET: Final = 0.003
"""Seconds that one script should take at the most. 250 jobs take about 2 ms; two scripts often follow each other."""

LEAST: Final = 16
"""The limit falls no further: for fewer jobs, what a call costs by itself outweighs what they cost."""

_STEPS: Final = 32
"""Quick calls that bring the limit from nothing to its most."""


class Batch:
    """The limit of jobs in a call, which adapts to what calls cost. It begins with `most`, and never exceeds it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._least = min(LEAST, most)
        self.limit = most

    def worth_timing(self, count: int) -> bool:
        """Return whether a call for so many jobs says something of the cost."""
        return count >= self._least

    def took(self, count: int, seconds: float) -> None:
        """Note that a script took so long for so many jobs."""
        if seconds > BUDGET:
            self.limit = max(self._least, min(self.limit, count * 3 // 4))
        elif count >= self.limit:
            self.limit = min(self._most, self.limit + 1 + self._most // _STEPS)
