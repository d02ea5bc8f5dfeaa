"""The lease, and the times that follow from it.

A worker renews its lease in Redis; when the lease ends, a dispatcher has the worker's jobs start elsewhere. Its length
is kept in Redis, so that all processes have the same. Each process reads it when it starts, or when it connects to
Redis, and again every five minutes, a dispatcher every quarter of an hour.

Processes that have different leases, because one has not read a change yet or Redis has lost the value, do no harm: a
worker writes its own with each heartbeat, and a dispatcher judges the worker by that one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from evsched.config import RANGES, Config

DEFAULT: Final = 14.0
"""Seconds: the jobs of a dead worker start elsewhere within 15 s, which is the lease and the janitor's step."""

_SELDOM: Final = 30
"""Safety caps: a quarter of an hour. An idle process sends few commands."""


def parse_lease(text: bytes | None) -> float | None:
    """Return a stored lease, in seconds; None if it is missing or not valid."""
    try:
        seconds = float(text or b"")
    except ValueError:
        return None
    least, most = RANGES["lease"]
    return seconds if least <= seconds <= most else None


class Times:
    """The times of one process that follow from the lease. They change with it, in all loops of the process."""

    def __init__(self, config: Config) -> None:
        """Begin with this process's lease, until that of Redis is read. A test may fix single times in `config`."""
        self._fixed = config
        self._listeners = list[Callable[[], None]]()
        self.read: float | None = None
        """The lease in Redis at the last read."""
        self.lease = config.lease or DEFAULT
        self._derive(self.lease)

    def follow(self, lease: float) -> None:
        """Use a lease from now on."""
        self.lease = lease
        self._derive(lease)
        for changed in self._listeners:
            changed()

    def listen(self, changed: Callable[[], None]) -> None:
        self._listeners.append(changed)

    def heartbeat_of(self, lease: float) -> float:
        """Return how often a worker that holds jobs renews a lease: two heartbeats may fail before it ends."""
        return _or(self._fixed.heartbeat, lease * 5 / 14)

    def probe_of(self, lease: float) -> float:
        """Return the silence after which a worker with a lease tests a connection.

        A half-open connection is noticed after this and `reply_timeout`, together a little more than the lease. It is
        as long as that allows, so that a whole idle fleet sends only 0.1 commands a second.
        """
        return _or(self._fixed.probe_interval, lease * 13 / 14)

    @property
    def seldom(self) -> float:
        """How often an idle process reads again what messages tell it, in case one was not sent, as after SWAPDB."""
        return _SELDOM * self.safety_cap

    def _derive(self, lease: float) -> None:
        fixed = self._fixed
        self.heartbeat = self.heartbeat_of(lease)
        self.probe_interval = self.probe_of(lease)
        # No job waits for the end of this one, since a worker that starts a job has the short one: it can be long, so
        # that an idle fleet sends little. Two heartbeats may fail here too.
        self.idle_lease = _or(fixed.idle_lease, lease * 180 / 14)
        self.idle_heartbeat = _or(fixed.idle_heartbeat, lease * 60 / 14)
        # A busy host may take a second to answer, however short the lease is. Connections keep theirs until they close.
        self.reply_timeout = _or(fixed.reply_timeout, max(1.5, lease * 1.5 / 14))
        # The longest sleep of a dispatcher or a relay: how late a job may start if an event is lost. A longer lease is
        # for workers that stall, which is no reason for a longer delay.
        self.safety_cap = _or(fixed.safety_cap, min(30.0, lease * 30 / 14))


def _or(fixed: float | None, derived: float) -> float:
    return derived if fixed is None else fixed
