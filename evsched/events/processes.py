"""What happens to the processes that people start: their metrics port, their child processes, their end."""

from __future__ import annotations

from evsched.events.event import Event


class Listening(Event, frozen=True, kw_only=True):
    """The process serves metrics, liveness and readiness."""

    url: str


class ApiStarted(Event, frozen=True, kw_only=True):
    """The process answers requests of the HTTP interface."""

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


class ChildNotStarted(Event, frozen=True, kw_only=True):
    """The system could not start a worker process; its parent tries again."""

    number: int
    reason: str


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


class ParentWaits(Event, frozen=True, kw_only=True):
    """A parent without worker processes waits for jobs."""

    queues: list[str]


class ParentWoken(Event, frozen=True, kw_only=True):
    """A queue needs a worker process: a parent without any starts one."""

    queue: str
    need: str = "ready"
    """A job is `ready` that no worker fetches; what the app declares was lost: `undeclared`; or a task of the app is
    `sought`, because only workers that do not have it got its jobs."""


class Reloading(Event, frozen=True, kw_only=True):
    """A parent got SIGHUP: it replaces its worker processes, one by one."""

    processes: int


class Reloaded(Event, frozen=True, kw_only=True):
    """All worker processes were replaced."""

    processes: int
    seconds: float


class ReloadFailed(Event, frozen=True, kw_only=True):
    """A worker process with the new code did not become ready: those that are not replaced yet go on."""

    number: int
    reason: str
    replaced: int
    """How many were replaced before."""
    processes: int


class JobsPutBack(Event, frozen=True, kw_only=True):
    """The parent put back what the worker processes held that ran here before and died; it has no metrics itself."""

    queue: str
    count: int
