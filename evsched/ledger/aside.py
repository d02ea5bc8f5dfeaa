"""The rows that this relay leaves out for a while, because Redis did not take them though it takes others.

They wait in the table as before, and are counted among the rows that wait. Each is tried again when its time is over:
one at a time, after the rows that can be taken. If it fails again, its time doubles. Another relay finds out by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Final

from evsched import events
from evsched.events import Emit

_SECONDS: Final = 60.0
"""Seconds for which a row is left out at first."""

_MOST: Final = 3600.0
"""Seconds for which a row is left out at most."""


class Aside:
    """Rows by their queue, and their id or name."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._since: dict[tuple[str, str], float] = {}
        """By the monotonic clock. A row whose time is over stays here until it has been tried again."""
        self._failures: dict[tuple[str, str], int] = {}

    def add(self, queue: str, failed: Mapping[str, str]) -> None:
        """Leave rows out from now on; report those that were not left out before. `failed`: why, by id or name."""
        now = time.monotonic()
        new = [name for name in failed if (queue, name) not in self._since]
        for key in [(queue, name) for name in failed]:
            self._since[key] = now
            self._failures[key] = self._failures.get(key, 0) + 1
        if new:
            first = f"{new[0]}: {failed[new[0]]}"
            self._emit(events.RowsSetAside(queue=queue, count=len(new), first=first))

    def rows(self, without: tuple[str, str] | None = None) -> list[tuple[str, str]]:
        """Return the rows that are left out, without the one that is tried."""
        return [key for key in self._since if key != without]

    def due(self) -> tuple[str, str] | None:
        """Return the row to try again first; None = the time of none is over."""
        first = min(self._since, key=self._until, default=None)
        return first if first is not None and self._until(first) <= time.monotonic() else None

    def tried(self, key: tuple[str, str]) -> None:
        """Forget a row that was tried again, unless it has been added again."""
        if self._until(key) <= time.monotonic():
            del self._since[key], self._failures[key]

    def try_all(self) -> None:
        """Have all rows tried again: what stopped them may be gone with the data of Redis."""
        self._since = dict.fromkeys(self._since, -math.inf)

    def _until(self, key: tuple[str, str]) -> float:
        return self._since[key] + min(_SECONDS * 2.0 ** min(self._failures[key] - 1, 20), _MOST)
