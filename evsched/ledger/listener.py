"""The listener: PostgreSQL notifies it when a transaction that inserted rows was committed, and it rings the relay."""

from __future__ import annotations

from collections.abc import Callable

from evsched.ledger.database import Database
from evsched.ledger.tables import CHANNEL
from evsched.runtime.loops import Runtime


class Listener:
    """Listens on a connection of its own, so that no notification waits for the relay."""

    def __init__(self, runtime: Runtime, url: str, ring: Callable[[], object]) -> None:
        self.database = Database(url, "listener", runtime.emit, f"LISTEN {CHANNEL}")
        self._ring = ring

    async def run(self) -> None:
        """Listen for ever."""
        try:
            while True:
                async with self.database:
                    connection = await self.database.open()
                    self._ring()  # for what was committed while nobody listened
                    self.database.passed()
                    async for _ in connection.notifies():
                        self._ring()
        finally:
            await self.database.close()
