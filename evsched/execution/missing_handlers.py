"""Handlers that a new process does not find, because the code on disk is not what the worker runs."""

from __future__ import annotations

import time
from typing import Final

from evsched.events import Emit, HandlerNotFound
from evsched.execution.run import Run
from evsched.execution.verdict import not_now
from evsched.jobs.job import Deferred

_ASK_AGAIN: Final = 1.0
"""Seconds from one process that looks for a missing handler to the next: each start costs much CPU time."""


class MissingHandlers:
    """Defers the runs that need such a handler, and reports each task once for each reason."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._missing: dict[str, tuple[str, float]] = {}
        """By task: why its handler was not found, and when the next process may look (monotonic clock)."""

    def known(self, run: Run) -> Deferred | None:
        """Return the outcome of a run whose handler was not found a moment ago; None = a process may look for it."""
        reason, ask_again = self._missing.get(run.task, ("", 0.0))
        return not_now(run.delivery.redis_now(), reason, "code") if time.monotonic() < ask_again else None

    def found_missing(self, run: Run, reason: str) -> Deferred:
        """Note that a process did not find the handler of a run; return the outcome of the run."""
        before, _ = self._missing.get(run.task, ("", 0.0))
        self._missing[run.task] = reason, time.monotonic() + _ASK_AGAIN
        if before != reason:
            self._emit(HandlerNotFound(queue=run.delivery.queue, task=run.task, reason=reason))
        return not_now(run.delivery.redis_now(), reason, "code")
