"""Decides whether this dispatcher leads one queue or is a reserve for it, and when a reserve looks. Pure.

Times are monotonic. All dispatchers wake up for the same due job. The quickest one leads the queue. One that came too
late becomes a reserve: it lets the leader act first, looks later, and steps only if a job is overdue. Then it leads.

A reserve hears from Redis that the leader removes jobs from the schedule. While it hears that, it looks seldom. So a
job costs one step, however many dispatchers there are. If the leader dies or cannot keep up, a reserve takes the queue.
"""

from __future__ import annotations

import random
from typing import Final

_BEHIND: Final = (0.001, 0.004)
"""Seconds by which a reserve lets the leader act first, least and most: longer than a round trip, but hardly
noticeable. A job that is overdue by less than the least is still the leader's."""

_TRUST: Final = 0.004
"""Seconds by which both are longer for a reserve that has seen the leader keep up."""

_APART: Final = (0.02, 0.05)
"""Seconds between two looks of a reserve, and from a removal to its next look, at most. If the leader dies, the next
job is late by no more than that. At random, so that the queues of a dead leader fall to several reserves."""

_REMOVALS: Final = 4.0
"""Times that long, a reserve that hears removals does not look: perhaps users remove jobs, and the leader is dead."""

_RECENT: Final = 0.01
"""If a step finds nothing, and another dispatcher removed jobs while the step was under way or up to so many seconds
before or after, the other one was quicker."""

_SAME: Final = 0.001
"""Seconds by which the same due may differ after it was computed from a reply."""

_PATIENCE: Final = (0.1, 0.3)
"""Seconds between two looks of a reserve in a flood, in which it does not hear what the others do. Fifty of them then
look as often as the leader."""

_NEVER: Final = float("-inf")
_NOTHING: Final = float("inf")


class Rivals:
    """What this dispatcher has observed of the others that serve the same queue."""

    def __init__(self) -> None:
        self.reserve = False
        """Another dispatcher is quicker."""
        self._moved = _NEVER
        """When a step of this dispatcher last moved jobs."""
        self._in_vain = (_NEVER, _NEVER)
        """When a step of this dispatcher that found nothing, although a job was expected, was sent and answered."""
        self._removed = _NEVER
        """When another dispatcher last removed something."""
        self._seen = _NEVER
        """The due of the job that the last look found, by Redis's clock, until a step follows."""
        self._looked = self._stepped = _NEVER
        """When this dispatcher last sent a step or a look, and when a step."""
        self._awaited = _NOTHING
        """The first event or due time since then."""
        self._apart = 0.0
        """Seconds between two looks of a reserve. It doubles with each look that finds no job overdue: a dispatcher
        without a rival, which took a user's removal for one, leads again after its first look."""
        self._echoes = 0
        """Own removals that are not reported yet."""

    def delay(self) -> float:
        """Return the seconds to wait for the leader; 0 = this is the leader."""
        return random.uniform(*_BEHIND) if self.reserve else 0.0  # noqa: S311 - no secret

    def stepping(self, now: float) -> None:
        """Note that a step is being sent."""
        self._stepped = now
        self.looking(now)

    def looking(self, now: float) -> None:
        """Note that a step or a look is being sent: it sees what was awaited."""
        self._looked, self._awaited = now, _NOTHING

    def trust(self) -> None:
        """Note that a look found no job overdue: if this is a reserve, the leader keeps up."""
        if self.reserve:
            self._apart = min(2 * self._apart or _TRUST, random.uniform(*_APART))  # noqa: S311 - no secret

    def look_at(self, moment: float) -> float:
        """Return when a reserve looks because of an event at that moment, or of a job that is due then."""
        self._awaited = min(self._awaited, moment)
        behind = self._awaited + self.delay() + min(self._apart, _TRUST)
        return max(behind, self._looked + self._apart) if self._removed < self._awaited else self.postponed()

    def postponed(self) -> float:
        """Return until when a reserve need not look, because it hears the leader act."""
        if self._removed < self._awaited:
            return _NEVER
        return min(self._removed + self._apart, self._awaited + _REMOVALS * self._apart)

    def overdue(self, now: float, due: float) -> bool:
        """Return whether to step for a job that a look found, rather than to leave it to the leader."""
        return now - due >= (_BEHIND[0] + min(self._apart, _TRUST) if self.reserve else 0.0)

    def patience(self) -> float:
        """Return the seconds between two looks of a reserve in a flood."""
        return random.uniform(*_PATIENCE)  # noqa: S311 - no secret

    def saw(self, due: float) -> None:
        """Note that a look found a job that is due, so a step follows."""
        self._seen = due

    def removed(self, now: float) -> None:
        """Note that jobs were removed from the schedule: by another dispatcher, unless this one has just moved some."""
        if self._echoes and now - self._moved <= _RECENT:
            self._echoes -= 1
            return
        self._removed = now
        self._judge()

    def found(self, now: float) -> None:
        """Note that a step moved jobs, so this dispatcher leads. One removal is its own, reported before or after."""
        self._echoes = 0 if self._removed >= self._stepped else 1
        self._moved, self._removed, self.reserve = now, _NEVER, False
        self._seen, self._apart = _NEVER, 0.0

    def found_nothing(self, now: float, nearest: float = float("inf")) -> None:
        """Note that a step found nothing although a job was expected.

        `nearest`: the next due, by Redis's clock. If a look has just found an earlier one, another dispatcher was
        quicker.
        """
        self._in_vain = self._stepped, now
        if _NEVER < self._seen < nearest - _SAME:
            self.reserve = True
        self._seen = _NEVER
        self._judge()

    def _judge(self) -> None:
        sent, answered = self._in_vain
        # While another step is under way, the removal may be its own.
        if sent == self._stepped and sent - _RECENT < self._removed < answered + _RECENT:
            self.reserve = True
