"""The one retry policy of the loops: wait with jitter, say once what is wrong, and once for how long it was.

Two things go wrong, and they are told apart: Redis is away or cannot serve (`StoreDown`), or it refuses this very
command (`StoreRefused`), which is a bug, bad data or a missing right, and not Redis's fault.

That Redis refuses no more is told at the first pass that it lets through. Where it refuses again soon, the passes
differ: then it is told only when it has lasted.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Final

from evsched import events
from evsched.errors import StoreDown, StoreError
from evsched.events import Emit
from evsched.runtime.pulse import Pulse
from evsched.transport.backoff import reconnect_delay

_LASTING: Final = 10.0
"""Seconds after which a link has lasted, and so has it that Redis refuses no more."""

_AWAY_MOST: Final = 0.25
"""Seconds that a link which could be opened is away at the most: a job that is scheduled meanwhile is late by it."""


class Reconnect:
    """What one loop knows of Redis's failures. `async with` it around each pass that talks to Redis.

    A StoreError inside is told and waited out, not raised: after the block, look at `failures` or simply go round
    again. Everything else passes through. `pulse` tells of passes that do not end; a loop that
    sleeps says for how long.
    """

    def __init__(self, who: str, emit: Emit, queue: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._who = who
        self._queue = queue
        self._emit = emit
        self._clock = clock
        self._since = 0.0
        self._down = False
        self._refused: float | None = None
        """Since when Redis refuses, as it was told; None = it was not, or that it does no more was told too."""
        self._refused_last = 0.0
        self._accepted = -math.inf
        """When it was told that Redis refuses no more."""
        self._unsteady = False
        """That was too early: some passes meet what Redis refuses and some do not, so it must last to be told."""
        self.pulse = Pulse(who)
        self.failures = 0
        self.reason: str | None = None
        """Why the last pass failed; None = it did not."""

    def failed(self, error: StoreError) -> float:
        """Count a failure; return the seconds to wait before the next try."""
        self._emit(events.RedisFailed(kind=error.kind))
        down = isinstance(error, StoreDown)
        if down != self._down:
            self.passed()
        now = self._clock()
        if down and self.failures == 0:
            self._since = now
            self._emit(events.RedisDown(who=self._who, reason=str(error), kind=error.kind))
        elif not down:
            self._tell_refused(str(error), now)
        self._down = down
        self.failures += 1
        self.reason = str(error)
        return reconnect_delay(self.failures)

    def passed(self) -> None:
        """Note that Redis did what it was asked."""
        if self._down:
            self._emit(events.RedisUp(who=self._who, seconds=self._clock() - self._since))
        if self._refused is not None:
            self._tell_accepted(self._refused, self._clock())
        self.failures, self.reason, self._down = 0, None, False

    def _tell_refused(self, told: str, now: float) -> None:
        self._refused_last = now
        if self._refused is None:
            self._refused = now
            self._unsteady = now - self._accepted < _LASTING
            self._emit(events.CallRefused(who=self._who, queue=self._queue, reason=told))

    def _tell_accepted(self, since: float, now: float) -> None:
        if not self._unsteady or now - self._refused_last >= _LASTING:
            self._refused, self._accepted = None, now
            self._emit(events.CallAccepted(who=self._who, queue=self._queue, seconds=now - since))

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
    """What one loop knows of each queue that it serves: what Redis refuses of one holds no other up."""

    def __init__(self, who: str, emit: Emit) -> None:
        self._who = who
        self._emit = emit
        self._queues: dict[str, Reconnect] = {}

    def of(self, queue: str) -> Reconnect:
        """Return the outage of one queue."""
        reconnect = self._queues.get(queue)
        if reconnect is None:
            reconnect = self._queues[queue] = Reconnect(self._who, self._emit, queue)
        return reconnect

    def wrong(self) -> str | None:
        """Return why no queue is served; None = one is, or none has been tried."""
        reasons = [
            f"queue {queue}: {reconnect.reason}" for queue, reconnect in self._queues.items() if reconnect.reason
        ]
        return reasons[0] if reasons and len(reasons) == len(self._queues) else None


class Losses:
    """Links that were cut after they had been open: the shorter they last, the longer the wait for the next."""

    def __init__(self) -> None:
        self._count = 0
        self._opened = 0.0

    def opened(self) -> None:
        """Note that the link is open."""
        self._opened = time.monotonic()

    def wait(self) -> float:
        """Count a loss; return the seconds to wait before the link is opened anew."""
        lasted = time.monotonic() - self._opened
        self._count = 1 if lasted > _LASTING else self._count + 1
        return min(reconnect_delay(self._count), _AWAY_MOST)
