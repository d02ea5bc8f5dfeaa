"""The delay between two attempts to reach Redis."""

from __future__ import annotations

import random


def reconnect_delay(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row.

    The delay doubles from 25 ms up to 1 s, so that work resumes soon after Redis does. Half of it is random, so that
    the processes of a fleet do not all reconnect at once (with full jitter it would sometimes be close to 0).
    """
    ceiling = min(0.025 * 2 ** min(failures, 10), 1.0)
    return ceiling / 2 + random.uniform(0, ceiling / 2)  # noqa: S311 - no secret
