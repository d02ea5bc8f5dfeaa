"""The lease of a deployment, and the times that follow from it.

A worker renews its lease in Redis; when the lease ends, a dispatcher has the worker's jobs start elsewhere. All
processes must agree on how long that takes, so the lease is kept in Redis. Each process reads it when it starts, or
when it connects to Redis, and again every five minutes.

While it changes, some processes have the old lease and some the new one. A worker with the longer one would look dead
to a dispatcher with the shorter one. So for `SETTLING` seconds after a change, workers use the shorter of the two, and
dispatchers expect the longer. The same holds when Redis has lost the lease: until it has settled again, dispatchers
expect that a worker may have any.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite
from typing import Final

from msgspec import Struct

from evsched.config import RANGES, Config

DEFAULT: Final = 14.0
"""Seconds: the jobs of a dead worker start elsewhere within 15 s, which is the lease and the janitor's step."""

SETTLING: Final = 900.0
"""Seconds after which every process uses a new lease. A process reads the lease at least every 300 s, and may fail to
do so twice."""


class LeaseLength(Struct, frozen=True):
    """The lease that Redis has, and the one before it. Stored as numbers with spaces between them."""

    seconds: float
    before: float | None = None
    """None = it was never changed; inf = it is not known, since Redis lost it."""
    since: float = 0.0
    """When it was changed, Unix seconds."""

    def settles_in(self, now: float) -> float:
        """Return the seconds until all processes use it. `now`: Redis's clock."""
        if self.before is None:
            return 0.0
        return max(0.0, min(self.since + SETTLING - now, SETTLING))  # a clock that was set back delays it no further

    def span(self, now: float) -> tuple[float, float | None]:
        """Return the lease for workers, and the longest that one of them may have; None = not known."""
        if self.before is None or not self.settles_in(now):
            return self.seconds, self.seconds
        longest = max(self.seconds, self.before)
        return min(self.seconds, self.before), longest if isfinite(longest) else None

    def text(self) -> str:
        return f"{self.seconds:g}" if self.before is None else f"{self.seconds:g} {self.before:g} {self.since:.0f}"


def parse_lease(text: bytes | None) -> LeaseLength | None:
    """Return the stored lease; None if it is missing or not valid."""
    try:
        seconds, *rest = map(float, (text or b"").split())
        found = LeaseLength(seconds, *rest)
    except (ValueError, TypeError):
        return None
    least, most = RANGES["lease"]
    if len(rest) not in (0, 2) or not least <= seconds <= most:
        return None
    if rest and not ((least <= rest[0] <= most or rest[0] == inf) and isfinite(rest[1])):
        return None
    return found


class Times:
    """The times of one process that follow from the lease. They change with it, in all loops of the process."""

    def __init__(self, config: Config) -> None:
        """Begin with the times of the default lease, apart from times that `config` fixes for a test."""
        self._fixed = config
        self._listeners = list[Callable[[], None]]()
        self.read: LeaseLength | None = None
        """The value in Redis at the last read."""
        self.lease = config.lease or DEFAULT
        self._derive(DEFAULT, DEFAULT)

    def follow(self, lease: float, longest: float | None) -> None:
        """Use a lease from now on. `longest`: the longest that a worker of this Redis may have; None = not known."""
        self.lease = lease
        self._derive(lease, longest)
        for changed in self._listeners:
            changed()

    def listen(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def _derive(self, lease: float, longest: float | None) -> None:
        fixed, most = self._fixed, longest or lease
        # Two heartbeats may fail before the lease ends.
        self.heartbeat = _or(fixed.heartbeat, lease * 5 / 14)
        # The jobs that an idle worker has fetched and not started wait for this one, and all else for the short one:
        # it can be long, so that an idle fleet sends little. Two heartbeats may fail here too.
        self.idle_lease = _or(fixed.idle_lease, lease * 135 / 14)
        self.idle_heartbeat = _or(fixed.idle_heartbeat, lease * 45 / 14)
        # A half-open connection is noticed after this and `reply_timeout`, together a little more than the lease. It is
        # as long as that allows, so that a whole idle fleet sends only 0.2 commands a second.
        self.probe_interval = _or(fixed.probe_interval, lease * 13 / 14)
        # A busy host may take a second to answer, however short the lease is. Connections keep theirs until they close.
        self.reply_timeout = _or(fixed.reply_timeout, max(1.5, lease * 1.5 / 14))
        # The longest sleep of a dispatcher or a relay: how late a job may start if an event is lost. A longer lease is
        # for workers that stall, which is no reason for a longer delay.
        self.safety_cap = _or(fixed.safety_cap, min(30.0, lease * 30 / 14))

        # The times that a janitor expects of the workers.
        self.longest_lease = inf if longest is None else self.lease if longest == lease else longest
        self.longest_heartbeat = _or(fixed.heartbeat, most * 5 / 14)
        self.longest_block = _or(fixed.probe_interval, most * 13 / 14)


def _or(fixed: float | None, derived: float) -> float:
    return derived if fixed is None else fixed
