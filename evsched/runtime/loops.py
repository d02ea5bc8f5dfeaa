"""Runs the loops of a process. Each runs as long as the process, so when one ends, all end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, cast

from evsched.errors import LoopEnded


async def run_loops(loops: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Run loops, keyed by name, until cancelled.

    Raises:
        LoopEnded: a loop failed, returned, or was cancelled from within.
    """
    running = {asyncio.ensure_future(loop): name for name, loop in loops.items()}
    try:
        ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for loop in running:
            loop.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    raise ended_loop(running[loop := ended.pop()], loop)


def ended_loop(name: str, loop: asyncio.Future[Any]) -> LoopEnded:
    """Return the error that says that a loop has ended, and why."""
    error = None if loop.cancelled() else loop.exception()
    if isinstance(error, LoopEnded):
        return error
    why = "it was cancelled" if loop.cancelled() else "it returned" if error is None else _describe(error)
    ended = LoopEnded(f"the {name} loop has ended: {why}; this is a bug of evsched: restart the process")
    ended.__cause__ = error
    return ended


def returned(loop: asyncio.Future[Any]) -> bool:
    """Return whether a loop has returned, neither cancelled nor with an error."""
    return loop.done() and not loop.cancelled() and loop.exception() is None


def _describe(error: BaseException) -> str:
    """Return an error's type and message, and where it was raised."""
    if isinstance(error, BaseExceptionGroup):  # a group of tasks failed: its first error is the cause
        first: BaseException = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
        return _describe(first)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
    return f"{type(error).__name__}: {error}{where}"
