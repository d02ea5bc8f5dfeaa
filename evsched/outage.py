"""The one retry policy of the loops: wait with jitter, say once that Redis is down, and once for how long it was."""

from __future__ import annotations

import asyncio
import time

from evsched import events
from evsched.backoff import reconnect_delay
from evsched.errors import StoreError
from evsched.events import Emit


class Outage:
    """What one loop knows of Redis's failures. `async with` it around each pass that talks to Redis.

    A StoreError inside is told and waited out, not raised: after the block, look at `failures` or simply go round
    again. Everything else passes through.
    """

    def __init__(self, who: str, emit: Emit) -> None:
        self._who = who
        self._emit = emit
        self._since = 0.0
        self.failures = 0

    def failed(self, error: StoreError) -> float:
        """Count a failure; return the seconds to wait before the next try."""
        self._emit(events.RedisFailed(error.kind))
        if self.failures == 0:
            self._since = time.monotonic()
            self._emit(events.RedisDown(self._who, str(error)))
        self.failures += 1
        return reconnect_delay(self.failures)

    def passed(self) -> None:
        """Note that Redis answered."""
        if self.failures:
            self._emit(events.RedisUp(self._who, time.monotonic() - self._since))
            self.failures = 0

    async def __aenter__(self) -> Outage:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        if error is None:
            self.passed()
        elif isinstance(error, StoreError):
            await asyncio.sleep(self.failed(error))
            return True
        return False
