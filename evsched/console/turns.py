"""Reading of much data a slice at a time, within the limits of a page. The part comes first that was read longest ago.

All viewers share it. A reading of a page takes at most a fraction of a second, and as many calls as an open page may
send in the time since the last one. The first may take as many as fit, and so may one after nobody has looked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from math import ceil, inf
from typing import Final, Protocol

from evsched.console.live import PAGE_RATE
from evsched.console.page import MeteredClient

_LEAST: Final = 2.0
_MOST: Final = 10.0
"""Slices of one reading. The page then rests for some seconds, since it may send 2 commands a second."""

_UNWATCHED: Final = 60.0
"""Seconds after which nobody has looked."""

_AT_ONCE: Final = 8
"""Slices that are read at the same time."""


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

    async def step(self, client: MeteredClient) -> None:
        """Read one slice."""
        ...


class Turns:
    """Has parts read one after another, by one viewer at a time: the others get what there is."""

    def __init__(self) -> None:
        self._looked = -inf
        self._lock = asyncio.Lock()
        self._spent = {True: 0, False: 0}
        """Slices of parts that were begun, and of others: a long part gets half, however many others there are."""

    async def look(self, client: MeteredClient, parts: Sequence[ReadPart], seconds: float) -> None:
        """Read for a short time."""
        if self._lock.locked():
            return
        async with self._lock:
            begun = time.monotonic()
            passed = begun - self._looked
            steps = inf if passed > _UNWATCHED else min(max(_LEAST, passed * PAGE_RATE), _MOST)
            while steps > 0 and time.monotonic() < begun + seconds:
                some = self._next(parts, min(_AT_ONCE, ceil(min(steps, _AT_ONCE))))
                if not some:
                    break
                await asyncio.gather(*(one.step(client) for one in some))
                steps -= len(some)
            self._looked = time.monotonic()

    def _next(self, parts: Sequence[ReadPart], most: int) -> list[ReadPart]:
        """Return the parts to read now, those first that were read longest ago."""
        due = dict[bool, list[ReadPart]]({True: [], False: []})
        for one in parts:
            if one.is_due():
                due[one.is_begun()].append(one)
        begun = bool(due[True]) and (not due[False] or self._spent[True] <= self._spent[False])
        some = sorted(due[begun], key=lambda one: one.ended)[:most]
        self._spent[begun] += len(some)
        if not due[not begun]:  # the others have missed nothing
            self._spent = {True: 0, False: 0}
        return some
