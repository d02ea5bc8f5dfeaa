"""The recurrences of the ledger: declares the rows of `evsched_recurrence` in Redis, again after each loss."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace
from psycopg import AsyncConnection

from evsched.client.client import Client
from evsched.errors import FULL, NO_ENTRY, ConfigError, JobMissing, StoreError
from evsched.ledger.delivery import Aside, cause, too_long
from evsched.ledger.rows import Selection, fetch, storable
from evsched.process_events import RowsDeclared
from evsched.recurrence.recurrence import Declared, check_declared
from evsched.runtime.loops import Runtime
from evsched.store.server import clock

_MOST: Final = 50
"""Rows in one transaction: each takes some round trips."""

_CLAIM: Final = """
UPDATE evsched_recurrence SET epoch = %(epoch)s, reason = NULL
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM evsched_recurrence
    WHERE (epoch < %(epoch)s OR epoch > %(epoch)s) AND (reason IS NULL OR epoch = '') AND critical >= %(least)s
        AND (queue, name) NOT IN (SELECT * FROM unnest(%(aside_queues)s::text[], %(aside_ids)s::text[]))
    ORDER BY critical DESC LIMIT %(limit)s FOR UPDATE SKIP LOCKED
))
RETURNING queue, name, removed, octet_length(concat(rule, zone, payload, options)),
    CASE WHEN octet_length(concat(rule, zone, payload, options)) <= %(cap)s
    THEN json_build_object('rule', rule, 'zone', zone, 'payload', payload::text, 'options', options) END
"""
"""A row with a reason is left alone until it is changed, which empties its epoch: data in Redis, such as the time that
the retries of a task take, must not decide after a loss whether it recurs."""

_COLUMNS: Final = ("queue", "name", "rule", "zone", "payload")
"""The fields of a recurrence that are columns of its row."""

_REASON: Final = "UPDATE evsched_recurrence SET reason = %s WHERE queue = %s AND name = %s"

_WAITS: Final = "UPDATE evsched_recurrence SET epoch = '' WHERE queue = %s AND name = %s"

_DELETE: Final = "DELETE FROM evsched_recurrence WHERE queue = %s AND name = %s"


class _RecurrenceRow(Struct, frozen=True):
    """A row that is locked."""

    queue: str
    name: str
    removed: bool
    size: int
    """The bytes of its declaration."""
    fields: dict[str, Any] | None
    """Its declaration; None = too long."""


class RecurrenceRows:
    """Declares rows through a client: it checks and writes the same as `app.client.declare`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.client = Client(runtime.config.url)
        self.aside = Aside(runtime.emit)
        """The rows, by queue and name, that Redis does not take at the moment."""

    async def step(self, connection: AsyncConnection, selection: Selection) -> bool:
        """Declare a slice of the rows that are new, changed, or of another epoch; return whether there were any.

        A row that cannot be declared gets the reason, and is tried again when it is changed. Recurrences of the code
        are neither changed nor removed. A row that Redis does not take waits, and the next slices are without it.

        Raises:
            StoreDown, StoreRefused, psycopg.Error: the rows wait as before.
        """
        found = await self._declare_all(connection, selection, self.aside.rows())
        if not found and (again := self.aside.due()) is not None:
            found = await self._declare_all(connection, selection, self.aside.rows(without=again))
            self.aside.tried(again)
        return found

    async def _declare_all(
        self, connection: AsyncConnection, selection: Selection, aside: Sequence[tuple[str, str]]
    ) -> bool:
        done, config = Counter[str](), self._runtime.config
        words = {**replace(selection, aside=aside).words(""), "limit": _MOST, "cap": config.payload_cap}
        async with connection.transaction():
            claimed = [_RecurrenceRow(*columns) for columns in await fetch(connection, _CLAIM, words)]
            for row in claimed:
                key = [row.queue, row.name]
                try:
                    await (self._remove(row) if row.removed else self._declare(row))
                    if row.removed:
                        await connection.execute(_DELETE, key)
                except ConfigError as error:
                    await connection.execute(_REASON, [storable(str(error)), *key])
                except StoreError as error:  # the client has tried for some seconds
                    if error.kind in (FULL, *NO_ENTRY):
                        raise
                    await self._runtime.sender.send(clock())  # fails as well if Redis takes no row at all
                    self.aside.add(row.queue, {row.name: cause(error, row.size)})
                    await connection.execute(_WAITS, key)
                    continue
                done[row.queue] += 1
        for queue, count in done.items():
            self._runtime.emit(RowsDeclared(queue=queue, count=count))
        return bool(claimed)

    async def _declare(self, row: _RecurrenceRow) -> None:
        if row.fields is None:
            raise ConfigError(
                f"recurrence {row.name}: the row has {row.size} bytes, more than {self._runtime.config.payload_cap}"
            )
        if (reason := await too_long(self._runtime.sender, row.size)) is not None:
            raise ConfigError(f"recurrence {row.name}: {reason}")
        if (owner := await self._owner(row)) is not None:
            raise ConfigError(f"recurrence {row.name}: the code of app {owner} declares it: use another name")
        await self.client.declare(row.queue, _declared(row.name, **row.fields))

    async def close(self) -> None:
        await self.client.close()

    async def _owner(self, row: _RecurrenceRow) -> str | None:
        """Return the app whose code declares a recurrence of this name; None = none does, or no longer."""
        fields = await self.client.send(self.client.store(row.queue).recurrence(row.name))
        return None if "retired" in fields or "owner" not in fields else fields["owner"].decode(errors="replace")

    async def _remove(self, row: _RecurrenceRow) -> None:
        if await self._owner(row) is not None:
            return
        try:
            await self.client.remove(row.queue, row.name)
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
    words: dict[str, Any] = {**options, "name": name, "rule": rule, "zone": zone, "payload": payload.encode()}
    if strange := words.keys() - set(Declared.__struct_fields__):
        raise ConfigError(f"recurrence {name}: its options have {', '.join(sorted(strange))}, which is not an option")
    declared = Declared(**words)
    check_declared(declared)
    return declared
