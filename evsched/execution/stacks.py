"""The stack of a run: where its handler is now, for people who ask why a job takes so long."""

from __future__ import annotations

import asyncio
import sys
from types import FrameType
from typing import Any, Final, cast

from evsched.execution.failure import Stack, stack_of, stack_of_frames
from evsched.execution.run import Run

_DEEP: Final = 200
"""Frames of coroutines that are followed."""

_LINKS: Final = (("cr_frame", "cr_await"), ("gi_frame", "gi_yieldfrom"), ("ag_frame", "ag_await"))
"""Where coroutines, generators and async generators have their frame, and what they wait for."""


def stack_of_run(run: Run) -> Stack:
    """Return the code that a run is in. For the event loop's thread: an async handler waits meanwhile.

    A handler in a process of its own is not seen: the code is that which waits for it.
    """
    module = "" if run.prepared is None else run.prepared.task.module
    if run.thread:
        frame = sys._current_frames().get(run.thread)  # pyright: ignore[reportPrivateUsage]
        return Stack() if frame is None else stack_of(frame, module)
    return Stack() if run.work is None else stack_of_frames(_frames(run.work), module)


def _frames(work: asyncio.Task[Any]) -> list[tuple[FrameType, int]]:
    """Return the frames of a task that waits, the outermost first, and of the tasks that it waits for."""
    found, waits = list[tuple[FrameType, int]](), cast("Any", work)
    while isinstance(waits, asyncio.Task) and len(found) < _DEEP:
        one = cast("Any", waits).get_coro()
        while one is not None and len(found) < _DEEP:
            names = next((names for names in _LINKS if hasattr(one, names[0])), None)
            if names is None:
                break
            frame, one = (getattr(one, name) for name in names)
            if frame is not None:
                found.append((frame, frame.f_lineno))
        # `gather` waits for several tasks: the first that has not ended stands for them.
        future: Any = getattr(cast("Any", waits), "_fut_waiter", None)
        waits = next((child for child in getattr(future, "_children", ()) if not child.done()), future)
    return found
