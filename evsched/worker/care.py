"""Care: how a run is begun, so that a job that kills its process takes no other job with it.

A dead worker cannot say which of its jobs killed it. So all that it held are suspects (`FetchedJob.deaths`). One that
was held at one death runs as any other: one death says little, and the suspects may be many. One that was held again
when a worker died runs in a process of its own, whose death names it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Literal

from msgspec import Struct

from evsched.jobs.job import FetchedJob
from evsched.worker.run import Run

Mark = Literal["1", "alone"]
"""What is written of a run before it begins: that it does; and that no other runs in its worker."""

MarkRun = Callable[[Run, Mark], Awaitable[bool]]
"""Writes a mark; False = the run is not this worker's any more."""

_APART: Final = 2
"""Deaths from which on a suspect runs in a process of its own: the second one narrows the suspects enough."""

_ALONE: Final = 4
"""Deaths from which on nothing else runs beside it: processes of their own did not keep its worker alive. A container
whose memory is full ends with all its processes."""

_PATIENCE: Final = 0.25
"""Seconds that a run waits at first for the others in its worker to end, so that it is alone. Nothing else begins there
meanwhile: this is what a suspect costs the others. It doubles with each further death, so in the end the run is alone.
"""

_WAIT_MOST: Final = 60.0
"""Seconds that it waits at the most."""


class Care(Struct, frozen=True):
    """What is to be done for a run before it begins."""

    marked: bool = False
    """Redis is told first, and one such run begins after the other: whether it has begun is known exactly."""
    apart: bool = False
    """It runs in a process of its own."""
    alone: bool = False
    """Nothing else runs in its worker meanwhile."""


def care_for(job: FetchedJob, attempts: int, *, can_part: bool) -> Care:
    """Return what care a run needs. `can_part`: there can be a process of its own.

    A job's only attempt must not be begun twice, nor be lost by a run that did not begin: so it is marked. A suspect
    whose next run may be its last runs apart, whatever the number of deaths: so its attempts are exact.
    """
    last = job.attempt + job.doubts >= attempts
    apart = job.deaths >= _APART or (job.deaths > 0 and last)
    alone = job.deaths >= _ALONE or (apart and not can_part)
    return Care(marked=attempts == 1 or alone, apart=apart and can_part, alone=alone)


class Turnstile:
    """Counts the runs that are past it, and lets one be alone. `opened()` is called when others may pass again."""

    def __init__(self, opened: Callable[[], None]) -> None:
        self._opened = opened
        self.past = 0
        """Runs that have passed and not ended."""
        self._alone: object | None = None
        self._changed = asyncio.Event()

    @property
    def closed(self) -> bool:
        """A run is alone, or waits to be: no other begins."""
        return self._alone is not None

    async def enter(self) -> None:
        """Pass, when no run is alone. Call `leave` when the run has ended."""
        while self._alone is not None:
            await self._change()
        self.past += 1

    def leave(self) -> None:
        """Tell that a run has ended."""
        self.past -= 1
        if self._alone is not None:
            self._changed.set()

    @asynccontextmanager
    async def alone(self, patience: float) -> AsyncGenerator[Callable[[], None] | None]:
        """Pass when no other run is past; yield what lets others pass again, None when they never stopped.

        While it waits no other run passes: for `patience` seconds at the most, then it passes among the others.
        """
        while self._alone is not None:
            await self._change()
        self._alone = me = object()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    while self.past:
                        await self._change()
            if self.past:
                self._open(me)
            self.past += 1
            try:
                yield partial(self._open, me) if self._alone is me else None
            finally:
                self.past -= 1
        finally:
            self._open(me)

    def _open(self, me: object) -> None:
        if self._alone is me:
            self._alone = None
            self._opened()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


def patience(job: FetchedJob) -> float:
    """Return how long a run waits to be alone, in seconds; and it stays so for a second longer than that."""
    return min(_PATIENCE * 2.0 ** max(0, job.deaths - _ALONE), _WAIT_MOST)
