"""Single flight: callers that want the same thing at the same time share one attempt to get it.

When a node is lost, all loops of a process ask where its queues are now. If each asked for itself, they would compete
for the CPU until all of them time out, and then begin again together.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_THREAD_WAIT: Final = 10.0
"""Seconds that a thread waits for the attempt of another thread, which may hang; then it makes its own."""


class SingleFlight(Generic[T]):
    """One attempt at a time in each event loop, and one among the threads that have none.

    Event loops do not wait for each other: a handler that blocks the worker's loop must not hold up the heartbeat,
    which has a loop of its own. `pace`: the least and the most seconds from the beginning of one attempt to that of the
    next. They double with each attempt, until `hurry` is called or there was no attempt for a while.
    """

    def __init__(self, pace: tuple[float, float] = (0.0, 0.0)) -> None:
        self._least, self._most = pace
        self._pace = self._least
        self._next = 0.0
        """When the next attempt may begin, by the monotonic clock."""
        self.outdated = 0
        """How often `outdate` was called."""
        self._in_loops = WeakKeyDictionary[asyncio.AbstractEventLoop, _Flight[asyncio.Future[T]]]()
        self._in_threads: dict[int, _Flight[Future[T]]] = {}
        """By process: a forked child must not wait for a thread that it does not have."""

    def outdate(self) -> int:
        """Have later callers share no attempt that has begun before; return how often this was called."""
        self.outdated += 1
        return self.outdated

    def hurry(self) -> None:
        """Note that an attempt brought news, so that the next one may follow soon."""
        self._pace = self._least
        self._next = min(self._next, time.monotonic() + self._least)

    async def run(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the value of an attempt, or raise its error. It goes on if this caller is cancelled."""
        loop, least = asyncio.get_running_loop(), self.outdated
        while (flight := self._in_loops.get(loop)) is not None and flight.began < least:
            await asyncio.wait([flight.result])
        if flight is None:
            flight = _Flight[asyncio.Future[T]]()
            flight.result = asyncio.ensure_future(self._attempt(flight, attempt))
            self._in_loops[loop] = flight
            flight.result.add_done_callback(lambda result: self._end(loop, result))
        return await asyncio.shield(flight.result)

    def run_sync(self, attempt: Callable[[], T]) -> T:
        """Return the same, without an event loop."""
        least, mine, process = self.outdated, _Flight[Future[T]](), os.getpid()
        mine.result = Future()
        while (flight := self._in_threads.setdefault(process, mine)) is not mine:  # atomic: no lock, so forks are safe
            if wait([flight.result], _THREAD_WAIT).not_done:
                return attempt()
            if flight.began >= least:
                with suppress(CancelledError):  # its thread was interrupted
                    return flight.result.result()
        try:
            time.sleep(self._turn())
            mine.began = self.outdated
            value = attempt()
            mine.result.set_result(value)
            return value
        except Exception as error:
            mine.result.set_exception(error)
            raise
        finally:
            del self._in_threads[process]
            mine.result.cancel()  # unless it is done

    async def _attempt(self, flight: _Flight[Any], attempt: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self._turn())
        flight.began = self.outdated
        return await attempt()

    def _turn(self) -> float:
        """Return the seconds until the next attempt may begin."""
        now = time.monotonic()
        if now > self._next + self._most:
            self._pace = self._least
        begin = max(now, self._next)
        self._next = begin + random.uniform(self._pace / 2, self._pace)  # noqa: S311 - no secret
        self._pace = min(2 * self._pace, self._most)
        return begin - now

    def _end(self, loop: asyncio.AbstractEventLoop, result: asyncio.Future[T]) -> None:
        del self._in_loops[loop]
        if not result.cancelled():
            result.exception()  # its callers may all have been cancelled: then nobody else looks at it


R = TypeVar("R", bound="Future[Any] | asyncio.Future[Any]")


class _Flight(Generic[R]):
    """An attempt. `began`: how often `outdate` had been called then; it has not begun while that is infinite."""

    result: R

    def __init__(self) -> None:
        self.began: float = math.inf
