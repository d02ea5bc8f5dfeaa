"""How long to wait between two tries to reach Redis."""

from __future__ import annotations

import random


def reconnect_delay(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row to reach Redis.

    It doubles from 25 ms and ends at 1 s, so that work resumes soon after Redis does. Half of it is random, so that
    a fleet does not come back in one instant (full jitter would now and then be a hot loop).
    """
    ceiling = min(0.025 * 2 ** min(failures, 10), 1.0)
    return ceiling / 2 + random.uniform(0, ceiling / 2)  # noqa: S311 - no secret
