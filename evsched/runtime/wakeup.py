"""Sleep until an exact moment, or until another task ends the sleep.

An event loop rounds its timers to a millisecond, and uvloop's fire early. So the timer ends a little before the moment,
and the sleeper yields to other tasks until the moment has come.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

_EARLY: Final = 0.0015
"""Seconds by which a timer may be late: a millisecond of rounding, and the time that the kernel takes to wake up."""


class Wakeup:
    """For one sleeper at a time. `ring` ends the sleep under way, or else the next one as soon as it begins."""

    def __init__(self) -> None:
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """End the sleep that is under way, or the next one."""
        self._rung = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def sleep(self, until: float, roughly: float = float("inf")) -> bool:
        """Sleep until that moment of the monotonic clock; return whether `ring` ended the sleep.

        `roughly`: another moment that ends the sleep. It may be missed by a millisecond, which saves the CPU that the
        exact one costs, unless it is so near that a timer cannot tell.
        """
        loop = asyncio.get_running_loop()
        now = time.monotonic()
        early = until - _EARLY if now + _EARLY < roughly else min(until, roughly) - _EARLY
        until, early = min(until, roughly), min(early, roughly)
        if not self._rung and early > now:
            self._sleeper = sleeper = loop.create_future()
            timer = loop.call_at(early, _wake, sleeper)
            try:
                await sleeper
            finally:
                timer.cancel()
                self._sleeper = None
        while not self._rung and time.monotonic() < until:  # noqa: ASYNC110 - no event is this exact
            await asyncio.sleep(0)
        rung, self._rung = self._rung, False
        return rung


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
