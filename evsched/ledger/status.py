"""The state of the ledger at one moment, for `evsched ledger status`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import psycopg
from msgspec import Struct

from evsched.errors import CannotStart, StoreDown, StoreRefused
from evsched.ledger import rows
from evsched.ledger.audit import Row
from evsched.ledger.database import check_url, explain, transaction
from evsched.ledger.epoch import OTHER, known_epoch
from evsched.ledger.identity import read_identity
from evsched.ledger.lost import lost_dead
from evsched.ledger.presence import read_present
from evsched.ledger.rows import Backlog
from evsched.store.store import Store
from evsched.transport.senders import BatchingSender


class Status(Struct, frozen=True):
    """What the table and Redis say."""

    epoch: str
    """The present one; empty = no relay has seen this Redis, or its data is lost, or it is down."""
    compared: bool
    """Whether relays have removed, in this epoch, the jobs whose rows have ended."""
    away: str | None
    """Why Redis does not answer, or is not the one of this ledger; None = it answers."""
    foreign: bool
    """The reason is that this Redis belongs to the ledger of another database."""
    states: dict[str, int]
    """How many rows are in each state."""
    waiting: Backlog
    """The rows that are not scheduled in this epoch. While Redis is down: those that never were."""
    recurrences: int
    undeclared: int
    """Recurrences that wait to be declared."""
    refused: int
    """Recurrences that cannot be declared: their rows have the reason."""
    relays: int
    """How many are connected to the database."""
    redises: int
    """How many Redises they serve, which must not be more than one."""
    unwritten: dict[str, int]
    """By queue: how many ends Redis has that the table does not have yet. Empty while Redis is down."""
    lost_dead: int
    """Dead and expired rows whose jobs Redis does not have, counted up to 1,000. 0 while it does not answer."""


async def read_status(database: str | None, redis: str) -> Status:
    """Read the state of the ledger. It counts all rows, which takes as long as they are many.

    Raises:
        ConfigError: no database is set.
        CannotStart: it cannot be reached, or refuses.
        StoreRefused
    """
    sender = BatchingSender(redis)
    try:
        async with transaction(check_url(database)) as connection:
            epoch, compared, unwritten, away, foreign = "", False, dict[str, int](), None, False
            lost = list[Row]()
            try:
                noted = await read_identity(connection)
                epoch = await known_epoch(sender, noted.text)
                compared = epoch == noted.checked
                lost = await lost_dead(connection, sender, None)
                unwritten = await _unwritten(sender, await rows.queues(connection))
            except (StoreDown, StoreRefused) as error:
                foreign = error.kind == OTHER
                if not foreign and not isinstance(error, StoreDown):
                    raise
                away = str(error).removeprefix("Redis: ")
            present = await read_present(connection)
            present_epoch = None if away else epoch or rows.NO_EPOCH
            return Status(
                epoch,
                compared,
                away,
                foreign,
                await rows.states(connection),
                await rows.backlog(connection, present_epoch, None),
                *(await rows.recurrences(connection, present_epoch)),
                len(present.relays),
                present.redises,
                unwritten,
                len(lost),
            )
    except psycopg.Error as error:
        raise CannotStart(f"the database of the ledger: {explain(error)}") from None
    finally:
        await sender.close()


async def _unwritten(sender: BatchingSender, queues: Sequence[str]) -> dict[str, int]:
    counts = await asyncio.gather(*(_count(sender, queue) for queue in queues))
    return {queue: count for queue, count in zip(queues, counts, strict=True) if count}


async def _count(sender: BatchingSender, queue: str) -> int:
    try:
        return await sender.send(Store(queue).count_ends())
    except StoreRefused as error:
        if error.kind != "wrongtype":
            raise
        return 0  # `evsched doctor` reports the key
