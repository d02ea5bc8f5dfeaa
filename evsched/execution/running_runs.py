"""The runs whose handlers are running: `RunningRuns` enforces their timeouts, `HangFinder` finds a run that hangs."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from evsched.execution.failure import Stack, stack_of
from evsched.execution.run import Run
from evsched.execution.verdict import TIMED_OUT, Failed


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


_BLOCKED: Final = "it blocked the event loop, and other jobs outlived their timeouts"


class Hang(Struct, frozen=True):
    """Code that blocks the event loop, or a thread beyond its time limit, as another thread sees it."""

    run: Run | None
    """None: code that is in no run's own asyncio task blocks the event loop, such as a task that a handler created."""
    stack: Stack
    """Empty when the run waits in the event loop, or runs in a process."""
    fault: str = ""
    """Why the run has failed; empty = it may still be handed back."""

    def failed(self, reason: str) -> Failed:
        """Return how the run failed: by its own fault, or else for `reason`."""
        return Failed((self.fault or reason) + self.stack.place, traceback=self.stack.traceback)


class HangFinder:
    """Finds hangs of the running event loop and of `running`. For any thread, except its constructor."""

    def __init__(self, running: RunningRuns) -> None:
        self._running = running
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def blocks_loop(self) -> Hang:
        """Return the code that the event loop executes now. For a loop that does not respond."""
        run = self._current()
        return Hang(run, _stack(self._thread, run))

    def stuck(self, kill_grace: float) -> Hang | None:
        """If a run went on for `kill_grace` seconds past its timeout, return the code that is at fault.

        If the event loop did not even stop that run, the one that blocks the event loop is at fault.
        """
        run, current = self._running.stuck(kill_grace), self._current()
        if run is None:
            return None
        if run.stop_reason is None and current is not None and current is not run:
            return Hang(current, _stack(self._thread, current), _BLOCKED)
        thread = self._thread if current is run else run.thread
        return Hang(run, _stack(thread, run), f"{TIMED_OUT} and did not yield")

    def _current(self) -> Run | None:
        task = asyncio.current_task(self._loop)
        return next((run for run in self._running if task is not None and run.work is task), None)


def _stack(thread: int, run: Run | None) -> Stack:
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    prepared = None if run is None else run.prepared
    return Stack() if frame is None else stack_of(frame, "" if prepared is None else prepared.task.module)
