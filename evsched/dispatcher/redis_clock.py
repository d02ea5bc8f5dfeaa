"""Detects that Redis's clock was set, and by how much, with this host's monotonic clock.

Redis's clock decides what is due, so after a jump all times that were computed from it are wrong. A wall clock cannot
detect the jump, because it may have been set too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from evsched import events
from evsched.events import Emit

_JUMP: Final = 1.0
"""Seconds. Smaller jumps are corrections by NTP, and do not make a job noticeably early or late."""


class RedisClock:
    """Compares the times in the replies of Redis. `jumped()` is called after a jump."""

    def __init__(self, emit: Emit, jumped: Callable[[], None]) -> None:
        self._emit = emit
        self._jumped = jumped
        self._lead: tuple[float, float] | None = None
        """Bounds of Redis's clock minus the monotonic clock, by the last reply."""

    def read(self, now: float, sent: float) -> None:
        """Compare the time `now` in a reply with the last one. `sent`: when the call was sent, by the monotonic clock.

        Redis read its clock between `sent` and this moment, so a slow reply does not count as a jump. Neither does
        drift, because each reply is compared with the one before it only.
        """
        least, most = now - time.monotonic(), now - sent
        before, self._lead = self._lead, (least, most)
        if before is None:
            return
        jump = least - before[1] if least > before[1] else min(most - before[0], 0.0)
        if abs(jump) >= _JUMP:
            self._emit(events.ClockJumped(seconds=jump))
            self._jumped()
