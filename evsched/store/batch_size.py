"""How many jobs one script may move without keeping other clients of Redis waiting too long. Pure.

Redis does one thing at a time: while a script runs, every other client waits. What a job costs depends on the machine,
its load and the jobs themselves (limits of groups, long payloads), so no fixed number is right. The limit falls by a
quarter after a call that took too long, and rises again in small steps.

The duration of a call is measured by Redis's own clock, with TIME before and after it in the same round trip, so
neither the network nor the wait in Redis's queue counts. A script cannot measure itself: on Valkey, TIME does not
advance within a script. Calls that move few jobs are not measured, so sparse jobs pay nothing.
"""

from __future__ import annotations

from typing import Final

BUDGET: Final = 0.003
"""Seconds that one script should take, at most. 250 jobs take about 2 ms; often two scripts follow each other."""

LEAST: Final = 16
"""The limit falls no further: for fewer jobs, the cost of the call itself outweighs that of the jobs."""

_STEPS: Final = 32
"""Fast calls that raise the limit from nothing to its maximum."""


class Batch:
    """The limit of jobs in a call, which adapts to what calls cost. It begins at `most`, and never exceeds it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._least = min(LEAST, most)
        self.limit = most

    def worth_timing(self, count: int) -> bool:
        """Return whether a call for so many jobs is worth measuring."""
        return count >= self._least

    def took(self, count: int, seconds: float) -> None:
        """Record how long a script took for so many jobs."""
        if seconds > BUDGET:
            self.limit = max(self._least, min(self.limit, count * 3 // 4))
        elif count >= self.limit:
            self.limit = min(self._most, self.limit + 1 + self._most // _STEPS)
