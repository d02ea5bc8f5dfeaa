"""How busy the machine is before a round, and a wait until it is quiet."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Final

QUIET: Final = 0.5
"""The load average below which a machine is quiet: less than one process runs, half of the time."""

_LOOK: Final = 5.0
"""Seconds between two looks; Linux calculates the load average as often."""


def load() -> float:
    """Return the load average of the last minute."""
    return os.getloadavg()[0]


def settled(minutes: float, read: Callable[[], float] = load, pause: Callable[[float], object] = time.sleep) -> float:
    """Wait at most so many minutes until the machine is quiet; return its load average, however busy it is then."""
    for look in range(round(minutes * 60 / _LOOK)):
        if (busy := read()) < QUIET:
            return busy
        if look == 0:
            print(f"waiting until the load average is below {QUIET}, now {busy:.2f}", file=sys.stderr, flush=True)
        pause(_LOOK)
    return read()
