"""The delays between two attempts to reach a server, and to give it what it does not take."""

from __future__ import annotations

import random
import time
from typing import Final

_FIRST: Final = 0.5
"""Seconds that a job is put off at first."""

_LONGEST: Final = 10.0
"""The longest time that a job is put off, in seconds. So a job is late by that much at most when its server serves
again, and a thousand jobs that wait cost a hundred runs a second."""


def reconnect_delay(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row.

    The delay doubles from 25 ms up to 1 s, so that work resumes soon after Redis does. Half of it is random, so that
    the processes of a fleet do not all reconnect at once (with full jitter it would sometimes be close to 0).
    """
    ceiling = min(0.025 * 2 ** min(failures, 10), 1.0)
    return ceiling / 2 + random.uniform(0, ceiling / 2)  # noqa: S311 - no secret


class PutOff:
    """How long jobs are put off while their server takes nothing: the longer that lasts, the longer.

    The time is not random: jobs that are put off together are due together, which costs less.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        """When the server first took nothing, by the monotonic clock; None = it took what came last."""

    def refused(self) -> float:
        """Note that the server takes nothing; return the seconds to wait."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return min(_FIRST + now - self._since, _LONGEST)

    def accepted(self) -> None:
        """Note that the server has taken something."""
        self._since = None
