"""The request that the process ends, made in any thread and awaited in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any


class StopRequest:
    """Is made at most once, and stays made."""

    def __init__(self) -> None:
        self.made = False
        self._arrived = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def make(self) -> None:
        """Make the request. For any thread."""
        self.made = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the service has ended by itself
                self._loop.call_soon_threadsafe(self._arrived.set)

    def attach(self) -> None:
        """Let the running event loop await the request."""
        self._loop = asyncio.get_running_loop()
        if self.made:
            self._arrived.set()

    async def wait(self) -> None:
        """Wait for the request."""
        await self._arrived.wait()

    async def comes_within(self, seconds: float) -> bool:
        """Wait for the request at most that long; return whether it was made."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._arrived.wait(), seconds)
        return self._arrived.is_set()

    async def run_until_made(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run a coroutine, which the request cancels; return whether it finished first."""
        working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            return False
        finally:
            working.cancel()
            waiting.cancel()
            await asyncio.gather(working, waiting, return_exceptions=True)
