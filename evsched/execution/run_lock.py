"""A shared and exclusive lock for the runs of a worker: any number hold it together, or one holds it alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial


class RunLock:
    """Held by each run while it lasts. `opened()` is called when runs can share it again."""

    def __init__(self, opened: Callable[[], None]) -> None:
        self._opened = opened
        self.holders = 0
        """Runs that hold it, the exclusive one included."""
        self._exclusive: object | None = None
        self._changed = asyncio.Event()

    @property
    def closed(self) -> bool:
        """A run holds it alone, or waits to: no other run begins."""
        return self._exclusive is not None

    async def share(self) -> None:
        """Hold it together with others, when no run holds it alone. Call `release` when the run has ended."""
        while self._exclusive is not None:
            await self._change()
        self.holders += 1

    def release(self) -> None:
        """Release it after `share`."""
        self.holders -= 1
        if self._exclusive is not None:
            self._changed.set()

    @asynccontextmanager
    async def alone(self, patience: float) -> AsyncGenerator[Callable[[], None] | None]:
        """Hold it alone, when no other run holds it; yield what lets others share it again.

        While this waits, no other run begins to share it. After `patience` seconds it is shared with those that still
        hold it, and None is yielded.
        """
        while self._exclusive is not None:
            await self._change()
        self._exclusive = me = object()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    while self.holders:
                        await self._change()
            if self.holders:
                self._open(me)
            self.holders += 1
            try:
                yield partial(self._open, me) if self._exclusive is me else None
            finally:
                self.holders -= 1
        finally:
            self._open(me)

    def _open(self, me: object) -> None:
        if self._exclusive is me:
            self._exclusive = None
            self._opened()
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
