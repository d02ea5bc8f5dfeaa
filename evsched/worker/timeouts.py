"""The runs that have begun and not ended, and their timeouts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from evsched.worker.run import Run

_LATE: Final = "timeout: it ran longer than its limit"


class RunningRuns:
    """The runs whose handler has begun and not ended, those abandoned included. Stops each when its timeout passes.

    One timer serves all runs, at the earliest deadline: a timer for each would cost more than a short job.
    """

    def __init__(self) -> None:
        self._runs: set[Run] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        """Walk a copy. For any thread."""
        return iter(list(self._runs))

    def add(self, run: Run, timeout: float | None) -> None:
        """Note that a run has begun; `timeout` in seconds, None = no limit."""
        self._runs.add(run)
        if timeout is not None:
            run.deadline = run.began + timeout
            self._wake_at(run.deadline)

    def discard(self, run: Run) -> None:
        """Note that a run has ended."""
        self._runs.discard(run)

    def late(self, run: Run) -> str | None:
        """Return what to say of a run whose timeout has passed, also when it kept the loop from noticing; else None."""
        if run.late is None and run.deadline <= time.monotonic():
            run.late = _LATE
        return run.late

    def stuck(self, kill_grace: float) -> Run | None:
        """Return a run that went on for `kill_grace` seconds past its timeout, if there is one. For any thread."""
        now = time.monotonic()
        return next((run for run in self if run.deadline + kill_grace < now), None)

    def _wake_at(self, deadline: float) -> None:
        if deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = asyncio.get_running_loop().call_at(deadline, self._time_out)

    def _time_out(self) -> None:
        now = time.monotonic()
        self._timer, self._timer_at = None, float("inf")
        for run in self._runs:
            if run.late is None and run.deadline <= now:
                run.late = _LATE
                run.stop()
        self._wake_at(min((run.deadline for run in self._runs if run.late is None), default=float("inf")))
