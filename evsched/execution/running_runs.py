"""The runs whose handlers are running, and their timeouts."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

from evsched.execution.run import Run


class RunningRuns:
    """The runs whose handlers run, even if their lease is lost. Stops each when its timeout passes.

    One timer serves all runs, at the earliest deadline: a timer for each would cost more than a short job.
    """

    def __init__(self) -> None:
        self._deadlines: dict[Run, float] = {}
        """By the monotonic clock; inf = no timeout."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._checked = -math.inf
        """When the timer last fired: runs with an earlier deadline have been stopped."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def __iter__(self) -> Iterator[Run]:
        """Iterate over a copy. For any thread."""
        return iter(self._deadlines.copy())

    def add(self, run: Run, extra: float = 0.0) -> None:
        """Note that a run has begun. It is stopped `extra` seconds after its timeout, if it has one."""
        timeout = None if run.prepared is None else run.prepared.timeout
        if timeout is None:
            self._deadlines[run] = math.inf
        else:
            self._deadlines[run] = deadline = run.began + timeout + extra
            self._wake_at(deadline)

    def remove(self, run: Run, now: float) -> None:
        """Note that a run has ended, at `now` by the monotonic clock.

        If its timeout had passed, that is its stop reason, even if it blocked the event loop and no timer fired.
        """
        if self._deadlines.pop(run, math.inf) <= now and run.stop_reason is None:
            run.stop_reason = "timeout"

    def stuck(self, kill_grace: float) -> Run | None:
        """Return a run that went on for `kill_grace` seconds past its timeout, if there is one. For any thread."""
        now = time.monotonic()
        return next((run for run, end in self._deadlines.copy().items() if end + kill_grace < now), None)

    def _wake_at(self, deadline: float) -> None:
        if deadline < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = deadline
            self._timer = asyncio.get_running_loop().call_at(deadline, self._time_out)

    def _time_out(self) -> None:
        now = time.monotonic()
        late = [run for run, deadline in self._deadlines.items() if self._checked < deadline <= now]
        self._timer, self._timer_at, self._checked = None, math.inf, now
        for run in late:
            run.stop("timeout")
        self._wake_at(min((end for end in self._deadlines.values() if end > now), default=math.inf))
