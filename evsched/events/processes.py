"""What happens to the processes that people start: their metrics port, their child processes, their end."""

from __future__ import annotations

from evsched.events.event import Event


class Listening(Event, frozen=True, kw_only=True):
    """The process serves metrics, liveness and readiness."""

    url: str


class EndedByForce(Event, frozen=True, kw_only=True):
    """The process did not end in time after it was asked to: it is ended now."""

    seconds: float
    """Since it was asked to."""


class EndedAtOnce(Event, frozen=True, kw_only=True):
    """A second signal ends the process now: its jobs start elsewhere when its lease ends."""


class HandlersLeft(Event, frozen=True, kw_only=True):
    """Processes that handlers had started with `multiprocessing`, and not ended, were ended with their worker."""

    processes: int


class ChildStarted(Event, frozen=True, kw_only=True):
    """A parent started a worker process."""

    number: int
    pid: int


class ChildEnded(Event, frozen=True, kw_only=True):
    number: int
    pid: int
    code: int


class ChildCannotStart(Event, frozen=True, kw_only=True):
    """The first worker process cannot start. The others could not either, so the parent ends."""

    number: int
    code: int


class ChildKilled(Event, frozen=True, kw_only=True):
    """A worker process did not end in time: its parent killed it."""

    number: int
    pid: int = 0
