"""An alarm: sleep until an exact moment, or until it is rung.

An event loop's timers are rounded to a millisecond, and uvloop's fire early. So the loop's timer ends a little before
the moment, and the rest is waited out by giving way to the loop's other tasks.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

_EARLY: Final = 0.0015
"""Seconds: what a loop's timer may be late by, a millisecond of rounding and the kernel's wake-up."""


class Wakeup:
    """For one sleeper at a time. A ring that comes while nobody sleeps ends the next sleep at once."""

    def __init__(self) -> None:
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """End the sleep, or the next one."""
        self._rung = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def sleep(self, until: float) -> bool:
        """Sleep until that moment of the monotonic clock; return whether the alarm was rung before it."""
        loop = asyncio.get_running_loop()
        early = until - _EARLY
        if not self._rung and early > time.monotonic():
            self._sleeper = sleeper = loop.create_future()
            timer = loop.call_at(early, _wake, sleeper)
            try:
                await sleeper
            finally:
                timer.cancel()
                self._sleeper = None
        while not self._rung and time.monotonic() < until:  # noqa: ASYNC110 - no event can be this exact
            await asyncio.sleep(0)
        rung, self._rung = self._rung, False
        return rung


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
