"""What `evsched doctor --watch` finds."""

from __future__ import annotations

from evsched.events.event import Event


class DoctorStarted(Event, frozen=True, kw_only=True):
    """A doctor begins to watch. It rests for `interval` seconds after each examination."""

    interval: float


class Examined(Event, frozen=True, kw_only=True):
    """Redis and its queues were checked. The lists run parallel: one entry for each fault and warning."""

    checks: list[str]
    levels: list[str]
