"""How loops wait for Redis: they retry with jitter, and report a failure once, and once how long it lasted.

Two kinds of failure are distinguished: Redis is down or cannot serve (`StoreDown`), or it refuses a command
(`StoreRefused`), because of a bug, bad data or a missing right. A Redis whose memory is full refuses too.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from evsched import process_events
from evsched.errors import FULL, MOVING, NO_ENTRY, StoreDown, StoreError
from evsched.events import Emit
from evsched.runtime.loops import Pulse
from evsched.transport.redis_errors import reconnect_delay

_AWAY_MOST: Final = 0.25
"""Seconds to wait at most before a lost connection is opened again. A job scheduled meanwhile is late by that much."""


class Reconnect:
    """The failures of one loop. Put `async with` it around each pass that talks to Redis.

    It reports a StoreError, backs off, and swallows it: check `failures` after the block, or start the next pass. Other
    exceptions pass through. `pulse` shows a pass that does not end. A loop that sleeps must tell its pulse how long.
    """

    def __init__(self, who: str, emit: Emit, queue: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._who = who
        self._queue = queue
        self._loop = f"{who}, queue {queue}" if queue else who
        self._emit = emit
        self._clock = clock
        self._down_since: float | None = None
        """When Redis could no longer be reached; None = it can be."""
        self._refusals = Refusals()
        self._kind = ""
        """The kind of the refusals that were reported."""
        self.pulse = Pulse(self._loop)
        self.failures = 0
        self.reason: str | None = None
        """Why the last pass failed; None = it succeeded."""

    def failed(self, error: StoreError) -> float:
        """Count a failure; return the seconds to wait before the next try."""
        self._emit(process_events.RedisFailed(kind=error.kind))
        down = isinstance(error, StoreDown) and error.kind != FULL
        if down != (self._down_since is not None):
            self.passed()
        now = self._clock()
        if down and self._down_since is None:
            self._down_since = now
            self._emit(process_events.RedisDown(who=self._loop, reason=str(error), kind=error.kind))
        elif not down and self._refusals.refused(now):
            self._emit(process_events.CallRefused(who=self._who, queue=self._queue, reason=str(error), kind=error.kind))
            self._kind = error.kind
        self.failures += 1
        self.reason = str(error)
        return reconnect_delay(self.failures)

    def refused(self, error: StoreError) -> float:
        """Count that this queue alone failed: Redis refused it, or its slot of a cluster moves. Return the wait.

        That is the seconds to wait before the next try.

        Raises:
            StoreDown, StoreRefused: the error concerns the whole connection.
        """
        if error.kind in NO_ENTRY or (isinstance(error, StoreDown) and error.kind != MOVING):
            raise error
        return self.failed(error)

    def passed(self) -> None:
        """Note that a pass succeeded."""
        now = self._clock()
        if self._down_since is not None:
            self._emit(process_events.RedisUp(who=self._loop, seconds=now - self._down_since))
        refused_for = self._refusals.accepted(now)
        if refused_for is not None:
            self._emit(
                process_events.CallAccepted(who=self._who, queue=self._queue, seconds=refused_for, kind=self._kind)
            )
        self.failures, self.reason, self._down_since = 0, None, None

    async def __aenter__(self) -> Reconnect:
        self.pulse.expect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        self.pulse.rest()
        if error is None:
            self.passed()
        elif isinstance(error, StoreError):
            delay = self.failed(error)
            self.pulse.expect(delay)
            await asyncio.sleep(delay)
            return True
        return False


class Reconnects:
    """The failures of one loop, by queue, so that a queue that Redis refuses does not stop the others."""

    def __init__(self, who: str, emit: Emit) -> None:
        self._who = who
        self._emit = emit
        self._queues: dict[str, Reconnect] = {}

    def of(self, queue: str) -> Reconnect:
        """Return the failures of one queue."""
        reconnect = self._queues.get(queue)
        if reconnect is None:
            reconnect = self._queues[queue] = Reconnect(self._who, self._emit, queue)
        return reconnect

    def forget(self, queue: str) -> None:
        """Drop the failures of a queue that is not served any more."""
        self._queues.pop(queue, None)

    def problem(self) -> str | None:
        """Return why the last pass of every queue failed; None = one succeeded, or none was tried."""
        reasons = [
            f"queue {queue}: {reconnect.reason}" for queue, reconnect in self._queues.items() if reconnect.reason
        ]
        return reasons[0] if reasons and len(reasons) == len(self._queues) else None


class Losses:
    """Counts connections that were lost soon after they opened; each makes the wait for the next one longer."""

    def __init__(self) -> None:
        self._count = 0
        self._opened = 0.0

    def opened(self) -> None:
        self._opened = time.monotonic()

    def wait(self) -> float:
        """Count a loss; return the seconds to wait before the next connection."""
        lasted = time.monotonic() - self._opened
        self._count = 1 if lasted > LASTING else self._count + 1
        return min(reconnect_delay(self._count), _AWAY_MOST)


LASTING: Final = 10.0
"""Seconds after which a success, or a connection, counts as lasting."""


class Refusals:
    """Decides when to report that Redis refuses the calls of a loop, and that it accepts them again.

    The first success is reported. If Redis refuses again soon after, some passes fail and others do not. Then a success
    is reported only after it has lasted, so that the log does not fill with both. Times are monotonic.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        """When the refusals began that were reported; None = none were, or their end was reported too."""
        self._last = 0.0
        self._accepted = -math.inf
        """When an end of refusals was last reported."""
        self._unsteady = False
        """That report came too early, so the next success is reported only if it lasts."""

    def refused(self, now: float) -> bool:
        """Note a refusal; return whether to report it."""
        self._last = now
        if self._since is not None:
            return False
        self._since = now
        self._unsteady = now - self._accepted < LASTING
        return True

    def accepted(self, now: float) -> float | None:
        """Note a success; return for how many seconds Redis refused, or None if there is nothing to report."""
        if self._since is None or (self._unsteady and now - self._last < LASTING):
            return None
        seconds, self._since, self._accepted = now - self._since, None, now
        return seconds
