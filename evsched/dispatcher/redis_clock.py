"""Redis's clock, as this host's monotonic clock sees it: whether it was set, and by how much.

Redis's clock decides what is due, so a jump of it is a fact that everybody must hear of. No wall clock can tell it, for
that may have been set too; a monotonic one runs on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from evsched import events
from evsched.events import Emit

_JUMP: Final = 1.0
"""Seconds: less is what NTP corrects without a word, and what no due notices."""


class RedisClock:
    """Compares the times that replies tell. `jumped()` is called after a jump."""

    def __init__(self, emit: Emit, jumped: Callable[[], None]) -> None:
        self._emit = emit
        self._jumped = jumped
        self._lead: tuple[float, float] | None = None
        """Redis's clock less ours was between these."""

    def heard(self, now: float, sent: float) -> None:
        """Take the time that a reply tells, to a call sent at that moment of the monotonic clock.

        Redis read it between then and now, so a slow reply is no jump. A clock that drifts is none either: each reply
        is compared with the one before.
        """
        least, most = now - time.monotonic(), now - sent
        before, self._lead = self._lead, (least, most)
        if before is None:
            return
        jump = least - before[1] if least > before[1] else min(most - before[0], 0.0)
        if abs(jump) >= _JUMP:
            self._emit(events.ClockJumped(seconds=jump))
            self._jumped()
