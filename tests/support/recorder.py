"""A recorder: keeps the events that were emitted, and lets a test wait for one. Waiting is never sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from evsched.events import Event
from tests.support.patience import PATIENCE

E = TypeVar("E", bound=Event)


class Recorder:
    """A subscriber to events. Use it in one event loop."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of a kind, so far."""
        return [event for event in self.events if isinstance(event, kind)]

    async def wait(
        self,
        kind: type[E],
        condition: Callable[[E], bool] = lambda event: True,
        *,
        limit: float = PATIENCE,
        count: int = 1,
    ) -> E:
        """Return the `count`-th event of a kind that meets a condition; events that were emitted before count too."""
        async with asyncio.timeout(limit):
            while True:
                found = [event for event in self.of(kind) if condition(event)]
                if len(found) >= count:
                    return found[count - 1]
                self._changed.clear()
                await self._changed.wait()

    async def until(self, condition: Callable[[], Any], *, limit: float = PATIENCE) -> None:
        """Wait until a condition holds, checking it at each event."""
        async with asyncio.timeout(limit):
            while not condition():
                self._changed.clear()
                await self._changed.wait()
