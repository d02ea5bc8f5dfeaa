"""The recurrences of the ledger: declares the rows of `evsched_recurrence` in Redis, again after each loss."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from psycopg import AsyncConnection

from evsched.client.client import Client
from evsched.errors import ConfigError, JobMissing
from evsched.ledger.rows import Selection, storable
from evsched.recurrence.check_declared import check_declared
from evsched.recurrence.recurrence import Declared

_MOST: Final = 50
"""Rows in one transaction: each takes some round trips."""

_CLAIM: Final = """
UPDATE evsched_recurrence SET epoch = %(epoch)s, reason = NULL
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM evsched_recurrence
    WHERE (epoch < %(epoch)s OR epoch > %(epoch)s) AND (reason IS NULL OR epoch = '') AND critical >= %(least)s
    ORDER BY critical DESC LIMIT %(limit)s FOR UPDATE SKIP LOCKED
))
RETURNING queue, name, removed, octet_length(concat(rule, zone, payload, options)),
    CASE WHEN octet_length(concat(rule, zone, payload, options)) <= %(cap)s
    THEN json_build_object('rule', rule, 'zone', zone, 'payload', payload::text, 'options', options) END
"""
"""A row with a reason is left alone until it is changed, which empties its epoch: what Redis knows, such as what the
retries of a task take, must not decide after a loss whether it recurs."""

_COLUMNS: Final = ("queue", "name", "rule", "zone", "payload")
"""The fields of a recurrence that are columns of its row."""

_REASON: Final = "UPDATE evsched_recurrence SET reason = %s WHERE queue = %s AND name = %s"

_DELETE: Final = "DELETE FROM evsched_recurrence WHERE queue = %s AND name = %s"


class Recurrences:
    """Declares rows through a client: what it checks and writes is what `app.client.declare` does."""

    def __init__(self, url: str, cap: int) -> None:
        self._client = Client(url)
        self._cap = cap
        """Bytes that a row may have; longer ones are not read."""

    async def step(self, connection: AsyncConnection, selection: Selection) -> dict[str, int]:
        """Declare a slice of the rows that are new, changed, or of another epoch; return how many, by queue.

        A row that cannot be declared gets the reason, and is tried again when it is changed. What the code declares
        is neither changed nor removed.

        Raises:
            StoreDown, StoreRefused, psycopg.Error: the rows wait as before.
        """
        done = Counter[str]()
        async with connection.transaction():
            cursor = await connection.execute(
                _CLAIM.encode(),
                {"epoch": selection.epoch, "least": selection.least, "limit": _MOST, "cap": self._cap},
            )
            for queue, name, removed, size, fields in await cursor.fetchall():
                done[queue] += 1
                if removed:
                    await self._remove(queue, name)
                    await connection.execute(_DELETE.encode(), [queue, name])
                    continue
                try:
                    if fields is None:
                        raise ConfigError(f"recurrence {name}: the row has {size} bytes, more than {self._cap}")
                    if (owner := await self._owner(queue, name)) is not None:
                        raise ConfigError(f"recurrence {name}: the code of app {owner} declares it: use another name")
                    await self._client.declare(queue, _declared(name, **fields))
                except ConfigError as error:
                    await connection.execute(_REASON.encode(), [storable(str(error)), queue, name])
        return done

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    async def _owner(self, queue: str, name: str) -> str | None:
        """Return the app whose code declares a recurrence of this name; None = none does, or no longer."""
        fields = await self._client.send(self._client.store(queue).recurrence(name))
        return None if "retired" in fields or "owner" not in fields else fields["owner"].decode(errors="replace")

    async def _remove(self, queue: str, name: str) -> None:
        if await self._owner(queue, name) is not None:
            return
        try:
            await self._client.remove(queue, name)
        except JobMissing:
            pass  # it was never declared in this epoch, or has been removed by a relay that did not commit


def _declared(name: str, rule: str, zone: str, payload: str, options: dict[str, Any]) -> Declared:
    """Return what a row declares.

    Raises:
        ConfigError: `options` has a field that a recurrence does not have, or one of another type.
    """
    if columns := [column for column in _COLUMNS if column in options]:
        raise ConfigError(
            f"recurrence {name}: its options have {', '.join(columns)}: write that into the column of this name"
        )
    words = {**options, "name": name, "rule": rule, "zone": zone, "payload": payload.encode()}
    if strange := words.keys() - set(Declared.__struct_fields__):
        raise ConfigError(f"recurrence {name}: its options have {', '.join(sorted(strange))}, which is no option")
    declared = Declared(**words)
    check_declared(declared)
    return declared
