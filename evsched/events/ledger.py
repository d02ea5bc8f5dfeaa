"""What a relay of the ledger does, and how its database answers."""

from __future__ import annotations

from evsched.events.event import Event


class LedgerStarted(Event, frozen=True, kw_only=True):
    server: str
    database: str
    """Which server has the tables."""


class EpochFound(Event, frozen=True, kw_only=True):
    """Redis has other data than before, or the relay has just started."""

    epoch: str


class RelayWaits(Event, frozen=True, kw_only=True):
    """A relay schedules nothing, because another one of its database serves another Redis.

    It ends, as the other may go or change over, when the relay finds an epoch, or schedules rows.
    """

    reason: str


class RowsScheduled(Event, frozen=True, kw_only=True):
    """Rows were scheduled, and that is committed."""

    queue: str
    count: int
    again: bool
    """They had been scheduled in another epoch."""


class RowsRefused(Event, frozen=True, kw_only=True):
    """Rows cannot be scheduled: they are dead, and each has the reason. That is committed."""

    queue: str
    count: int
    first: str
    """The id and the reason of one of them."""


class RowsSetAside(Event, frozen=True, kw_only=True):
    """Redis does not take these rows though it takes others: they wait, and are tried again later."""

    queue: str
    count: int
    first: str
    """The id, or the name of a recurrence, and the reason of one of them."""


class RowsDeclared(Event, frozen=True, kw_only=True):
    """Rows of recurrences were declared, or removed; or they got the reason why they cannot be."""

    queue: str
    count: int


class EndsWritten(Event, frozen=True, kw_only=True):
    """Jobs have ended, and their rows say so."""

    queue: str
    count: int


class JobsWithdrawn(Event, frozen=True, kw_only=True):
    """Redis had jobs again that have ended, as their rows say: they were removed from a place, or asked to stop."""

    queue: str
    count: int


class LedgerDown(Event, frozen=True, kw_only=True):
    """The database does not serve. Each loop emits it at the first failure, and again for each other reason."""

    who: str
    reason: str


class LedgerUp(Event, frozen=True, kw_only=True):
    """The database serves again. Each loop emits it once."""

    who: str
    seconds: float
    """How long it did not."""
