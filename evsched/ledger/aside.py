"""The rows that this relay leaves out for a while, because Redis did not take them though it takes others.

They wait in the table as before, and are counted among the rows that wait. Another relay finds out by itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from evsched import events
from evsched.events import Emit

_SECONDS: Final = 60.0
"""Seconds for which a row is left out."""


class Aside:
    """Rows by their queue, and their id or name."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._since: dict[tuple[str, str], float] = {}
        """By the monotonic clock. A row whose time is over stays here until it has been tried again."""

    def add(self, queue: str, failed: Mapping[str, str]) -> None:
        """Leave rows out from now on; report those that were not left out before. `failed`: why, by id or name."""
        now = time.monotonic()
        new = [key for key in failed if (queue, key) not in self._since]
        self._since.update({(queue, key): now for key in failed})
        if new:
            first = f"{new[0]}: {failed[new[0]]}"
            self._emit(events.RowsSetAside(queue=queue, count=len(new), first=first))

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows that are left out now."""
        now = time.monotonic()
        self._since = {key: since for key, since in self._since.items() if now < since + 2 * _SECONDS}
        return [key for key, since in self._since.items() if now < since + _SECONDS]
