"""Reading of much data a slice at a time, within the limits of a page. The part comes first that was read longest ago.

All viewers share it. A reading of a page takes at most a fraction of a second, and as many calls as an open page may
send in the time since the last one. The first may take as many as fit, and so may one after nobody has looked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from math import ceil, inf
from typing import Final, Generic, Protocol, TypeVar

from evsched.console.live import PAGE_RATE
from evsched.console.page import MeteredClient

_LEAST: Final = 2.0
_MOST: Final = 10.0
"""Calls of one reading. The page then rests for some seconds, since it may send 2 commands a second."""

_UNWATCHED: Final = 60.0
"""Seconds after which nobody has looked."""

_AT_ONCE: Final = 8
"""Calls that are sent at the same time."""


class ReadPart(Protocol):
    """A part of the data, such as that of one queue."""

    ended: float
    """When it was last read to its end, on the clock of this process; -inf = never."""

    def is_due(self) -> bool:
        """Return whether there is something to read."""
        ...

    def is_begun(self) -> bool:
        """Return whether it is read in part."""
        ...


P = TypeVar("P", bound=ReadPart, contravariant=True)


class ReadParts(Protocol[P]):
    """Reads a slice of each of the first parts, with about as many calls as it is given; returns how many it took."""

    async def __call__(self, client: MeteredClient, parts: Sequence[P], calls: int, /) -> int: ...


class SteppedPart(ReadPart, Protocol):
    """A part each slice of which is a call of its own."""

    async def step(self, client: MeteredClient) -> None:
        """Read one slice."""
        ...


async def step_each(client: MeteredClient, parts: Sequence[SteppedPart], calls: int) -> int:
    """Read a slice of each of the first parts at the same time."""
    some = parts[: min(_AT_ONCE, calls)]
    await asyncio.gather(*(one.step(client) for one in some))
    return len(some)


class Turns(Generic[P]):
    """Has parts read one after another, by one viewer at a time: the others get what there is."""

    def __init__(self, read: ReadParts[P]) -> None:
        self._read = read
        self._looked = -inf
        self._lock = asyncio.Lock()
        self._spent = {True: 0, False: 0}
        """Calls for parts that were begun, and for others: a long part gets half, however many others there are."""

    async def look(self, client: MeteredClient, parts: Sequence[P], seconds: float) -> None:
        """Read for a short time."""
        if self._lock.locked():
            return
        async with self._lock:
            begun = time.monotonic()
            passed = begun - self._looked
            steps = inf if passed > _UNWATCHED else min(max(_LEAST, passed * PAGE_RATE), _MOST)
            while steps > 0 and time.monotonic() < begun + seconds:
                some, is_begun = self._next(parts)
                if not some:
                    break
                calls = max(1, await self._read(client, some, ceil(min(steps, _MOST))))
                self._spent[is_begun] += calls
                steps -= calls
            self._looked = time.monotonic()

    def _next(self, parts: Sequence[P]) -> tuple[list[P], bool]:
        """Return the parts to read now, those first that were read longest ago; and whether they were begun."""
        due = dict[bool, list[P]]({True: [], False: []})
        for one in parts:
            if one.is_due():
                due[one.is_begun()].append(one)
        if not due[True] or not due[False]:  # the others have missed nothing
            self._spent = {True: 0, False: 0}
        begun = bool(due[True]) and (not due[False] or self._spent[True] <= self._spent[False])
        return sorted(due[begun], key=lambda one: one.ended), begun
