"""How Redis answers: whether it can be reached, serves, and accepts what is asked."""

from __future__ import annotations

from evsched.events.event import Event


class RedisUnsafe(Event, frozen=True, kw_only=True):
    """Redis is configured so that it may lose jobs. Emitted once, at the start."""

    what: str
    mend: str
    """The command that sets this right."""


class LeaseDiffers(Event, frozen=True, kw_only=True):
    """The lease in the settings of a process is not the one in Redis, which it uses. Emitted at the start."""

    given: float
    lease: float


class LeaseChanged(Event, frozen=True, kw_only=True):
    """A process has read a new lease, or uses it alone from now on."""

    lease: float
    settles_in: float
    """Seconds during which other processes may still have the one before; 0 = none has it any more."""


class RedisFailed(Event, frozen=True, kw_only=True):
    """A command failed; `kind` is that of the StoreError."""

    kind: str


class RedisDown(Event, frozen=True, kw_only=True):
    """Redis cannot be reached, or cannot serve. Each loop emits it once, at the first failure."""

    who: str
    reason: str
    kind: str = "connection"
    """That of the StoreError: it tells a Redis that is absent from one that answers and cannot serve."""


class RedisUp(Event, frozen=True, kw_only=True):
    """Redis serves again. Each loop emits it once."""

    who: str
    seconds: float
    """How long it was down."""


class NodeReleased(Event, frozen=True, kw_only=True):
    """A loop that Redis did not serve has ended: another node of the cluster has its queues, or the process stops."""

    who: str
    seconds: float
    """How long Redis had not served it."""


class CallRefused(Event, frozen=True, kw_only=True):
    """Redis serves, but refuses what a loop asks: bad data, a missing right, a bug, or full memory. Emitted once."""

    who: str
    queue: str = ""
    """Empty = the call concerns no single queue."""
    reason: str
    kind: str = ""
    """That of the StoreError; "oom" = Redis's memory is full."""


class CallAccepted(Event, frozen=True, kw_only=True):
    """Redis accepts what it had refused. Emitted once."""

    who: str
    queue: str = ""
    seconds: float
    """How long it refused."""
    kind: str = ""
    """That of the last refusal."""
