"""How runs begin together: how many of them, and their marks.

A run whose job has one attempt, or is a suspect, is marked in Redis before it begins. `Marks` writes one mark for all
such runs that wait, as many as a `BeginLimit` allows.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict, deque
from functools import partial
from itertools import chain
from typing import Final

from msgspec import Struct

from evsched.execution.deferral import RunStore
from evsched.execution.run import Run
from evsched.jobs.job import FetchedJob, Mark

BEGIN_WITHIN: Final = 0.01
"""Seconds. A job that becomes due meanwhile begins after the fetched ones, even if its priority is higher."""

GROWTH: Final = 4
"""From one job to 256 in four steps."""

KNOWN_FOR: Final = 1.0
"""Seconds that a measurement counts: the next jobs may be of another kind."""


class BeginLimit:
    """How many jobs may begin together without keeping each other waiting.

    The handlers on an event loop take turns. While one computes, a job that was fetched with it cannot begin, although
    another worker may be idle. So the jobs that are fetched together should begin within `BEGIN_WITHIN`. How many can
    is measured: a worker begins with one job, and after quick ones the limit grows, to `GROWTH` times as many each
    time. As long as jobs take longer than that to begin, the next ones are fetched only when these have begun.
    """

    def __init__(self) -> None:
        self._limit = 1
        self._quick = False
        """The last jobs began within `BEGIN_WITHIN`."""
        self._measured = -math.inf
        self._beginning = 0
        """How many times jobs were handed out that have not all begun."""

    @property
    def waits(self) -> bool:
        """Whether to fetch nothing until the jobs that were handed out have begun."""
        return self._beginning > 0 and not self._quick

    def is_slow(self, now: float) -> bool:
        """Return whether the last jobs took long to begin. `now` is of the monotonic clock, here and below."""
        return not self._quick and now <= self._measured + KNOWN_FOR

    def room(self, now: float) -> int:
        """Return how many jobs may be fetched now."""
        if now > self._measured + KNOWN_FOR:
            self._limit, self._quick = 1, False
        return 0 if self.waits else self._limit

    def handed_out(self) -> None:
        """Note that jobs were handed out; `begun` must follow."""
        self._beginning += 1

    def begun(self, count: int, seconds: float, now: float) -> None:
        """Note that `count` jobs, which were handed out together, have begun, and how long that took."""
        self._beginning -= 1
        self._measured = now
        self._quick = seconds <= BEGIN_WITHIN
        would_begin = count * BEGIN_WITHIN / max(seconds, 1e-9)
        if self._quick:
            self._limit = max(self._limit, int(min(would_begin, GROWTH * count)))
        else:
            self._limit = max(1, int(would_begin))

    def lower(self, limit: int) -> None:
        """Set a lower limit; it grows from there."""
        self._limit = min(self._limit, limit)


class _Waiting(Struct, eq=False):
    """A run that waits until it is marked."""

    run: Run
    mark: Mark
    sent: asyncio.Future[asyncio.Future[list[str]]]
    """The call that has marked it."""

    @property
    def alone(self) -> bool:
        """It is marked by a call of its own: a suspect may end the worker in its first step."""
        return self.run.job.deaths > 0


class Marks:
    """Marks runs that are about to begin: one call at a time for each queue, since the node of one may hang.

    A call marks the runs that wait, and the next call follows when these have taken their first step. If the worker
    dies meanwhile, each of them may have begun, so a call marks no more than can begin within `BEGIN_WITHIN`.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._waiting = defaultdict[str, deque[_Waiting]](deque)
        self._limits = defaultdict[str, BeginLimit](BeginLimit)
        self._calls: dict[str, asyncio.Future[list[str]] | None] = {}
        """By queue, while a call is under way, or is about to be sent, or its runs take their first step."""

    async def mark(self, run: Run, mark: Mark) -> bool:
        """Mark a run that is about to begin; return whether its job is still this worker's."""
        loop, queue = asyncio.get_running_loop(), run.delivery.queue
        waiting = _Waiting(run, mark, loop.create_future())
        self._waiting[queue].append(waiting)
        if queue not in self._calls:
            self._calls[queue] = None
            loop.call_soon(self._send, queue)  # after the runs that were handed out together with this one
        return run.job.id not in (await waiting.sent).result()

    def close(self) -> None:
        """Send no more marks; cancel the runs that wait for one."""
        for waiting in chain.from_iterable(self._waiting.values()):
            waiting.sent.cancel()
        for call in self._calls.values():
            if call is not None:
                call.cancel()

    def _send(self, queue: str) -> None:
        batch = self._take(queue)
        if not batch:
            del self._calls[queue]
            return
        self._limits[queue].handed_out()
        rows: list[tuple[FetchedJob, Mark]] = [(waiting.run.job, waiting.mark) for waiting in batch]
        self._calls[queue] = call = asyncio.ensure_future(self._store.mark(queue, rows))
        call.add_done_callback(partial(self._marked, queue, batch))

    def _take(self, queue: str) -> list[_Waiting]:
        """Take the runs that the next call marks."""
        waiting, batch = self._waiting[queue], list[_Waiting]()
        room = self._limits[queue].room(time.monotonic())
        while waiting and len(batch) < room and not (batch and (batch[0].alone or waiting[0].alone)):
            first = waiting.popleft()
            if not first.sent.done():  # the run was stopped
                batch.append(first)
        return batch

    def _marked(self, queue: str, batch: list[_Waiting], call: asyncio.Future[list[str]]) -> None:
        for waiting in batch:
            if not waiting.sent.done():
                waiting.sent.set_result(call)
        asyncio.get_running_loop().call_soon(self._begun, queue, len(batch), time.monotonic())

    def _begun(self, queue: str, count: int, since: float) -> None:
        """Go on: the event loop calls this after the first step of each run that was marked."""
        now = time.monotonic()
        self._limits[queue].begun(count, now - since, now)
        self._send(queue)
