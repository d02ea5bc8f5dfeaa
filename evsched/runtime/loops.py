"""The loops of a process: each runs for as long as the process does, so the end of one is the end of all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, cast

from evsched.errors import LoopEnded


async def run_loops(loops: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Run loops, by their names, until this is cancelled.

    Raises:
        LoopEnded: one has ended by itself, whether it failed, returned or was cancelled from within.
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
    """Return the error that says of a loop that it has ended, and why."""
    error = None if loop.cancelled() else loop.exception()
    if isinstance(error, LoopEnded):
        return error
    why = "it was cancelled" if loop.cancelled() else "it returned" if error is None else told(error)
    ended = LoopEnded(f"the {name} loop has ended: {why}; this is a bug of evsched: start the process anew")
    ended.__cause__ = error
    return ended


def returned(loop: asyncio.Future[Any]) -> bool:
    """Tell whether a loop has ended by itself, without an error."""
    return loop.done() and not loop.cancelled() and loop.exception() is None


def told(error: BaseException) -> str:
    """Return what an error says, with where it was raised."""
    if isinstance(error, BaseExceptionGroup):  # a group of tasks has failed: what of it came first says why
        first: BaseException = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
        return told(first)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"
    return f"{type(error).__name__}: {error}{where}"
