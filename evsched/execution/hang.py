"""A hang: what blocks the event loop, or a thread beyond its time limit, as another thread sees it."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Final

from msgspec import Struct

from evsched.execution.failure import Stack, stack_of
from evsched.execution.run import Run
from evsched.execution.running_runs import RunningRuns
from evsched.execution.verdict import TIMED_OUT, Failed

_BLOCKED: Final = "it blocked the event loop, and other jobs outlived their timeouts"


class Hang(Struct, frozen=True):
    """A run that hangs, and where."""

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
        """Return what the event loop executes now. For a loop that does not respond."""
        run = self._current()
        return Hang(run, _stack(self._thread, run))

    def stuck(self, kill_grace: float) -> Hang | None:
        """Return what is at fault that a run went on for `kill_grace` seconds past its timeout, if one did.

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
